"""Advantages: how a group's rewards become what each completion's tokens are multiplied by.

A step has P prompts with G completions each (a group). ``adv(rewards, group)`` takes their rewards, (P·G,), a group's rows
together, NaN where nobody could judge, and answers (P·G,): 0 for NaN. Every advantage writes one method, ``shape``, and says in
``stage`` what that answers, always (P, G):

    stage        shape answers                                 order
    reward       what each completion is paid in place of r    1
    advantage    the advantages (default: ``group``)           2
    factor       what the advantages are multiplied by         3
    term         what is added to the advantages               4
    tokens       each token's advantage, (N, T): tokens.py     5

``kind`` says which question it is about: "prompts" (which prompts count), "answers" (which right answers count), "signs" (right
against wrong), "tokens" (which tokens count) or "whole". One of each kind may be combined. The last stage needs the tokens'
log-probs, so ``adv(rewards, group)`` leaves it out: ``adv.token_part`` is it, or None. To add one:

    @register_advantage("solved-once")
    class SolvedOnce(Advantage):
        kind, stage = "prompts", "factor"
        def shape(self, r: Rollouts) -> Tensor:
            return (r.right.sum(1, keepdim=True) == 1).float()
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sage_rlvr.errors import UserError
from sage_rlvr.registered import Registry

STAGES = ("reward", "advantage", "factor", "term", "tokens")
KINDS = ("answers", "signs", "prompts", "tokens", "whole")


@dataclass(frozen=True)
class Rollouts:
    """One step's completions; tensors are (P, G): a row per prompt."""

    rewards: Tensor  # as they were judged, NaN where nobody could
    pay: Tensor  # what they are paid: the rewards, or what a ``reward`` stage made of them
    known: Tensor  # bool: judged
    right: Tensor  # bool: judged, and rewarded above 0
    logps: Tensor | None = None  # mean log π per token of each completion
    ref_logps: Tensor | None = None  # mean log π_ref per token
    lengths: Tensor | None = None  # tokens of each completion
    answers: list[list[Any]] | None = None  # what was answered, None where it cannot be read
    step: int = 0
    max_steps: int = 1

    @property
    def solved(self) -> Tensor:
        """(P, 1) the share of a group's judged completions that are right; NaN where none was judged."""
        return self.right.sum(1, keepdim=True) / self.known.sum(1, keepdim=True)


