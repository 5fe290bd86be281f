"""The tile functions of ``softmax.py`` as Triton kernels: one read and one write of a tile, everything else in registers.

``_fold`` is one program per row. It takes the exponentials against the reference the row already has, so it need not know
the tile's maximum first; a row whose logits pass the reference by more than the limit (and every row in its first tile) is
read a second time, out of the L2 cache, and its sum so far is rescaled.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sage_rlvr.head.softmax import Rows, Shape, Softmax

# To be tuned on the GPU: columns a program holds at a time, and the warps that share them.
FOLD_BLOCK, FOLD_WARPS = 2048, 8
GRAD_BLOCK, GRAD_WARPS = 2048, 8
ROW_BLOCK, ROW_WARPS = 1024, 4

NEVER_SEEN: tl.constexpr = tl.constexpr(-1e29)  # above softmax.UNSET, under any logit
LOWEST: tl.constexpr = tl.constexpr(-1e30)  # softmax.UNSET


@triton.jit
def _logits(row_ptr, bias_ptr, columns, valid, pre, post, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr):
    a = tl.load(row_ptr + columns, mask=valid, other=0.0)
    if HAS_BIAS:
        a += tl.load(bias_ptr + columns, mask=valid, other=0.0).to(tl.float32)
    if HAS_CAP:
        half = tl.sigmoid(a * pre)  # tanh(z) = 2σ(2z) − 1, and 1 − tanh² = 4σ(1 − σ); pre = 2·scale/cap, post = cap/T
        x = (2.0 * half - 1.0) * post
        slope = 4.0 * half * (1.0 - half)
    else:
        x = a * post  # post = scale/T
        slope = a * 0.0 + 1.0
    return tl.where(valid, x, -float("inf")), slope


@triton.jit
def _highest(row_ptr, bias_ptr, n, pre, post, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr):
    best = tl.full((BLOCK,), LOWEST, tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x, _ = _logits(row_ptr, bias_ptr, columns, columns < n, pre, post, HAS_BIAS, HAS_CAP)
        best = tl.maximum(best, x)
    return tl.max(best, axis=0)


@triton.jit
def _sweep(
    row_ptr, kept_ptr, bias_ptr, n, target, reference, pre, post,
    HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, KEEP: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    top = tl.full((BLOCK,), LOWEST, tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    moment = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        valid = columns < n
        x, slope = _logits(row_ptr, bias_ptr, columns, valid, pre, post, HAS_BIAS, HAS_CAP)
        gap = x - reference
        top = tl.maximum(top, gap)
        e = tl.where(columns == target, 0.0, tl.exp(gap))
        mass += e
        if ENTROPY:
            moment += tl.where(e == 0.0, 0.0, e * gap)
        if KEEP:
            if HAS_CAP:
                tl.store(kept_ptr + columns, (e * slope).to(kept_ptr.dtype.element_ty), mask=valid)
            else:
                tl.store(kept_ptr + columns, e.to(kept_ptr.dtype.element_ty), mask=valid)
    return tl.max(top, axis=0), tl.sum(mass, axis=0), tl.sum(moment, axis=0)


@triton.jit(do_not_specialize=["first"])
def _fold(
    product_ptr, product_stride, kept_ptr, kept_stride, bias_ptr, targets_ptr, first, sum_ptr, sum_stride, width,
    reference_ptr, mass_ptr, moment_ptr, target_ptr, factor_ptr, n, pre, post, room,
    HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, KEEP: tl.constexpr, SUM: tl.constexpr, ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    row_ptr = product_ptr + row * product_stride
    out_ptr = kept_ptr + row * kept_stride
    target = tl.load(targets_ptr + row) - first
    before = tl.load(reference_ptr + row)
    reference = before
    if before < NEVER_SEEN:
        reference = _highest(row_ptr, bias_ptr, n, pre, post, HAS_BIAS, HAS_CAP, BLOCK)
    top, mass, moment = _sweep(
        row_ptr, out_ptr, bias_ptr, n, target, reference, pre, post, HAS_BIAS, HAS_CAP, KEEP, ENTROPY, BLOCK
    )  # fmt: skip
    if top > room:
        reference = reference + top
        top, mass, moment = _sweep(
            row_ptr, out_ptr, bias_ptr, n, target, reference, pre, post, HAS_BIAS, HAS_CAP, KEEP, ENTROPY, BLOCK
        )  # fmt: skip
    shift = before - reference
    factor = tl.exp(shift)
    mass_before = tl.load(mass_ptr + row)
    if ENTROPY:
        tl.store(moment_ptr + row, factor * (tl.load(moment_ptr + row) + mass_before * shift) + moment)
    tl.store(mass_ptr + row, factor * mass_before + mass)
    tl.store(factor_ptr + row, factor)
    tl.store(reference_ptr + row, reference)
    if (target >= 0) & (target < n):
        x, _ = _logits(row_ptr, bias_ptr, target, target < n, pre, post, HAS_BIAS, HAS_CAP)
        tl.store(target_ptr + row, x)
    if SUM:
        _rescale_row(sum_ptr + row * sum_stride, factor, width, ROW)


@triton.jit
def _rescale_row(row_ptr, factor, width, BLOCK: tl.constexpr):
    if factor != 1.0:
        for start in range(0, width, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            tl.store(row_ptr + columns, tl.load(row_ptr + columns, mask=columns < width) * factor, mask=columns < width)


@triton.jit
def _rescale(sum_ptr, sum_stride, factor_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    _rescale_row(sum_ptr + row * sum_stride, tl.load(factor_ptr + row), width, BLOCK)


@triton.jit
def _directions(
    sum_ptr, sum_stride, weight_ptr, weight_stride, weight_step, targets_ptr, own_ptr, rest_ptr,
    vocab, width, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < width
    # a target outside the vocabulary has a NaN log-prob (softmax.Rows) and a NaN here; what is read must still exist
    y = tl.minimum(tl.maximum(tl.load(targets_ptr + row).to(tl.int64), 0), vocab - 1)
    chosen = tl.load(weight_ptr + y * weight_stride + columns * weight_step, mask=valid, other=0.0).to(tl.float32)
    ptrs = sum_ptr + row * sum_stride + columns
    summed = tl.load(ptrs, mask=valid, other=0.0)
    tl.store(ptrs, tl.load(own_ptr + row) * chosen - tl.load(rest_ptr + row) * summed, mask=valid)


@triton.jit
def _logit_gradients(
    out_ptr, out_stride, product_ptr, product_stride, bias_ptr, local_ptr, reference_ptr, log_total_ptr, miss_ptr,
    entropy_ptr, grad_logp_ptr, grad_entropy_ptr, n, pre, post, gain,
    HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, LOGP: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < n
    x, slope = _logits(product_ptr + row * product_stride, bias_ptr, columns, valid, pre, post, HAS_BIAS, HAS_CAP)
    logp = (x - tl.load(reference_ptr + row)) - tl.load(log_total_ptr + row)
    p = tl.exp(logp)
    grad = tl.zeros((BLOCK,), tl.float32)
    if LOGP:
        own = columns == tl.load(local_ptr + row)
        grad += tl.load(grad_logp_ptr + row) * tl.where(own, tl.load(miss_ptr + row), -p)
    if ENTROPY:
        lean = tl.where(p == 0.0, 0.0, p * (logp + tl.load(entropy_ptr + row)))
        grad -= tl.load(grad_entropy_ptr + row) * lean
    grad = grad * gain
    if HAS_CAP:
        grad = grad * slope
    tl.store(out_ptr + row * out_stride + columns, grad.to(out_ptr.dtype.element_ty), mask=valid)


# ---- launches: the signatures of softmax.py ----------------------------------------------------------------------------


def _constants(shape: Shape) -> tuple[float, float]:
    if shape.softcap is None:
        return 0.0, shape.gain
    return 2 * shape.logit_scale / shape.softcap, shape.softcap / shape.temperature


def fold(
    product_MC: Tensor,
    bias_C: Tensor | None,
    targets_M: Tensor,
    first: int,
    rows: Rows,
    shape: Shape,
    kept_MC: Tensor | None,
    sum_MD: Tensor | None,
    *,
    entropy: bool,
    room: float,
) -> None:
    kept, total = (product_MC if x is None else x for x in (kept_MC, sum_MD))
    _fold[(product_MC.shape[0],)](
        product_MC, product_MC.stride(0), kept, kept.stride(0), product_MC if bias_C is None else bias_C, targets_M, first,
        total, total.stride(0), total.shape[1], rows.reference, rows.mass, rows.moment, rows.target, rows.factor,
        product_MC.shape[1], *_constants(shape), room,
        HAS_BIAS=bias_C is not None, HAS_CAP=shape.softcap is not None, KEEP=kept_MC is not None, SUM=sum_MD is not None,
        ENTROPY=entropy, BLOCK=FOLD_BLOCK, ROW=ROW_BLOCK, num_warps=FOLD_WARPS,
    )  # fmt: skip


def rescale(sum_MD: Tensor, factor_M: Tensor) -> None:
    rows, width = sum_MD.shape
    _rescale[(rows,)](sum_MD, sum_MD.stride(0), factor_M, width, BLOCK=ROW_BLOCK, num_warps=ROW_WARPS)


def directions(sum_MD: Tensor, weight_VD: Tensor, targets_M: Tensor, own_M: Tensor, rest_M: Tensor) -> None:
    rows, width = sum_MD.shape
    _directions[(rows, triton.cdiv(width, ROW_BLOCK))](
        sum_MD, sum_MD.stride(0), weight_VD, *weight_VD.stride(), targets_M, own_M, rest_M, weight_VD.shape[0], width,
        BLOCK=ROW_BLOCK, num_warps=ROW_WARPS,
    )  # fmt: skip


def logit_gradients(
    out_MC: Tensor,
    product_MC: Tensor,
    bias_C: Tensor | None,
    local_M: Tensor,
    softmax: Softmax,
    shape: Shape,
    grad_logps_M: Tensor | None,
    grad_entropies_M: Tensor | None,
) -> None:
    rows, n = product_MC.shape
    unused: torch.Tensor = softmax.miss
    _logit_gradients[(rows, triton.cdiv(n, GRAD_BLOCK))](
        out_MC, out_MC.stride(0), product_MC, product_MC.stride(0), product_MC if bias_C is None else bias_C, local_M,
        softmax.reference, softmax.log_total, softmax.miss, softmax.entropies,
        unused if grad_logps_M is None else grad_logps_M, unused if grad_entropies_M is None else grad_entropies_M,
        n, *_constants(shape), shape.gain,
        HAS_BIAS=bias_C is not None, HAS_CAP=shape.softcap is not None,
        LOGP=grad_logps_M is not None, ENTROPY=grad_entropies_M is not None, BLOCK=GRAD_BLOCK, num_warps=GRAD_WARPS,
    )  # fmt: skip
