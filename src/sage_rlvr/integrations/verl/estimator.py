"""The advantage seam: ``algorithm.adv_estimator=sage``, an estimator in verl's own table. Runs on the driver.

verl hands an estimator that is not its own the token rewards, the mask and the uids of a batch, no log-probs and no step. The
trainer says the rest for the time of the call (``told``). With the KL in verl's reward, the room sees what was judged, and
β·bonus minus its group's mean is added to what it answers: the same sum as in our trainer for TRL.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from sage_rlvr.advantage import Advantage
from sage_rlvr.errors import UserError
from sage_rlvr.integrations.verl import ESTIMATOR, MODE
from sage_rlvr.integrations.verl.shape import is_padding


@dataclass
class Told:
    """What verl does not hand to an estimator; a row per trajectory, in the order of the batch, N in all."""

    advantage: Advantage
    keys: Sequence[str]  # verl's: uid_session_output
    step: int
    max_steps: int
    scores: Tensor | None = None  # (N,) rewards as judged, where verl's token rewards hold a KL as well
    logps: Tensor | None = None  # (N,) mean log π per counted token, at the policy that sampled
    ref_logps: Tensor | None = None  # (N,) mean log π_ref per counted token, before any guide
    lengths: Tensor | None = None  # (N,) counted tokens
    answers: list[Any] | None = None
    used: bool = False  # verl has asked for these advantages


_now: list[Told] = []  # what holds during the call, as verl passes nothing of ours on


@contextmanager
def told(batch: Told) -> Iterator[Told]:
    _now.append(batch)
    try:
        yield batch
    finally:
        _now.pop()


@register_adv_est(ESTIMATOR)
def sage(token_level_rewards: Tensor, response_mask: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    """(N, T) advantages and returns, in verl's own words: a trajectory's, on each of its counted tokens."""
    if not _now:
        raise UserError(
            f"algorithm.adv_estimator={ESTIMATOR} was asked outside of its trainer: set trainer.v1.trainer_mode={MODE}."
        )
    out = per_trajectory(_now[-1], token_level_rewards.sum(-1)).unsqueeze(-1) * response_mask
    return out, out


def per_trajectory(batch: Told, paid: Tensor) -> Tensor:
    """(N,) from the sums of verl's token rewards, (N,). 0 for verl's padding rows, which count no token."""
    batch.used = True
    rows, group, place = groups(batch.keys)
    scores = paid if batch.scores is None else batch.scores
    if bool(scores.isnan().any()):
        raise UserError(
            "a reward is NaN, and verl's rewards are numbers: let the reward function answer 0 where it cannot judge."
        )

    there = rows >= 0

    def of(x: Tensor) -> Tensor:
        return torch.where(there, x[rows].float(), torch.nan)

    known = {"logps": batch.logps, "ref_logps": batch.ref_logps, "lengths": batch.lengths}
    given: dict[str, Any] = {name: of(x) for name, x in known.items() if x is not None}
    if batch.answers is not None:
        given["answers"] = [batch.answers[i] if i >= 0 else None for i in rows.tolist()]
    shaped = batch.advantage(of(scores), group, **given, step=batch.step, max_steps=batch.max_steps)
    if batch.scores is not None:
        bonus = of(paid - batch.scores).view(-1, group)
        shaped = shaped + (bonus - bonus.nanmean(1, keepdim=True)).reshape(-1)
    return torch.where(place < 0, 0.0, shaped[place])


def groups(keys: Sequence[str]) -> tuple[Tensor, int, Tensor]:
    """(P·G,) the rows that are compared, a prompt's together; G; and for each trajectory its place among them, −1 for padding.

    As in verl's GRPO the last output of a session stands for the session, and the others get its advantage. verl goes on where a
    session failed: such a prompt has fewer completions, and row −1 in the place of each that is missing.
    """
    last: dict[tuple[str, int], tuple[int, int]] = {}  # (uid, session) → (output, row)
    for row, key in enumerate(keys):
        uid, session, output = key.rsplit("_", 2)
        if not is_padding(uid):
            last[uid, int(session)] = max(last.get((uid, int(session)), (-1, -1)), (int(output), row))
    of_prompt: dict[str, list[tuple[str, int] | None]] = {}
    for one in sorted(last):
        of_prompt.setdefault(one[0], []).append(one)
    most = max(map(len, of_prompt.values()))
    order = [one for sessions in of_prompt.values() for one in [*sessions, *[None] * (most - len(sessions))]]
    place = {one: i for i, one in enumerate(order) if one is not None}
    each = [place.get((uid, int(session)), -1) for uid, session, _ in (key.rsplit("_", 2) for key in keys)]
    return torch.tensor([-1 if one is None else last[one][1] for one in order]), most, torch.tensor(each)


def mean_per_token(x: Tensor, mask: Tensor) -> Tensor:
    """(N, T) → (N,) over counted tokens; NaN where none counts."""
    on = mask.bool()
    return torch.where(on, x.float(), 0.0).sum(1) / on.sum(1)


def answers_of(extra_fields: Sequence[Any], key: str) -> list[str | None]:
    """What the reward function answered under ``key`` beside its score, as verl keeps it with each trajectory."""
    fields = [getattr(one, "data", one) for one in extra_fields]
    answers = [(one.get("reward_extra_info") or {}).get(key) if isinstance(one, dict) else None for one in fields]
    if all(answer is None for answer in answers):
        raise UserError(
            f"sage.answer={key}: the reward function answered no {key!r} for any completion; let it return a dict with one, as "
            f"in {{'score': 1.0, {key!r}: '42'}}."
        )
    return [None if answer is None else str(answer) for answer in answers]
