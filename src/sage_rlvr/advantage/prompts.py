"""Which prompts count: more weight for those that the group rarely solves.

c of G judged completions are right, p = c/G. All right or all wrong: advantage 0, whatever the formula.
"""

from collections.abc import Callable
from math import comb

import torch
from torch import Tensor

from sage_rlvr.advantage.advantage import Advantage, Rollouts, register_advantage
from sage_rlvr.errors import UserError


@register_advantage("focal")
class FocalAdvantage(Advantage):
    """F-GRPO (arXiv 2602.06717): the advantages times (1 − p)^γ. γ = 0 leaves them as they are."""

    kind, stage = "prompts", "factor"

    def __init__(self, gamma: float = 1.0) -> None:
        if gamma < 0:
            raise UserError(f"advantage 'focal': gamma={gamma} must not be negative; published: 0.5 to 1.")
        self.gamma = gamma

    def shape(self, r: Rollouts) -> Tensor:
        if bool(((r.rewards < 0) | (r.rewards > 1)).any()):
            raise UserError("advantage 'focal' takes rewards between 0 and 1, since p is their mean in the group.")
        p = torch.nanmean(r.rewards, dim=1, keepdim=True)
        return (1 - p) ** self.gamma


@register_advantage("maxrl")
class MaxRLAdvantage(Advantage):
    """MaxRL (arXiv 2602.02710): (r − p)/p. Its expected update is the gradient of −Σ_{k<G} (1 − p)^k/k, the log-likelihood
    of a right answer cut after G − 1 terms."""

    kind, stage = "prompts", "advantage"

    def shape(self, r: Rollouts) -> Tensor:
        if bool((r.pay < 0).any()):
            raise UserError("advantage 'maxrl' divides by the mean reward, so rewards must not be negative.")
        mean = torch.nanmean(r.pay, dim=1, keepdim=True)
        return torch.where(mean > 0, (r.pay - mean) / mean.clamp(min=1e-12), 0.0)


class _PassAtK(Advantage):
    kind, stage, counts = "prompts", "advantage", True

    def __init__(self, k: int = 4) -> None:
        if int(k) != k or k < 1:
            raise UserError(f"advantage {self.name!r}: k={k} must be a whole number, 1 or more.")
        self.k = int(k)

    def check_group(self, group: int) -> None:
        if self.k > group:
            raise UserError(
                f"advantage {self.name!r}: k={self.k} is above the group's {group} completions: lower k, or raise "
                "num_generations."
            )

    def _by_count(self, r: Rollouts, value: Callable[[int, int, bool], float]) -> Tensor:
        """(P, G) of ``value(n, c, right)``, n judged and c right of them; 0 where n is below k."""
        out = torch.zeros_like(r.rewards, dtype=torch.float64)
        n, c = r.known.sum(1).tolist(), r.right.sum(1).tolist()
        for row, (judged, right) in enumerate(zip(n, c)):
            if judged >= max(self.k, 2) and 0 < right < judged:
                good, bad = (out.new_tensor(value(judged, right, which)) for which in (True, False))
                out[row] = torch.where(r.right[row], good, bad)
        return out


@register_advantage("passk")
class PassKAdvantage(_PassAtK):
    """Pass@k training, analytical (arXiv 2508.10751): with P = pass@k of the group and σ = √(P(1 − P)), right (1 − P)/σ, wrong
    (1 − P − C(G−c−1, k−1)/C(G−1, k−1))/σ. Times σ, its expected update is (1/k − 1/G) times the gradient of pass@k; k = 1 is
    (r − p)/√(p(1 − p))."""

    def shape(self, r: Rollouts) -> Tensor:
        k = self.k

        def value(n: int, c: int, right: bool) -> float:
            rho = pass_at(n, c, k)
            sigma = (rho * (1 - rho)) ** 0.5
            if sigma == 0:  # every k of them hold a right one: nothing is left to raise
                return 0.0
            return (1 - rho if right else pass_at(n - 1, c, k - 1) - rho) / sigma

        return self._by_count(r, value)


@register_advantage("pkpo")
class PKPOAdvantage(_PassAtK):
    """PKPO (arXiv 2505.15201): the unbiased gradient of pass@k with a leave-one-out baseline, k falling to 1 over the first
    ``anneal`` of training (0: never). Right 1 − pass@k of the others, wrong pass@(k−1) of the others minus their pass@k; its
    expected update is 1/k times the gradient of pass@k. k = 1 is RLOO."""

    def __init__(self, k: int = 4, anneal: float = 0.5) -> None:
        super().__init__(k)
        if not 0 <= anneal <= 1:
            raise UserError(f"advantage 'pkpo': anneal={anneal} is a share of training, so it must lie in 0..1.")
        self.anneal = anneal

    def check_group(self, group: int) -> None:
        if self.k >= group:
            raise UserError(
                f"advantage 'pkpo': k={self.k} leaves nothing to compare with in groups of {group}: lower k, or raise "
                "num_generations."
            )

    def k_at(self, step: int, max_steps: int) -> int:
        """From k to 1, in equal pieces of the annealed share."""
        if self.anneal == 0 or self.k == 1:
            return self.k
        done = step / max(1.0, self.anneal * max_steps)
        return max(1, self.k - int(done * self.k))

    def shape(self, r: Rollouts) -> Tensor:
        k = self.k_at(r.step, r.max_steps)

        def value(n: int, c: int, right: bool) -> float:
            if n <= k:
                return 0.0
            others = pass_at(n - 1, c - right, k)
            return (1.0 if right else pass_at(n - 1, c, k - 1)) - others

        return self._by_count(r, value)


def pass_at(n: int, c: int, k: int) -> float:
    """The chance that k of n completions hold one of the c right ones."""
    return 1 - comb(n - c, k) / comb(n, k)
