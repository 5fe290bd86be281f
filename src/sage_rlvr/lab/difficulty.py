"""Several prompts of different difficulty: which guides beat every β on their average, and which are another β.

Of one prompt only p = π(C) matters here, the chance to be right: pass@k is 1 − (1 − p)^k. At the optimum logit p = logit p_ref +
1/β + Δ, so β alone shifts every prompt's logit by the same. All (P,) over prompts, float64.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sage_rlvr.anchor import GroupGuide
from sage_rlvr.lab.descent import Arm, descend, expected_gradient
from sage_rlvr.lab.solutions import normalised
from sage_rlvr.lab.world import World


def plain(rates: Tensor, beta: float) -> Tensor:
    """Eq. 2: the chance to be right at the optimum, from that of π_ref."""
    return torch.sigmoid(rates.logit() + 1 / beta)


def grouped(rates: Tensor, beta: float, guide: GroupGuide) -> Tensor:
    """Eq. 4 under the group guide. Its q follows the policy, so the end agrees with itself: logit p = logit p_ref + 1/β +
    (s/β)·(1 − p)^γ. The left side grows with p and the right one falls: one solution, by bisection."""
    low, high = torch.zeros_like(rates), torch.ones_like(rates)
    for _ in range(200):
        p = (low + high) / 2
        above = p > torch.sigmoid(rates.logit() + 1 / beta + guide.bonus(p, beta))
        low, high = torch.where(above, low, p), torch.where(above, p, high)
    return (low + high) / 2


def pass_at(p: Tensor, k: int) -> float:
    """The mean over prompts."""
    return float((1 - (1 - p) ** k).mean())


def matched(rates: Tensor, mean: float) -> Tensor:
    """The optimum of that β, with no guide, whose pass@1 is ``mean`` on average."""
    low, high = -60.0, 60.0  # 1/β; below 0 it would turn from what is right
    for _ in range(200):
        shift = (low + high) / 2
        low, high = (low, shift) if torch.sigmoid(rates.logit() + shift).mean() > mean else (shift, high)
    return torch.sigmoid(rates.logit() + low)


def gain(rates: Tensor, ends: Tensor, k: int) -> float:
    """pass@k of a guide's ``ends``, over that of the β that has its pass@1; both on average over prompts."""
    return pass_at(ends, k) - pass_at(matched(rates, float(ends.mean())), k)


# ---- in a tree of tokens, by descent -----------------------------------------------------------------------------------


def right_chance(world: World, logits: Tensor) -> Tensor:
    return world.probs(logits)[..., world.valid].sum(-1)


def group_log_q(world: World, rate: Tensor, beta: float, guide: GroupGuide) -> Tensor:
    """(Y, T): what the guide answers for a group so large that its solve rate is the chance itself."""
    total = world.reward * guide.bonus(rate, beta)
    return (total / world.tokens.shape[1])[:, None].expand_as(world.ref_logps)


def group_end(world: World, beta: float, guide: GroupGuide) -> Tensor:
    """Eq. 4 in closed form, (Y,)."""
    rate = grouped(world.ref[world.valid].sum()[None], beta, guide)
    return normalised(world.ref.log() + world.reward / beta + group_log_q(world, rate, beta, guide).sum(-1))


def anew(world: World, log_q: Callable[[Tensor], Tensor], beta: float, estimator: str = "k1-reward") -> Tensor:
    """π(y), (Y,), where descent ends whose q is made from the policy (N, V) at every step."""

    def gradient(logits: Tensor) -> Tensor:
        return expected_gradient(world, logits, [Arm(estimator, log_q(logits[0]))], beta)

    return world.probs(descend(world, gradient))[0]


def values(world: World, logits: Tensor) -> Tensor:
    """(Y, T + 1): the chance to be right under a policy (N, V), before the first token and after each. No head knows more."""
    pi = world.probs(logits)
    lost = world.visits(pi)[world.nodes]  # (Y, T) chance of the prefix before y_t
    won = world.visits(pi * world.reward)[world.nodes]
    return torch.cat([won / lost, world.reward[:, None]], 1)
