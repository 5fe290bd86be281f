"""One slice of the rollout buffer, forward and backward in micro-batches; loss, gradient and metrics are the whole slice's.

TRL's loss of a part is Σ over its rows or tokens ÷ the part's own normaliser. Times (the part's normaliser ÷ the slice's) the
parts' losses add up to the slice's: rows ÷ rows for means over sequences, tokens ÷ tokens for means over tokens, 1 where the
normaliser is the rollout batch's. ``WEIGHTS`` has it for every loss type of TRL 1.16.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor

from sage_rlvr.errors import UserError
from sage_rlvr.train import measure, rollouts
from sage_rlvr.train.config import WEIGHTS
from sage_rlvr.train.packing import Lengths, cut, lengths, most_of, select, split_to
from sage_rlvr.train.token_credit import PULL

EXTREMES = {"clip_ratio/low_min": -1, "clip_ratio/high_max": 1}  # the others are means
COLLECTIVES = ("gather", "gather_for_metrics", "reduce")


def check(trainer: Any) -> None:
    """What the config could not know: the model's own loss, and who counts backward passes."""
    if trainer.args.tokens_per_microbatch is None:
        return
    if trainer.aux_loss_enabled:
        raise UserError("tokens_per_microbatch with a router's load-balancing loss, which is no sum over micro-batches: set "
                        "router_aux_loss_coef=0, or leave tokens_per_microbatch unset.")  # fmt: skip
    refuse_deepspeed(trainer, "tokens_per_microbatch")


def refuse_deepspeed(trainer: Any, name: str) -> None:
    if trainer.accelerator.distributed_type == DistributedType.DEEPSPEED:
        raise UserError(
            f"{name} does not work with DeepSpeed, whose engine counts backward passes: use DDP or FSDP, or leave it unset."
        )


def backward_by_parts(trainer: Any, model: Any, inputs: dict[str, Any]) -> Tensor:
    """The slice's loss. All parts but the last have had their backward; the caller's backward on the answer is the last one's."""
    parts, sizes = parts_of(trainer, inputs)
    tally = Tally(trainer, inputs)
    before: Tensor | float = 0.0
    for number, rows in enumerate(parts[:-1]):
        with quiet(trainer, model):
            loss = tally.loss(model, select(inputs, rows, sizes) | {"sage_part": number}, rows)
            trainer.accelerator.backward(loss)
        before = before + loss.detach()
        del loss  # its graph, before the next one is built
    last = tally.loss(model, select(inputs, parts[-1], sizes) | {"sage_part": len(parts) - 1}, parts[-1])
    tally.record(parts, sizes)
    return last + before


def parts_of(trainer: Any, inputs: dict[str, Any]) -> tuple[list[list[int]], Lengths]:
    """Rows of each micro-batch, the same number of them on every rank; rows that weigh nothing are left out."""
    sizes, budget = lengths(inputs["prompt_mask"], inputs["completion_mask"]), trainer.args.tokens_per_microbatch
    everyone = range(len(inputs["completion_mask"]))
    spare: list[int] = []
    if trainer.args.skip_zero_advantage:
        weighs = rows_that_weigh(inputs, trainer.penalty_in_loss).tolist()
        spare = sorted((i for i in everyone if not weighs[i]), key=lambda i: -sizes.real([i]))
        if len(spare) == len(everyone):
            spare.pop()  # a backward pass needs a graph: the shortest row makes the cheapest one
    rows = sorted(set(everyone) - set(spare))
    parts = cut(sizes, rows, budget)
    if (widest := sizes.width(rows)) > budget:
        trainer.tell("over budget", f"a row of {widest} tokens is over tokens_per_microbatch={budget}: such rows run one at a "
                     "time.", every_rank=True)  # fmt: skip
    return split_to(parts, most_of(len(parts), trainer.accelerator), spare), sizes


def rows_that_weigh(inputs: dict[str, Any], penalty_in_loss: bool) -> Tensor:
    """(B,) False where a row adds nothing to loss or gradient: no counted token; or advantage 0 throughout and no token pulled
    back, where that is all that the loss has."""
    counted = rollouts.counted(inputs).bool()
    if penalty_in_loss:
        return counted.any(1)
    pushed = rollouts.advantages_BT(inputs) != 0
    if PULL in inputs:
        pushed = pushed | (inputs[PULL] != 0)
    return (pushed & counted).any(1)


