"""Softmax statistics of rows whose logits are seen a tile at a time, in torch; ``kernels.py`` has the same in Triton.

With logits x, reference r (any number near the row's maximum) and target y, a row needs

    mass   = Σ_{v≠y} exp(x_v − r)             moment = Σ_{v≠y} exp(x_v − r)·(x_v − r)             x_y

The target is kept apart so that 1 − p_y, and with it a log-prob near 0 and its gradient, keep their relative precision: as
1 − exp(·) they would drown in rounding where the policy is sure. The reference moves only when a logit passes it by more
than ``limit``: float exponents have room for that, and rows that keep theirs need no rescaling of what was summed so far.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

UNSET = -1e30  # the reference of a row no tile of which was seen


@dataclass(frozen=True)
class Shape:
    """From the head's product a to the logit: x = cap·tanh(scale·a/cap)/T, or scale·a/T without a cap."""

    temperature: float
    softcap: float | None
    logit_scale: float

    @property
    def gain(self) -> float:
        return self.logit_scale / self.temperature

    def logits(self, product: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x and, under a cap, 1 − tanh² = dx/da ÷ gain."""
        a = product if bias is None else product + bias.to(product.dtype)
        if self.softcap is None:
            return a * self.gain, None
        t = torch.tanh(a * (self.logit_scale / self.softcap))
        return t * (self.softcap / self.temperature), (1 - t) * (1 + t)

    def slope(self, logits: Tensor) -> Tensor | float:
        """dx/da ÷ gain, from x."""
        if self.softcap is None:
            return 1.0
        t = logits * (self.temperature / self.softcap)
        return (1 - t) * (1 + t)


@dataclass
class Rows:
    """Running statistics, each (N,) float32 (float64 for float64 inputs)."""

    reference: Tensor
    mass: Tensor
    moment: Tensor
    target: Tensor  # x_y; NaN until its tile was seen, so that a target outside the vocabulary is not overlooked
    factor: Tensor  # what the latest tile multiplied the sums so far with; 1 where the reference stayed

    @staticmethod
    def new(n: int, device: torch.device, dtype: torch.dtype) -> "Rows":
        def full(value: float) -> Tensor:
            return torch.full((n,), value, device=device, dtype=dtype)

        return Rows(full(UNSET), full(0.0), full(0.0), full(float("nan")), full(1.0))

    def close(self) -> "Softmax":
        gap = self.target - self.reference
        e = gap.exp()
        total = self.mass + e
        log_total = total.log()
        logps = torch.where(e > self.mass, -torch.log1p(self.mass / e), gap - log_total)
        own = torch.where(e == 0, 0.0, e * gap)  # 0·−inf for a target that is ruled out
        entropies = (log_total - (self.moment + own) / total).clamp(min=0)
        return Softmax(self.reference, total, log_total, self.mass / total, self.target, logps, entropies)


@dataclass
class Softmax:
    """What is known of a row once all its tiles were seen, each (N,)."""

    reference: Tensor
    total: Tensor  # Σ_v exp(x_v − r)
    log_total: Tensor
    miss: Tensor  # 1 − p_y
    target: Tensor  # x_y
    logps: Tensor
    entropies: Tensor


def limit(dtype: torch.dtype) -> float:
    """How far a logit may pass the reference: exp(40) is far from float32's and bf16's end, exp(8) from float16's."""
    return 8.0 if dtype == torch.float16 else 40.0


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
    """One tile, whose first column is ``first``, into the statistics. ``kept_MC`` gets exp(x − r)·slope, 0 at the target;
    ``sum_MD``, what earlier tiles added up to, is rescaled in rows whose reference moves."""
    local_M = targets_M - first
    x, slope = shape.logits(product_MC, bias_C)
    best = x.amax(1)
    reference = torch.where(best - rows.reference > room, best, rows.reference)
    gap = x - reference.unsqueeze(1)
    e = gap.exp()
    columns = x.shape[1]
    inside = (local_M >= 0) & (local_M < columns)
    place = local_M.clamp(0, columns - 1).unsqueeze(1)
    rows.target.copy_(torch.where(inside, x.gather(1, place).squeeze(1), rows.target))
    e.scatter_(1, place, torch.where(inside.unsqueeze(1), 0.0, e.gather(1, place)))
    shift = rows.reference - reference
    factor = shift.exp()
    if entropy:
        lean = torch.where(e == 0, 0.0, e * gap).sum(1)
        rows.moment.copy_(factor * (rows.moment + rows.mass * shift) + lean)
    rows.mass.mul_(factor).add_(e.sum(1))
    rows.factor.copy_(factor)
    rows.reference.copy_(reference)
    if kept_MC is not None:
        kept_MC.copy_(e if slope is None else e * slope)
    if sum_MD is not None:
        rescale(sum_MD, factor)


def rescale(sum_MD: Tensor, factor_M: Tensor) -> None:
    sum_MD.mul_(factor_M.unsqueeze(1))


def directions(sum_MD: Tensor, weight_VD: Tensor, targets_M: Tensor, own_M: Tensor, rest_M: Tensor) -> None:
    """∂logp/∂hidden = own·W[y] − rest·Σ_{v≠y} exp(x_v − r)·slope_v·W_v, in the place of that sum."""
    chosen = weight_VD.index_select(0, targets_M).to(sum_MD.dtype)
    sum_MD.mul_(-rest_M.unsqueeze(1)).add_(own_M.unsqueeze(1) * chosen)


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
    """∂loss/∂product of one tile: dlogp/dx_v = 1[v=y] − p_v and dH/dx_v = −p_v·(log p_v + H)."""
    x, slope = shape.logits(product_MC, bias_C)
    logp = (x - softmax.reference.unsqueeze(1)) - softmax.log_total.unsqueeze(1)
    p = logp.exp()
    columns = x.shape[1]
    grad = torch.zeros_like(x)
    if grad_logps_M is not None:
        inside = ((local_M >= 0) & (local_M < columns)).unsqueeze(1)
        place = local_M.clamp(0, columns - 1).unsqueeze(1)
        own = torch.where(inside, softmax.miss.unsqueeze(1), -p.gather(1, place))
        grad += grad_logps_M.unsqueeze(1) * (-p).scatter(1, place, own)
    if grad_entropies_M is not None:
        lean = torch.where(p == 0, 0.0, p * (logp + softmax.entropies.unsqueeze(1)))
        grad -= grad_entropies_M.unsqueeze(1) * lean
    grad *= shape.gain
    out_MC.copy_(grad if slope is None else grad * slope)
