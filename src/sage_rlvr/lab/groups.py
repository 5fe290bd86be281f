"""Advantages in the lab: what a completion is credited with on average, over all groups that the policy may draw it in.

Rewards are 0 or 1, so an advantage that looks at rewards alone depends on how many others of the group are right: c of G − 1,
binomial with p = π(right). Averaged over c, every right completion has one credit and every wrong one another, both functions of
p. Only their gap moves the policy: at the optimum π ∝ q·π_ref·exp(gap(p)·r/β), a reward of gap(p) in place of 1.
"""

from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

from sage_rlvr.advantage import make_advantage
from sage_rlvr.lab.world import World

GROUP = 8


@dataclass(frozen=True)
class Credit:
    """One advantage over groups of ``len(right)``."""

    right: list[float]  # of a right completion whose group has c = 0 .. G − 1 other right ones
    wrong: list[float]  # likewise, of a wrong one

    def averages(self, p: float) -> tuple[float, float]:
        """(right, wrong) at the chance p to be right."""
        n = len(self.right) - 1
        chance = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
        return tuple(sum(x * a for x, a in zip(chance, values)) for values in (self.right, self.wrong))  # type: ignore[return-value]

    def gap(self, p: float) -> float:
        right, wrong = self.averages(p)
        return right - wrong

    def of(self, world: World, pi: Tensor) -> Tensor:
        """(Y,) from π(y), (Y,)."""
        right, wrong = self.averages(float(pi[world.valid].sum()))
        return torch.where(world.valid, right, wrong).to(pi)


def credit(name: str, group: int = GROUP, **args: object) -> Credit:
    """What the registered advantage answers for every count of right completions."""
    made = make_advantage(name, **args)

    def answer(count: int, which: int) -> float:
        rewards = (torch.arange(group) < count).double()  # the first ``count`` are right
        return float(made(rewards, group)[which])

    return Credit([answer(c + 1, 0) for c in range(group)], [answer(c, group - 1) for c in range(group)])
