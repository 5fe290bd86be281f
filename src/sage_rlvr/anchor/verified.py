"""A guide of our own that looks at the reward: the anchor is tempered among right answers and nowhere else.

With log q(y) = −κ·r(y)·log π_ref(y), r the verified reward in [0, 1], the optimum of E[r] − β·KL(π ‖ q·π_ref) is

    π*(y) ∝ π_ref(y)^(1 − κ·r(y)) · exp(r(y)/β)

At κ = 1 right answers are equally likely, however rare they were, and wrong ones keep π_ref's proportions. Plain tempering
also flattens what is wrong, and pays for it in pass@1; rewarding right answers alone sharpens π_ref's favourites among them.

That bonus is β·κ·surprisal, lost beside the reward at a small β. With the policy's own surprisal, log q(y) = −κ·r(y)·log π(y),
κ may be as large as one likes: the end point is self-consistent, and right answers lie there at π_ref^(1/(1 + κ)), never turned
over. κ = w/β then makes the bonus w·surprisal at every β.
"""

from torch import Tensor

from sage_rlvr.anchor.guides import Guide, Signals, _choice, register_guide
from sage_rlvr.errors import UserError

_LOOKS_AT = {"reference": ("ref_logps", "ref_entropies"), "policy": ("logps", "entropies")}


@register_guide("verified")
class VerifiedGuide(Guide):
    """log q = κ·r·(−log π_ref(y_t)), r the completion's reward in [0, 1]: a right answer earns more the rarer it was.

    ``source``: ``policy`` takes the policy's own log π(y_t) in place of the reference's. ``level``: log q = κ·r·(−log π_ref(y_t)
    − H_ref) instead, H of the same source, so that a right answer earns nothing for being long.
    """

    past_only = False  # the reward comes at the end
    needs = frozenset({"rewards"})

    def __init__(self, kappa: float = 0.5, level: bool = False, source: str = "reference"):
        _choice("source", source, tuple(_LOOKS_AT))
        if kappa <= 0 or (kappa > 1 and source == "reference"):
            raise UserError(
                f"kappa={kappa} must lie in (0, 1]: at 1 all right answers are equally likely at the optimum. "
                "With source='policy' any kappa above 0 will do."
            )
        self.kappa, self.level, self.source = kappa, level, source
        if level:
            self.needs |= {_LOOKS_AT[source][1]}

    def check_rewards(self, rewards: Tensor) -> None:
        outside = rewards[(rewards < 0) | (rewards > 1 + 1e-6)]  # sums of weighted rewards are rounded
        if len(outside):
            raise UserError(
                f"guide 'verified' takes rewards between 0 and 1, since they say how right an answer is, and one is "
                f"{outside[0].item():.4g}: use a verifiable 0/1 reward, or another guide."
            )

    def log_q(self, s: Signals) -> Tensor:
        assert s.rewards is not None  # it is among the needs
        self.check_rewards(s.rewards)
        right = s.rewards.nan_to_num(0.0)[:, None]  # NaN: nobody could say
        logps, entropies = (getattr(s, name) for name in _LOOKS_AT[self.source])
        rare = -logps - entropies if self.level else -logps
        return self.kappa * right * rare
