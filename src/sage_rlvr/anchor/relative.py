"""Guides of our own: a gate that moves with the batch's entropies, and a tempered anchor that pays for no state.

A fixed τ opens less and less often as the policy loses entropy, and it must be found anew for every model. Here τ is the
p-quantile of the entropies of the counted tokens that the guide is called with, so that a share 1 − p of them is gated
whatever the model. That is the whole rollout batch, of all processes: ``across_rows`` asks for it, so that neither the number
of processes nor the cut into micro-batches moves τ.
"""

from torch import Tensor

from sage_rlvr.anchor.guides import BranchGuide, Signals, TemperedGuide, quantiles, register_guide
from sage_rlvr.errors import UserError


def _batch_tau(h: Tensor, mask: Tensor, quantile: float) -> Tensor:
    """(1, 1) the quantile over every counted token of the batch."""
    return quantiles(h.reshape(1, -1), mask.reshape(1, -1), quantile)[0]


def _share(quantile: float) -> float:
    if not 0 <= quantile < 1:
        raise UserError(f"quantile={quantile} must lie in [0, 1): 0.8 gates the fifth of the tokens least certain.")
    return quantile


@register_guide("branch-quantile")
class BranchQuantileGuide(BranchGuide):
    """Eq. 11 with a relative gate: q = 1 + ρ·max(0, H − τ), τ a quantile of the batch's entropies.

    Like ``branch`` it depends on the state, not on the token: under k2 and k3+ its expected gradient is zero.
    """

    past_only = False  # τ looks at every token of the batch, the later ones of this completion too
    across_rows = True

    def __init__(
        self, ratio: float = 0.3, quantile: float = 0.8, q_min: float = 0.6, q_max: float = 1.4, source: str = "policy"
    ):
        super().__init__(ratio, q_min=q_min, q_max=q_max, source=source)
        self.quantile = _share(quantile)

    def tau(self, h: Tensor, mask: Tensor) -> Tensor:
        return _batch_tau(h, mask, self.quantile)


@register_guide("tempered-quantile")
class TemperedQuantileGuide(TemperedGuide):
    """log q = κ·(−log π_ref(y_t)), κ = min(κ_max, ρ·max(0, H − τ)), τ a quantile of the batch's entropies.

    ``level``: log q = κ·(−log π_ref(y_t) − H_ref) instead, whose mean over π_ref's own choices is 0 in every state: to first
    order in κ it is π_ref^(1−κ) normalised, so that an uncertain state earns nothing for being one, nor length for being long.
    """

    past_only = False
    across_rows = True

    def __init__(
        self,
        ratio: float = 0.5,
        quantile: float = 0.8,
        kappa_max: float = 0.5,
        source: str = "policy",
        level: bool = False,
    ):
        super().__init__(ratio, kappa_max=kappa_max, source=source)
        self.quantile, self.level = _share(quantile), level
        if level:
            self.needs |= {"ref_entropies"}

    def tau(self, h: Tensor, mask: Tensor) -> Tensor:
        return _batch_tau(h, mask, self.quantile)

    def log_q(self, s: Signals) -> Tensor:
        if not self.level:
            return super().log_q(s)
        assert s.ref_entropies is not None  # it is among the needs
        return self.kappa(s) * (-s.ref_logps - s.ref_entropies)
