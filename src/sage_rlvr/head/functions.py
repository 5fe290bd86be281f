"""Log-probs and entropies of targets under softmax(hidden @ weightᵀ), the logits seen a tile at a time and never stored.

The gradient of log π(y) with respect to its hidden state, (W[y] − Σ_v p_v·W_v)/T, does not depend on the loss. Where the head
is frozen (LoRA), the forward pass computes that one vector a token beside the log-prob: two matrix passes, and a backward that
scales rows. Where the head learns, the backward needs the loss's weights before it can sum over tokens: the exponentials of the
forward pass wait for it while they fit (``tiles.KEPT``), one product more. Beyond that, and for an entropy bonus, whose gradient
mixes with the other, it computes the logits again, tile by tile (three passes, four with the weight's gradient).
"""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sage_rlvr.errors import UserError
from sage_rlvr.head import softmax as in_torch
from sage_rlvr.head import tiles
from sage_rlvr.head.softmax import Rows, Shape, Softmax, limit
from sage_rlvr.head.tiles import Tiles, frozen_tiles, multiprocessors, product, reading_tiles, square_tiles


@dataclass(frozen=True)
class Settings:
    shape: Shape
    entropy: bool
    entropy_grad: bool
    dtype: torch.dtype  # of the factors: the hidden states', or autocast's
    tiles: Tiles | None

    @property
    def sums(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32


def logps_and_entropies(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask_N: Tensor | None = None,
    entropy: bool = True,
    entropy_grad: bool = False,
    chunk: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(log π(y), H(π)) per token, (N,) float32 each, for logits cap·tanh(scale·(h·Wᵀ + b)/cap)/T.

    Differentiable in ``hidden_ND``, and in ``weight_VD`` and ``bias`` where they ask for it; through the entropies only with
    ``entropy_grad``. Where ``mask_N`` is 0 both are 0 and nothing is computed: the target may be anything there. Without
    ``entropy`` the second is None. ``chunk`` is (tokens, vocabulary) of a tile; None chooses by bytes.
    """
    _check(hidden_ND, weight_VD, targets_N, bias, mask_N)
    if temperature <= 0 or (softcap is not None and softcap <= 0):
        raise UserError(f"temperature={temperature} and softcap={softcap} must be above 0.")
    if entropy_grad and not entropy:
        raise UserError("entropy_grad=True needs entropy=True.")
    device, total = hidden_ND.device.type, len(hidden_ND)
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
    shape = Shape(temperature, softcap, logit_scale)
    settings = Settings(shape, entropy, entropy_grad, dtype, None if chunk is None else Tiles(*chunk))
    if mask_N is not None:
        rows_n = mask_N.nonzero().squeeze(1)
        hidden_ND, targets_N = hidden_ND.index_select(0, rows_n), targets_N.index_select(0, rows_n)
    inputs = hidden_ND, weight_VD, bias, targets_N, settings
    learns = weight_VD.requires_grad or (bias is not None and bias.requires_grad)
    with torch.autocast(device, enabled=False):
        if not (torch.is_grad_enabled() and (learns or hidden_ND.requires_grad)):
            done = _read(*inputs)
            logps, entropies = done.logps, done.entropies
        elif entropy_grad or (learns and not _fits(hidden_ND, weight_VD, dtype)):
            logps, entropies = _Recomputed.apply(*inputs)
        else:
            logps, entropies = _Directed.apply(*inputs)
    if mask_N is not None:
        logps, entropies = (x.new_zeros(total).index_copy(0, rows_n, x) for x in (logps, entropies))
    return logps, entropies if entropy else None


def _fits(hidden: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """The head learns, and its exponentials may wait. Not in float16: over a large sum the rows' weights would be 0 there."""
    small = 0 < len(hidden) * len(weight) * dtype.itemsize <= tiles.KEPT
    return small and weight.requires_grad and hidden.requires_grad and dtype != torch.float16


def tile_functions(device: torch.device, dtype: torch.dtype) -> ModuleType:
    """``kernels`` (Triton) on CUDA, or anywhere under TRITON_INTERPRET=1; ``softmax`` (torch) elsewhere and for float64."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if dtype == torch.float64 or not (device.type == "cuda" or interpreted):
        return in_torch
    if importlib.util.find_spec("triton") is None:
        return in_torch
    from sage_rlvr.head import kernels

    return kernels


# ---- passes ------------------------------------------------------------------------------------------------------------


def _spans(total: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, step):
        yield start, min(start + step, total)


def _joined(parts: list[Softmax], like: Tensor, sums: torch.dtype) -> Softmax:
    if not parts:  # no position counts
        return Rows.new(0, like.device, sums).close()
    return Softmax(**{name: torch.cat([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def _read(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, settings: Settings) -> Softmax:
    """One matrix pass: the statistics alone."""
    n, vocab = len(targets), len(weight)
    cut = settings.tiles or reading_tiles(n, vocab)
    run = tile_functions(hidden.device, settings.dtype)
    tile_MC = torch.empty(cut.tokens, cut.vocab, device=hidden.device, dtype=settings.sums)
    options: dict[str, Any] = {"entropy": settings.entropy, "room": limit(settings.dtype)}
    parts = []
    for a, b in _spans(n, cut.tokens):
        hidden_MD = hidden[a:b].to(settings.dtype)
        rows = Rows.new(b - a, hidden.device, settings.sums)
        for c, d in _spans(vocab, cut.vocab):
            logits_MC = tile_MC[: b - a, : d - c]
            product(logits_MC, hidden_MD, weight[c:d].to(settings.dtype).t())
            bias_C = None if bias is None else bias[c:d]
            run.fold(logits_MC, bias_C, targets[a:b], c, rows, settings.shape, None, None, **options)
        parts.append(rows.close())
    return _joined(parts, hidden, settings.sums)


def _read_with_directions(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, settings: Settings, plane_nV: Tensor | None
) -> tuple[Softmax, Tensor]:
    """Two matrix passes: the statistics, and ∂logp/∂hidden of each token (n, D). ``plane_nV`` gets −∂logp/∂product, each row
    times its total ÷ gain; the second pass is then one product a span of tokens, whose sum is written once."""
    n, (vocab, width) = len(targets), weight.shape
    units = multiprocessors(hidden.device)
    cut = settings.tiles or frozen_tiles(n, vocab, width, settings.dtype.itemsize, units)
    run = tile_functions(hidden.device, settings.dtype)
    tile_MC = torch.empty(cut.tokens, cut.vocab, device=hidden.device, dtype=settings.sums)
    at_once = plane_nV is not None and weight.dtype == settings.dtype  # else the whole weight would be copied
    if plane_nV is None:
        exps_MC = torch.empty(cut.tokens, cut.vocab, device=hidden.device, dtype=settings.dtype)
    out_nD = torch.empty(n, width, device=hidden.device, dtype=settings.sums)
    options: dict[str, Any] = {"entropy": settings.entropy, "room": limit(settings.dtype)}
    parts = []
    for a, b in _spans(n, cut.tokens):
        hidden_MD, targets_M, sum_MD = hidden[a:b].to(settings.dtype), targets[a:b], out_nD[a:b]
        rows = Rows.new(b - a, hidden.device, settings.sums)
        for c, d in _spans(vocab, cut.vocab):
            logits_MC = tile_MC[: b - a, : d - c]
            e_MC = exps_MC[: b - a, : d - c] if plane_nV is None else plane_nV[a:b, c:d]
            weight_CD = weight[c:d].to(settings.dtype)
            product(logits_MC, hidden_MD, weight_CD.t())
            bias_C = None if bias is None else bias[c:d]
            before = sum_MD if c and not at_once else None
            run.fold(logits_MC, bias_C, targets_M, c, rows, settings.shape, e_MC, before, **options)
            if c and plane_nV is not None:
                run.rescale(plane_nV[a:b, :c], rows.factor)
            if not at_once:
                product(sum_MD, e_MC, weight_CD, add=c > 0)
        if at_once:
            product(sum_MD, plane_nV[a:b], weight)  # type: ignore[index]
        done = rows.close()
        slope = settings.shape.slope(done.target)
        run.directions(
            sum_MD, weight, targets_M, settings.shape.gain * done.miss * slope, settings.shape.gain / done.total
        )
        if plane_nV is not None:
            place = targets_M.clamp(0, vocab - 1).unsqueeze(1)
            own = torch.where(done.target.isnan(), done.target, -done.miss * done.total * slope)
            plane_nV[a:b].scatter_(1, place, own.to(plane_nV.dtype).unsqueeze(1))
        parts.append(done)
    return _joined(parts, hidden, settings.sums), out_nD


class _Directed(torch.autograd.Function):
    """Saves one vector a token: no logits, no weights. The vector stays in the float32 it was summed in: the gradient is rounded
    once, after the loss's weight is on it. Where the head ``learns`` the exponentials wait too, and one product with them is
    the gradient of the weight, another the bias's."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, settings: Settings
    ) -> tuple[Tensor, Tensor]:
        plane_nV = rest_n = None
        learns = any(ctx.needs_input_grad[1:3])
        if learns:
            n, vocab = len(targets), len(weight)
            stride = -(-vocab // 128) * 128  # products want aligned rows
            plane_nV = torch.empty(n, stride, device=hidden.device, dtype=settings.dtype)[:, :vocab]
        done, directions_nD = _read_with_directions(hidden, weight, bias, targets, settings, plane_nV)
        if learns:
            rest_n = -settings.shape.gain / done.total
        ctx.save_for_backward(directions_nD, plane_nV, rest_n, hidden if learns else None)
        ctx.settings, ctx.hidden = settings, hidden.dtype
        ctx.weight, ctx.bias = weight.dtype, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(done.entropies)
        return done.logps, done.entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights_n: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        directions_nD, plane_nV, rest_n, hidden_nD = ctx.saved_tensors
        d_hidden = torch.empty_like(directions_nD, dtype=ctx.hidden)
        torch.mul(directions_nD, weights_n.unsqueeze(1), out=d_hidden)
        d_weight = d_bias = None
        if plane_nV is not None:
            settings: Settings = ctx.settings
            pull_n1 = (rest_n * weights_n).unsqueeze(1)
            vocab, device = plane_nV.shape[1], plane_nV.device
            d_weight = torch.empty(vocab, hidden_nD.shape[1], device=device, dtype=ctx.weight)
            product(d_weight, plane_nV.t(), (pull_n1 * hidden_nD).to(settings.dtype))
            if ctx.needs_input_grad[2]:
                sums_V1 = torch.empty(vocab, 1, device=device, dtype=settings.sums)
                product(sums_V1, plane_nV.t(), pull_n1.to(settings.dtype))
                d_bias = sums_V1.squeeze(1).to(ctx.bias)
        return d_hidden, d_weight, d_bias, None, None


class _Recomputed(torch.autograd.Function):
    """Saves what it was given and five numbers per token. Gradients are summed in float32 and rounded once, at the end: the
    weight's by vocabulary tile, so that no float32 copy of the whole of it exists."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, settings: Settings
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        done = _read(hidden, weight, bias, targets, settings)
        ctx.save_for_backward(hidden, weight, bias, targets, done.reference, done.log_total, done.miss, done.entropies)
        ctx.settings = settings
        if not settings.entropy_grad:
            ctx.mark_non_differentiable(done.entropies)
        return done.logps, done.entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logps: Tensor | None, grad_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, reference, log_total, miss, entropies = ctx.saved_tensors
        settings: Settings = ctx.settings
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        n, (vocab, width) = len(targets), weight.shape
        sums, device = settings.sums, hidden.device
        cut = settings.tiles or square_tiles(n, vocab)
        run = tile_functions(device, settings.dtype)
        hidden_nD = hidden.to(settings.dtype)
        tile_MC = torch.empty(cut.tokens, cut.vocab, device=device, dtype=sums)
        grads_MC = torch.empty(cut.tokens, cut.vocab, device=device, dtype=settings.dtype)
        d_hidden = torch.zeros(n, width, device=device, dtype=sums) if wants_hidden else None
        d_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format) if wants_weight else None
        d_tile = torch.empty(min(cut.vocab, vocab), width, device=device, dtype=sums) if wants_weight else None
        d_bias = torch.zeros(vocab, device=device, dtype=sums) if wants_bias else None
        for c, d in _spans(vocab, cut.vocab):
            weight_CD = weight[c:d].to(settings.dtype)
            bias_C = None if bias is None else bias[c:d]
            for a, b in _spans(n, cut.tokens):
                logits_MC, grad_MC = tile_MC[: b - a, : d - c], grads_MC[: b - a, : d - c]
                product(logits_MC, hidden_nD[a:b], weight_CD.t())
                part = Softmax(reference[a:b], miss, log_total[a:b], miss[a:b], miss, miss, entropies[a:b])
                pulls = (None if x is None else x[a:b].to(sums).contiguous() for x in (grad_logps, grad_entropies))
                run.logit_gradients(grad_MC, logits_MC, bias_C, targets[a:b] - c, part, settings.shape, *pulls)
                if d_hidden is not None:
                    product(d_hidden[a:b], grad_MC, weight_CD, add=True)
                if d_tile is not None:
                    product(d_tile[: d - c], grad_MC.t(), hidden_nD[a:b], add=a > 0)
                if d_bias is not None:
                    d_bias[c:d] += grad_MC.sum(0, dtype=sums)
            if d_weight is not None and d_tile is not None and n:
                d_weight[c:d] = d_tile[: d - c]
        d_hidden = None if d_hidden is None else d_hidden.to(hidden.dtype)
        return d_hidden, d_weight, None if d_bias is None else d_bias.to(bias.dtype), None, None


# ---- what cannot work --------------------------------------------------------------------------------------------------


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, mask: Tensor | None) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise UserError(
            f"hidden_ND {tuple(hidden.shape)} and weight_VD {tuple(weight.shape)} must be (N, D) and (V, D) of one D."
        )
    n, vocab = len(hidden), len(weight)
    for name, tensor, length in (("targets_N", targets, n), ("mask_N", mask, n), ("bias", bias, vocab)):
        if tensor is not None and tuple(tensor.shape) != (length,):
            raise UserError(f"{name} has shape {tuple(tensor.shape)}; it must be ({length},).")
    if not targets.is_cuda:  # where looking costs nothing; on a GPU a target outside the vocabulary gives NaN instead
        counted = targets if mask is None else targets[mask.bool()]
        if bool(((counted < 0) | (counted >= vocab)).any()):
            raise UserError(f"a target that counts lies outside the vocabulary of {vocab}: leave it out with mask_N.")
