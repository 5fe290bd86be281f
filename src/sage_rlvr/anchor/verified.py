"""A guide of our own that looks at the reward: the anchor is tempered among right answers and nowhere else.

With log q(y) = −κ·r(y)·log π_ref(y), r the verified reward in [0, 1], the optimum of E[r] − β·KL(π ‖ q·π_ref) is

    π*(y) ∝ π_ref(y)^(1 − κ·r(y)) · exp(r(y)/β)

At κ = 1 right answers are equally likely, however rare they were, and wrong ones keep π_ref's proportions. Plain tempering
also flattens what is wrong, and pays for it in pass@1; rewarding right answers alone sharpens π_ref's favourites among them.
"""

from torch import Tensor

from sage_rlvr.anchor.guides import Guide, Signals, register_guide
from sage_rlvr.errors import UserError


@register_guide("verified")
class VerifiedGuide(Guide):
    """log q = κ·r·(−log π_ref(y_t)), r the completion's reward held in [0, 1]: a right answer earns more the rarer it was.

    ``level``: log q = κ·r·(−log π_ref(y_t) − H_ref) instead, so that a right answer earns nothing for being long.
    """

    past_only = False  # the reward comes at the end
    needs = frozenset({"rewards"})

    def __init__(self, kappa: float = 0.5, level: bool = False):
        if not 0 < kappa <= 1:
            raise UserError(
                f"kappa={kappa} must lie in (0, 1]: at 1 all right answers are equally likely at the optimum."
            )
        self.kappa, self.level = kappa, level
        if level:
            self.needs |= {"ref_entropies"}

    def log_q(self, s: Signals) -> Tensor:
        assert s.rewards is not None  # it is among the needs
        right = s.rewards.nan_to_num(0.0).clamp(0, 1)[:, None]  # NaN: nobody could say
        rare = -s.ref_logps if not self.level else -s.ref_logps - s.ref_entropies  # type: ignore[operator]
        return self.kappa * right * rare
