"""The advantage of a stored completion, if all stored samples of its problem were one group of its run's training."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.report.find import EvalRun, TrainRun
from sage_rlvr.report.standing import own_name

SCALES = {True: "group", False: "none"}  # what TRL also takes for scale_rewards
ACROSS = ("beta", "batch")  # these follow from all groups of a step, which no evaluation has


def advantages(run: EvalRun, trains: Sequence[TrainRun]) -> Callable[[dict[str, Any]], float | None]:
    """record → its advantage under the run's own setting; None where there is no training, or where the setting also reads
    what an evaluation does not have (answers, log-probs, other groups)."""
    settings = next((t.settings for t in trains if own_name(t.name) == own_name(run.name)), None)
    if not settings:
        return lambda record: None
    counts = {}  # (task, problem) → right ones, wrong ones; one whose gold cannot be verified is in no count
    for task in run.counts.tasks.values():
        for name, right, total in zip(task.problems, task.rights, task.totals):
            counts[task.task, name] = (int(right), int(total - right))
    by_counts = cache(lambda *group: _of_group(settings, *group))

    def of(record: dict[str, Any]) -> float | None:
        group = counts.get((record["t"], record["p"]))
        pair = by_counts(*group) if group and sum(group) else None
        return pair[record["v"]] if pair else None

    return of


def _of_group(settings: dict[str, Any], right: int, wrong: int) -> tuple[float | None, float | None] | None:
    """(of a wrong one, of a right one) in a group with these numbers of each."""
    import torch

    from sage_rlvr.advantage import make_advantage

    name, scale = settings.get("advantage") or "group", settings.get("scale_rewards", "group")
    scale = SCALES.get(scale, scale) if isinstance(scale, bool) else scale
    names = [name] if isinstance(name, str) else list(name)
    if {*names, scale} & {*ACROSS}:
        return None
    args = settings.get("advantage_args") or {}
    own = {"scale": scale} if name == "group" else {"group": {"scale": scale}} if "group" in names else {}
    try:
        made = make_advantage(name, **{**own, **args})
        if made.needs or made.token_part:
            return None
        rewards = torch.tensor([1.0] * right + [0.0] * wrong, dtype=torch.float64)
        last = settings.get("max_steps")
        last = max(1, last) if isinstance(last, int) else 1
        out = made(rewards, len(rewards), step=last, max_steps=last, scale=scale).tolist()
    except (UserError, ImportError, TypeError, ValueError):
        return None  # a class of the user's own that is not here, or a group too small for it
    return (out[right] if wrong else None), (out[0] if right else None)
