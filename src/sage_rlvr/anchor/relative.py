"""Guides of our own: a gate that moves with the batch's entropies, and a tempered anchor that pays for no state.

A fixed τ opens less and less often as the policy loses entropy, and it must be found anew for every model. Here τ is the
p-quantile of the entropies of the counted tokens that the guide is called with, so that a share 1 − p of them is gated
whatever the model. The guide is called with one process's rows (a slice of them where a rollout batch is cut into
micro-batches and no pass over the sampling policy is made), so ranks have each a τ of their own, all of them estimates of
the same quantile; with guide_center="batch" it always sees the whole of a process's rollout batch.
"""

from torch import Tensor

from sage_rlvr.anchor.guides import (
    _SOURCES,
    Guide,
    Signals,
    _check_clamp,
    _choice,
    _not_negative,
    _quantiles,
    register_guide,
)
from sage_rlvr.errors import UserError


class _QuantileGate(Guide):
    """ρ·max(0, H − τ), τ the batch's p-quantile of H."""

    past_only = False  # τ looks at every token of the batch, the later ones of this completion too
    ratio: float
    quantile: float
    source: str

    def _set_gate(self, ratio: float, quantile: float, source: str) -> None:
        _not_negative(ratio=ratio)
        if not 0 <= quantile < 1:
            raise UserError(f"quantile={quantile} must lie in [0, 1): 0.8 gates the fifth of the tokens least certain.")
        self.ratio, self.quantile = ratio, quantile
        self.source = _choice("source", source, tuple(_SOURCES))
        self.needs = frozenset({_SOURCES[source]})

    def _excess(self, s: Signals) -> Tensor:
        h: Tensor = getattr(s, _SOURCES[self.source])
        threshold = _quantiles(h.reshape(1, -1), s.mask.reshape(1, -1), self.quantile)  # (1, 1)
        return self.ratio * (h - threshold).clamp(min=0)


@register_guide("branch-quantile")
class BranchQuantileGuide(_QuantileGate):
    """Eq. 11 with a relative gate: q = 1 + ρ·max(0, H − τ), τ the p-quantile of the batch's entropies.

    Like ``branch`` it depends on the state, not on the token: under k2 and k3+ its expected gradient is zero.
    """

    token_dependent = False

    def __init__(
        self,
        ratio: float = 0.3,
        quantile: float = 0.8,
        q_min: float = 0.6,
        q_max: float = 1.4,
        source: str = "policy",
    ):
        _check_clamp(q_min, q_max)
        self.q_min, self.q_max = q_min, q_max
        self._set_gate(ratio, quantile, source)

    def log_q(self, s: Signals) -> Tensor:
        return (1 + self._excess(s)).clamp(self.q_min, self.q_max).log()


@register_guide("tempered-quantile")
class TemperedQuantileGuide(_QuantileGate):
    """log q = κ·(−log π_ref(y_t)), κ = min(κ_max, ρ·max(0, H − τ)), τ the p-quantile of the batch's entropies.

    ``level``: log q = κ·(−log π_ref(y_t) − H_ref) instead, whose mean over π_ref's own choices is 0 in every state: to first
    order in κ it is π_ref^(1−κ) normalised, so that an uncertain state earns nothing for being one, nor length for being long.
    """

    def __init__(
        self,
        ratio: float = 0.5,
        quantile: float = 0.8,
        kappa_max: float = 0.5,
        source: str = "policy",
        level: bool = False,
    ):
        if not 0 < kappa_max <= 1:
            raise UserError(f"kappa_max={kappa_max} must lie in (0, 1]: at 1 the anchor is flat, above it is inverted.")
        self.kappa_max, self.level = kappa_max, level
        self._set_gate(ratio, quantile, source)
        if level:
            self.needs |= {"ref_entropies"}

    def log_q(self, s: Signals) -> Tensor:
        surprisal = -s.ref_logps
        if self.level:
            assert s.ref_entropies is not None  # it is among the needs
            surprisal = surprisal - s.ref_entropies
        return self._excess(s).clamp(max=self.kappa_max) * surprisal
