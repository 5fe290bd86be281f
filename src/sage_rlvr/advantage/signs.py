"""Right against wrong: how much of the push comes from either."""

import torch
from torch import Tensor

from sage_rlvr.advantage.advantage import Advantage, Rollouts, register_advantage
from sage_rlvr.errors import UserError


@register_advantage("signed")
class SignedAdvantage(Advantage):
    """W-REINFORCE (arXiv 2506.01347): right +``right``, wrong −1, no baseline. 0 learns from wrong answers alone (NSR), 1 is
    REINFORCE with rewards of ±1. A right answer that is paid more (rarity) weighs more. Rewards are 0 or 1."""

    kind, stage = "signs", "advantage"

    def __init__(self, right: float = 0.1) -> None:
        if right < 0:
            raise UserError(f"advantage 'signed': right={right} must not be negative; published: 0.1, and 0 for NSR.")
        self.right = right

    def shape(self, r: Rollouts) -> Tensor:
        if bool(((r.rewards != 0) & (r.rewards != 1) & r.known).any()):
            raise UserError(
                "advantage 'signed' tells right from wrong, so rewards are 0 or 1: use a verifiable reward."
            )
        return torch.where(r.right, self.right * r.pay, -1.0)


@register_advantage("risk")
class RiskAdvantage(Advantage):
    """RS-GRPO (arXiv 2509.24261): (e^{b·(r − m)} − 1)/b, m = log(mean e^{b·r})/b over the group. b → 0 is r − mean; the larger
    b, the more the best of a group weighs."""

    kind, stage = "signs", "advantage"

    def __init__(self, b: float = 2.0) -> None:
        if b <= 0:
            raise UserError(f"advantage 'risk': b={b} must be above 0; published: 2.")
        self.b = b

    def shape(self, r: Rollouts) -> Tensor:
        scaled = self.b * r.pay.double()  # a small b would drown in float32
        n = r.known.sum(1, keepdim=True)
        soft = torch.where(r.known, scaled, -torch.inf).logsumexp(1, keepdim=True) - n.log()
        return torch.expm1(scaled - soft) / self.b
