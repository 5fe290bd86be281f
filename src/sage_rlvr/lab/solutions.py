"""The stationary solutions in closed form: what each objective is supposed to reach. All (Y,) over completions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sage_rlvr.lab.world import World


def falls_to_zero(f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where a function that falls from ``low`` to ``high`` is 0, elementwise, by bisection."""
    for _ in range(200):
        before, middle = (low, high), (low + high) / 2
        above = f(middle) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        if torch.equal(low, before[0]) and torch.equal(high, before[1]):  # neighbouring numbers
            break
    return high


def reverse_kl(world: World, beta: float) -> Tensor:
    """Eq. 2: π ∝ π_ref·exp(r/β)."""
    return (world.ref.log() + world.reward / beta).softmax(-1)


def sage(world: World, beta: float, log_q: Tensor) -> Tensor:
    """Eq. 4: π ∝ q·π_ref·exp(r/β); log_q (Y, T)."""
    return (world.ref.log() + log_q.sum(-1) + world.reward / beta).softmax(-1)


def entropy_bonus(world: World, beta: float, eta: float) -> Tensor:
    """A.2: π ∝ π_ref^{β/(β+η)}·exp(r/(β+η)), the solution of reverse KL plus η·H: a temperature, no direction."""
    return ((beta * world.ref.log() + world.reward) / (beta + eta)).softmax(-1)


def forward_kl(world: World, beta: float) -> tuple[Tensor, float]:
    """A.4: π = β·π_ref/(λ − r), λ by bisection so that it sums to 1. Answers (π, λ)."""
    low = world.reward.max()
    lam = falls_to_zero(lambda x: (beta * world.ref / (x - world.reward)).sum() - 1, low, low + beta)
    return beta * world.ref / (lam - world.reward), float(lam)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    return 0.5 * (p - q).abs().sum(-1)


def on_support(pi: Tensor, world: World, epsilon: float) -> Tensor:
    """Def. 4.1: the right completions above the detection limit, (Y,) bool."""
    return world.valid & (pi > epsilon)


def amplified(pi_rlvr: Tensor, log_q: Tensor) -> Tensor:
    """Identity 23: q·π_RLVR / E_{π_RLVR}[q] = π_SAGE."""
    q = log_q.sum(-1).exp()
    return q * pi_rlvr / (pi_rlvr * q).sum(-1, keepdim=True)


def separates(world: World, beta: float, log_q: Tensor, fkl: Tensor, lam: float) -> tuple[bool, bool]:
    """A.4, against forward_kl's (π, λ). First, the sufficient condition inf_C q / sup_{not C} q > e^{−1/β}·λ/(λ−1) with
    0 < π_FKL(C) < 1; second, its conclusion: SAGE puts less mass on wrong answers than forward-KL RLVR."""
    q = log_q.sum(-1).exp()
    right_mass = float(fkl[world.valid].sum())
    bound = math.exp(-1 / beta) * lam / (lam - 1)
    condition = 0 < right_mass < 1 and bool(q[world.valid].min() / q[~world.valid].max() > bound)
    wrong = float(sage(world, beta, log_q)[~world.valid].sum())
    return condition, wrong < 1 - right_mass
