"""The advantage of a stored completion, if all stored samples of its problem were one group of its run's training."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.report.find import EvalRun, TrainRun
from sage_rlvr.report.standing import own_name
from sage_rlvr.stats.counts import UNVERIFIABLE

SCALES = {True: "group", False: "none"}  # what TRL also takes for scale_rewards
GONE = ("coverage", "rarity")  # settings of earlier releases that changed what a completion was paid
ACROSS = ("beta", "batch")  # these follow from all groups of a step, which no evaluation has


def advantages(run: EvalRun, trains: Sequence[TrainRun]) -> Callable[[dict[str, Any]], float | None]:
    """record → its advantage under the run's own setting; None where there is no training, or where the setting also reads
    what an evaluation does not have (answers, log-probs, other groups)."""
    mine = [t.record.get("settings") for t in trains if own_name(t.name) == own_name(run.name)]
    settings = mine[0] if mine and mine[0] else None
    if settings is None or any(map(settings.get, GONE)):
        return lambda record: None
    counts = {}
    for task in run.counts.tasks.values():
        unknown = ((task.state == UNVERIFIABLE) & task.whole[..., None]).sum((1, 2))
        for name, right, total, odd in zip(task.problems, task.rights, task.totals, unknown):
            counts[task.task, name] = (int(right), int(total - right - odd), int(odd))
    by_counts = cache(lambda *of: _of_group(settings, *of))

    def of(record: dict[str, Any]) -> float | None:
        group = counts.get((record["t"], record["p"]))
        pair = by_counts(*group) if group and sum(group) else None
        return None if pair is None else 0.0 if record["v"] is None else pair[record["v"]]

    return of


def _of_group(
    settings: dict[str, Any], right: int, wrong: int, unknown: int
) -> tuple[float | None, float | None] | None:
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
        rewards = torch.tensor([1.0] * right + [0.0] * wrong + [math.nan] * unknown, dtype=torch.float64)
        steps = settings.get("max_steps") if isinstance(settings.get("max_steps"), int) else 1
        out = made(rewards, len(rewards), step=max(1, steps or 1), max_steps=max(1, steps or 1), scale=scale).tolist()
    except (UserError, ImportError, TypeError, ValueError):
        return None  # a class of the user's own that is not here, or a group too small for it
    return (out[right] if wrong else None), (out[0] if right else None)