class Advantage:
    """One way. Subclasses write ``shape``; calling it checks what goes in and sets what could not be judged to 0."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = "whole"
    stage: ClassVar[str] = "advantage"
    needs: ClassVar[frozenset[str]] = frozenset()  # of logps, ref_logps, lengths, answers: what it reads
    counts: ClassVar[bool] = False  # it counts right answers, so rewards must be 0 or 1 and paid alike
    pays_above_one: ClassVar[bool] = False  # of the stage reward: what it pays may leave [0, 1]

    @property
    def parts(self) -> "Sequence[Advantage]":
        """What it is made of, in the order of their stages."""
        return [self]

    @property
    def token_part(self) -> Any:
        """The TokenAdvantage among the parts, which gives each token its own advantage, or None."""
        return next((part for part in self.parts if part.stage == "tokens"), None)

    def shape(self, r: Rollouts) -> Tensor:
        """(P, G), of the kind that ``stage`` says."""
        raise TypeError(f"{type(self).__name__} must define shape(self, rollouts): it answers a tensor like rewards.")

    def check_group(self, group: int) -> None:
        """Raises UserError where groups of this size cannot be used: asked once, before a run starts."""

    @torch.no_grad()
    def __call__(
        self,
        rewards: Tensor,
        group: int,
        logps: Tensor | None = None,
        ref_logps: Tensor | None = None,
        answers: Sequence[Any] | None = None,
        step: int = 0,
        max_steps: int = 1,
        lengths: Tensor | None = None,
        scale: str = "group",
    ) -> Tensor:
        """(N,), all stages but the tokens'. ``scale``: that of ``group``, where no part makes the advantages."""
        optional = {"logps": logps, "ref_logps": ref_logps, "lengths": lengths, "answers": answers}
        r = rollouts(rewards, group, step, max_steps, **optional)
        for part in self.parts:
            _check(part, r)
        by_stage = {part.stage: part for part in self.parts}
        if "reward" in by_stage:
            pay = by_stage["reward"].shape(r)
            r = replace(r, pay=torch.where(r.known, pay.to(r.rewards.dtype), torch.nan))
        out = (by_stage.get("advantage") or make_advantage("group", scale=scale)).shape(r)
        if "factor" in by_stage:
            out = out * by_stage["factor"].shape(r)
        if "term" in by_stage:
            out = out + by_stage["term"].shape(r)
        return torch.where(r.known, out, 0.0).nan_to_num(nan=0.0).reshape(-1).to(rewards.dtype)

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments, as they stand: what a log, a model card or a checkpoint says of it."""
        return {p: getattr(self, p) for p in inspect.signature(type(self)).parameters if hasattr(self, p)}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint says of it: name → settings of each part."""
        return {part.name or type(part).__name__: part.settings() for part in self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses a checkpoint of another advantage, naming what differs: what is paid for would change without a word."""
        mine = self.state_dict()
        if set(state) != set(mine):
            theirs, ours = (repr(next(iter(d)) if len(d) == 1 else list(d)) for d in (state, mine))
            raise UserError(
                f"the checkpoint's advantage is {theirs}, this run's is {ours}: resume with advantage={theirs} or start a new "
                "run from the weights."
            )
        for name, settings in mine.items():
            for key, value in settings.items():
                if state[name].get(key, value) != value:
                    raise UserError(
                        f"advantage {name!r} was saved with {key}={state[name][key]!r}, this run has {value!r}: resume with the "
                        "saved value or start a new run from the weights."
                    )

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.settings().items())
        return f"{type(self).__name__}({inside})"


class Combined(Advantage):
    """Several, one of each kind, in the order of their stages."""

    def __init__(self, parts: Sequence[Advantage]) -> None:
        refuse_pairs(parts)
        self._parts = sorted(parts, key=lambda part: STAGES.index(part.stage))
        self.needs = frozenset().union(*(part.needs for part in parts))  # type: ignore[misc]

    @property
    def parts(self) -> Sequence[Advantage]:
        return self._parts

    def check_group(self, group: int) -> None:
        for part in self.parts:
            part.check_group(group)

    def settings(self) -> dict[str, Any]:
        return {part.name: part.settings() for part in self.parts}


# ---- in and out ----------------------------------------------------------------------------------------------------


def rollouts(rewards: Tensor, group: int, step: int, max_steps: int, **optional: Any) -> Rollouts:
    """The arguments as (P, G), checked."""
    if group < 1 or rewards.ndim != 1 or len(rewards) % group:
        raise UserError(
            f"advantage: {tuple(rewards.shape)} rewards are no whole number of groups of {group}: give (N,) rewards, a group's "
            "rows together."
        )
    if torch.isinf(rewards).any():
        raise UserError("advantage: a reward is infinite; rewards are numbers, or NaN where nothing could be judged.")
    rows = rewards.view(-1, group)
    answers = optional.pop("answers", None)
    if answers is not None and len(answers) != len(rewards):
        raise UserError(f"advantage: {len(answers)} answers for {len(rewards)} rewards; give one per completion.")
    for name, value in optional.items():
        if value is not None and value.shape != rewards.shape:
            raise UserError(
                f"advantage: {name} has shape {tuple(value.shape)}, the rewards {tuple(rewards.shape)}: one per completion."
            )
    known = ~rows.isnan()
    return Rollouts(
        rewards=rows,
        pay=rows,
        known=known,
        right=known & (rows > 0),
        answers=None if answers is None else [list(answers[i : i + group]) for i in range(0, len(answers), group)],
        step=step,
        max_steps=max_steps,
        **{name: None if value is None else value.view(-1, group) for name, value in optional.items()},
    )


def _check(part: Advantage, r: Rollouts) -> None:
    part.check_group(r.rewards.shape[1])
    for field in part.needs - {"lengths"}:
        if getattr(r, field) is None:
            raise UserError(f"advantage {part.name!r} needs {field}, which were not given: pass {field}=.")
    odd = r.rewards[(r.rewards != 0) & (r.rewards != 1) & r.known]
    if part.counts and len(odd):
        raise UserError(
            f"advantage {part.name!r} counts right answers, so rewards are 0 or 1, and one is {odd[0].item():.4g}: use a "
            "verifiable 0/1 reward, or advantage='group'."
        )


# ---- by name -------------------------------------------------------------------------------------------------------

_REGISTRY = Registry("advantage", Advantage)
register_advantage = _REGISTRY.register


def make_advantage(name: str | Sequence[str], **args: Any) -> Advantage:
    """One by its registered name or "package.module:Class", with its arguments; or several, as ["rarity", "focal"], with
    arguments by name: ``rarity={"share": 1.0}``."""
    if isinstance(name, str):
        return _REGISTRY.make(name, **args)
    for unknown in (key for key in args if key not in name):
        raise UserError(
            f"advantage_args: {unknown!r} is none of {', '.join(name)}; with several, arguments go under a name, as in "
            f"{{{name[0] if name else 'rarity'}: {{...}}}}."
        )
    parts = [_REGISTRY.make(one, **args.get(one, {})) for one in name]
    if not parts:
        raise UserError("advantage=[] names none: write a name, such as 'group'.")
    return parts[0] if len(parts) == 1 else Combined(parts)


def names_by_kind() -> dict[str, list[str]]:
    """kind → registered names, for lists."""
    return {kind: sorted(n for n, cls in _REGISTRY.classes.items() if cls.kind == kind) for kind in KINDS}


def refuse_pairs(parts: Sequence[Advantage]) -> None:
    """Two of a kind, two that both make the advantages, or a count of answers that are paid unequally."""
    for i, a in enumerate(parts):
        for b in parts[i + 1 :]:
            pair = f"advantage: {a.name!r} and {b.name!r}"
            if a.kind == b.kind:
                raise UserError(f"{pair} are both about {a.kind}: keep one of them.")
            if a.stage == b.stage:
                raise UserError(f"{pair} both make the {a.stage}s, and one would undo the other: keep one of them.")
            if (a.counts and b.stage == "reward") or (b.counts and a.stage == "reward"):
                counting, paying = (a, b) if a.counts else (b, a)
                raise UserError(
                    f"{pair}: {counting.name!r} counts right answers, which {paying.name!r} pays unequally; combine "
                    f"{paying.name!r} with 'focal', or keep one of them."
                )
            if "beta" in (a.name, b.name) and (a.pays_above_one or b.pays_above_one):
                paying = a if a.pays_above_one else b
                raise UserError(f"{pair}: {paying.name!r} pays above 1, where 'beta' ends: keep one of them.")