def only_measured(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """In place of a collective while TRL computes one part's loss: the part's own numbers, to be logged and nothing else. What
    TRL exchanged for the loss itself would be wrong without a word, so a loss that is made with the answer stops the run."""

    def stop(gradient: Tensor | None = None) -> None:
        raise RuntimeError(
            "tokens_per_microbatch: this TRL exchanges numbers between processes inside its loss, and a loss in parts would be "
            "wrong. Use TRL 1.16, or leave tokens_per_microbatch unset."
        )

    if not tensor.is_floating_point():
        stop()  # TRL 1.16 logs no such numbers, and of a count nothing would tell where it goes
    alone = tensor.detach().requires_grad_()
    alone.register_hook(stop)  # called by the backward pass if the loss depends on it
    return alone


@contextmanager
def quiet(trainer: Any, model: Any) -> Iterator[None]:
    """Under DDP, gradients are exchanged once, with the last part. FSDP reduces each part's and keeps its share alone."""
    ddp = trainer.accelerator.distributed_type in (DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)
    with trainer.accelerator.no_sync(model) if ddp else nullcontext():
        yield


def counted_only(seen: measure.PerToken) -> measure.PerToken:
    """The N counted tokens of (B, T) tensors as (1, N), detached."""
    return measure.PerToken(*(None if x is None else x.detach()[seen.mask.bool()][None] for x in seen))  # type: ignore[arg-type]


class Tally:
    """Weighs the parts' losses, and makes one entry of their metrics: what the unsplit slice would have logged."""

    def __init__(self, trainer: Any, inputs: dict[str, Any]):
        self.trainer, self.rows = trainer, len(inputs["completion_mask"])
        self.row_tokens: list[int] = rollouts.counted(inputs).bool().sum(1).tolist()
        self.tokens = sum(self.row_tokens)
        # one clip decision per sequence, so that TRL's mean is over rows
        self.clips_rows = trainer.importance_sampling_level == "sequence" and inputs["advantages"].dim() == 1
        self.parts: list[tuple[int, int, float, dict[str, float]]] = []  # rows, tokens, weight, metrics of each
        self.measured: list[measure.PerToken] = []  # per-token tensors of each part, for our own metrics

    def loss(self, model: Any, part: dict[str, Any], which: list[int]) -> Tensor:
        rows, tokens = len(which), sum(self.row_tokens[i] for i in which)
        share = max(tokens, 1) / max(self.tokens, 1)  # of the counted tokens
        weight = {"rows": rows / self.rows, "tokens": share, "batch": 1.0}[WEIGHTS[self.trainer.loss_type]]
        with self._alone(share / weight) as metrics:
            loss = self.trainer._compute_loss(model, part) * weight
        self.parts.append((rows, tokens, weight, {name: values[-1] for name, values in metrics.items()}))
        return loss

    @contextmanager
    def _alone(self, entropy_factor: float) -> Iterator[dict[str, list[float]]]:
        """This part's metrics, of this rank: parts differ in rows between ranks, so none may be gathered one by one. The entropy
        bonus is a mean over tokens whatever the loss type is, so its coefficient has a factor of its own."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        metrics: dict[str, list[float]] = defaultdict(list)
        before = trainer._metrics["train"], trainer.entropy_coef
        trainer._metrics["train"], trainer.measured = metrics, self.measured
        trainer.entropy_coef = trainer.entropy_coef * entropy_factor
        for name in COLLECTIVES:
            setattr(accelerator, name, only_measured)
        try:
            yield metrics
        finally:
            for name in COLLECTIVES:
                delattr(accelerator, name)
            trainer.measured = None
            trainer._metrics["train"], trainer.entropy_coef = before

    def record(self, parts: list[list[int]], sizes: Lengths) -> None:
        """Over the rows that ran. Means weighted as TRL weights them, by tokens or by rows; over all ranks."""
        columns: list[Any] = [None if column[0] is None else torch.cat(column, dim=1) for column in zip(*self.measured)]
        values = {name: self._merged(name) for name in self.parts[0][3]}
        values |= measure.step(measure.PerToken(*columns), self.trainer.accelerator)
        ran, real = sum(map(len, parts)), sum(map(sizes.real, parts))
        ours = [len(parts), 1 - real / sizes.padded(parts), 1 - ran / self.rows]
        names = ("sage/microbatches", "sage/padding", "sage/rows_skipped")
        self.trainer.log_values(values | dict(zip(names, self._over_ranks(ours, "mean"))))

    def _merged(self, name: str) -> float:
        values = torch.tensor([metrics[name] for *_, metrics in self.parts], dtype=torch.float64)
        if name == "entropy_coef":
            return self.trainer.entropy_coef
        if name == "policy_loss":
            weights = torch.tensor([weight for _, _, weight, _ in self.parts], dtype=torch.float64)
            return self._over_ranks([float((values * weights).sum())], "mean")[0]
        if sign := EXTREMES.get(name):
            known = (sign * values).nan_to_num(-torch.inf).max()
            most = sign * self._over_ranks([float(known)], "max")[0]
            return most if abs(most) != float("inf") else float("nan")
        by_rows = name == "vespo/phi_seq_mean" or (name.startswith(("clip_", "cispo_")) and self.clips_rows)
        counts = torch.tensor([rows if by_rows else tokens for rows, tokens, *_ in self.parts], dtype=torch.float64)
        total, count = self._over_ranks([float((values * counts).sum()), float(counts.sum())], "sum")
        return total / max(count, 1.0)

    def _over_ranks(self, values: list[float], how: str) -> list[float]:
        accelerator = self.trainer.accelerator
        if accelerator.num_processes == 1:
            return values
        everyone = accelerator.gather(torch.tensor([values], device=accelerator.device))  # (W, values)
        return {"sum": everyone.sum(0), "mean": everyone.mean(0), "max": everyone.amax(0)}[how].tolist()
