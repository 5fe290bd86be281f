"""In the place of a trainer's own fused head: same arguments, same answers, and theirs for what this one does not cover.

TRL 1.16 calls one function, ``trl.trainer.utils._ChunkedLogProbFunction.apply``, for every log-prob. A :class:`Head` has that
method; :func:`in_place` lends it to the module for the length of one pass, so that other trainers in the process keep theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.head.functions import logps_and_entropies

COVERED = frozenset({"log_probs", "entropy"})
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
FIRST_TORCH = (2, 8)  # a bf16 product with float32 results


def covers(model: Any) -> str | None:
    """Why this head cannot stand in for the trainer's on ``model``; None if it can."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor):
        return f"{type(model).__name__} has no output layer with a weight"
    return not_covered(weight)


def not_covered(weight: Tensor, outputs: tuple[str, ...] = ("log_probs", "entropy")) -> str | None:
    if set(outputs) - COVERED:
        return f"{', '.join(sorted(set(outputs) - COVERED))} is asked for, and only log_probs and entropy are computed"
    if hasattr(weight, "ds_id"):
        return "its weight is partitioned by DeepSpeed ZeRO-3, which must gather it in the backward"
    if weight.dtype not in FLOATS or (weight.dim() != 2 and not hasattr(weight, "full_tensor")):
        return f"its weight is {weight.dtype} with {weight.dim()} dimensions: quantised output layers are not covered"
    if weight.device.type not in ("cpu", "cuda", "meta"):
        return f"it lies on {weight.device.type}; cpu and cuda are covered"
    if weight.is_cuda and tuple(int(part) for part in torch.__version__.split(".")[:2]) < FIRST_TORCH:
        return f"torch {torch.__version__} has no bf16 product with float32 results (2.8 has)"
    return None


class Head:
    """``apply`` with the arguments of TRL's ``ChunkedLogProbFunction`` and its five answers, of which two may be asked for.

    ``theirs`` is that function: it answers where this head does not cover a call, and ``reasons`` says why it had to.
    ``entropy_grad`` must be on where the loss has an entropy term; without, the entropies carry no gradient.
    """

    def __init__(self, theirs: Any, *, entropy_grad: bool = False):
        self.theirs, self.entropy_grad = theirs, entropy_grad
        self.reasons: set[str] = set()

    def apply(
        self,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias: Tensor | None,
        targets_N: Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        outputs: tuple[str, ...] = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1"),
    ) -> tuple[Tensor, Tensor | None, None, None, None] | Any:
        reason = not_covered(weight_VD, outputs)
        if reason is not None:
            self.reasons.add(reason)
            return self.theirs.apply(
                hidden_ND, weight_VD, bias, targets_N, temperature, chunk_size, softcap, logit_scale, outputs
            )
        entropy = "entropy" in outputs
        logps, entropies = logps_and_entropies(
            hidden_ND,
            weight_VD,
            targets_N,
            bias=bias,
            temperature=temperature,
            softcap=softcap,
            logit_scale=logit_scale,
            entropy=entropy,
            entropy_grad=entropy and self.entropy_grad,
        )
        return logps, entropies, None, None, None


@contextmanager
def in_place(module: Any, ours: Any, name: str = "_ChunkedLogProbFunction") -> Iterator[None]:
    """``ours`` under ``module.name`` inside the block; None leaves theirs."""
    if ours is None:
        yield
        return
    theirs = getattr(module, name)
    setattr(module, name, ours)
    try:
        yield
    finally:
        setattr(module, name, theirs)
