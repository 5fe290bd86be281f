"""q as a training run made it: guide, centring, temperature and batch from its run.json, or one sentence why q is not shown."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sage_rlvr.analysis.scoring import Reading
from sage_rlvr.anchor import CosineRestarts, Guide, Signals, make_guide
from sage_rlvr.errors import UserError
from sage_rlvr.store.samples import KEYS

# what q and the penalty follow from, beside the weights; the seed is a draw's, and runs may differ in it
SHAPES = (
    "guide", "guide_args", "guide_center", "temperature", "generation_batch_size", "mask_truncated_completions",
    "sync_ref_model", "anchor_reset",
)  # fmt: skip
NOT_STORED = ("group", "hidden")  # signals that no evaluation has


@dataclass(frozen=True)
class Anchor:
    """How a completion's q is made, read from a training run or named in the call."""

    name: str  # of the guide, "none" for q = 1
    guide: Guide | None
    temperature: float
    seed: int
    asked: bool  # named in the call, so that q may be another than training's
    centred: bool = False
    batch: int | None = None  # rows of a rollout batch in training; None: nobody says
    drops_truncated: bool = False
    unknown: str | None = None  # why q cannot be told at all

    @property
    def together(self) -> bool:
        """Whether a completion's q depends on those it is read with."""
        return self.guide is not None and not self.unknown and (self.guide.across_rows or self.centred)

    @property
    def scheduled(self) -> bool:
        return self.guide is not None and any(isinstance(part, CosineRestarts) for part in vars(self.guide).values())

    def of(self, rows: int) -> "Anchor":
        """This anchor over ``rows`` completions; without q where it takes a batch of training's size and they are fewer."""
        if not self.together:
            return self
        if self.batch is None and not self.asked:
            why = "run.json does not say how many rows that had"
        elif self.batch is not None and rows < self.batch:
            why = f"that had {self.batch} rows and {rows} completions are traced; take more (--limit, --per_problem)"
        else:
            return self
        return replace(self, unknown=f"it depends on the whole rollout batch, and {why}")

    def words(self, rows: int) -> str:
        """What the column q holds, for whoever looks at it."""
        if self.unknown:
            return f"not shown: {self.unknown}"
        parts = ["as asked in the call" if self.asked else "as the run's own settings make it"]
        if self.together:
            had = self.batch or "an unknown number of"
            parts.append(f"the {rows} completions taken for one rollout batch (in training {had} rows)")
        if self.guide is not None and self.guide.stochastic:
            parts.append("one draw of the guide's noise, not the one training saw")
        return "; ".join(parts)


def anchor_of(
    records: Sequence[dict[str, Any]],
    guide: str | None,
    guide_args: dict[str, Any] | None,
    temperature: float | None,
    seed: int | None,
    reference_named: bool,
) -> Anchor:
    """Of the training runs behind the checkpoints, which must agree; what the call names comes first."""
    for other in records[1:]:
        _refuse_two(records[0], other, guide is not None)
    own: dict[str, Any] = records[0]["settings"] if records else {}
    asked = guide is not None or bool(guide_args) or temperature is not None
    if temperature is not None and not temperature > 0:
        raise UserError(f"temperature={temperature} must be above 0: name the one training sampled at, such as 1.0.")
    name = guide or own.get("guide")
    if name is None and guide_args:
        raise UserError("guide_args without a guide, and no run.json says which: name it with --guide.")
    args = {**(own.get("guide_args") or {} if guide is None else {}), **(guide_args or {})}
    made = None if name in (None, "none") else make_guide(name, **args)
    unknown = None
    if name is None:
        unknown = "no run.json beside the checkpoints says which guide they were trained with: name one with --guide"
    elif own.get("sync_ref_model") and not reference_named:
        unknown = "the run moved its reference (sync_ref_model=True) and did not keep it"
    elif own.get("anchor_reset") and not reference_named:
        every = own["anchor_reset"]
        unknown = f"the run's reference became its policy every {every} steps (anchor_reset): name one with --reference"
    elif made is not None and (made.learns or not made.needs.isdisjoint(NOT_STORED)):
        unknown = (
            "the guide follows what training's own groups and batches showed (their solve rates, hidden states), and none of it "
            "is stored"
        )
    return Anchor(
        name=name or "unknown",
        guide=made,
        temperature=temperature if temperature is not None else float(own.get("temperature", 1.0)),
        seed=seed if seed is not None else int(own.get("seed", 0)),
        asked=asked,
        centred=made is not None and own.get("guide_center") == "batch",
        batch=own.get("generation_batch_size"),
        drops_truncated=bool(own.get("mask_truncated_completions")),
        unknown=unknown,
    )


def _refuse_two(one: dict[str, Any], other: dict[str, Any], guide_named: bool) -> None:
    for field in SHAPES[2 if guide_named else 0 :]:  # the first two are the guide's
        was, now = one["settings"].get(field), other["settings"].get(field)
        if (was or None) != (now or None):
            raise UserError(
                f"{one['folder']} was trained with {field}={was!r} and {other['folder']} with {now!r}, so they have no q in "
                "common: trace one run at a time, each with an --out of its own."
            )


def log_q(
    anchor: Anchor,
    samples: Sequence[dict[str, Any]],
    own: Sequence[Reading],
    ref: Sequence[Reading],
    step: int,
    max_steps: int,
) -> list[Tensor]:
    """(T,) of each completion, as a trainer that had these for its rollout batch would hold it."""
    if anchor.guide is None:
        return [torch.zeros_like(reading.logps) for reading in own]
    pad = partial(pad_sequence, batch_first=True)
    lengths = torch.tensor([len(reading.logps) for reading in own])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T)
    if anchor.drops_truncated:
        mask &= torch.tensor([s["finish"] != "length" for s in samples])[:, None]
    signals = Signals(
        logps=pad([r.logps for r in own]),
        ref_logps=pad([r.logps for r in ref]),
        mask=mask,
        entropies=pad([r.entropies for r in own]),
        ref_entropies=pad([r.entropies for r in ref]),
        step=step,
        max_steps=max_steps,
        generator=torch.Generator().manual_seed(anchor.seed),
        rows=torch.tensor([_address(s) for s in samples]),
        rewards=torch.tensor([_reward(s) for s in samples]),
    )
    shapes = anchor.guide(signals)  # (B, T)
    if anchor.centred:
        shapes = torch.where(mask, shapes - shapes.sum() / mask.sum().clamp(min=1), 0.0)
    return [row[:length] for row, length in zip(shapes, lengths.tolist())]


def _reward(sample: dict[str, Any]) -> float:
    """The verdict, a share of 1 where the task gives shares; 0 where it was cut off before an answer."""
    return float(sample["verdict"]) if sample["right"] or sample["verdict"] < 1 else 0.0


def _address(sample: dict[str, Any]) -> int:
    """A stochastic guide's noise is the sample's own, whoever else is traced."""
    key = tuple(sample[k] for k in KEYS)
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=7).digest(), "big")
