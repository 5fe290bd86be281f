"""Several prompts of different difficulty: which guides beat every β on their average, and which are another β.

Of one prompt only p = π(C) matters here, the chance to be right: pass@k is 1 − (1 − p)^k. At the optimum logit p = logit p_ref +
1/β + Δ, so β alone shifts every prompt's logit by the same. All (P,) over prompts, float64.
"""

import torch
from torch import Tensor

from sage_rlvr.anchor import GroupGuide
from sage_rlvr.lab.solutions import falls_to_zero
from sage_rlvr.lab.world import World


def grouped(rates: Tensor, beta: float, guide: GroupGuide) -> Tensor:
    """Eq. 4 under the group guide: the chance to be right at the optimum, from that of π_ref. Its q follows the policy, so the
    end agrees with itself: logit p = logit p_ref + 1/β + (s/β)·(1 − p)^γ. The left side grows with p and the right one falls:
    one solution."""
    return falls_to_zero(
        lambda p: torch.sigmoid(rates.logit() + 1 / beta + guide.bonus(p, beta)) - p,
        torch.zeros_like(rates),
        torch.ones_like(rates),
    )


def pass_at(p: Tensor, k: int) -> float:
    """The mean over prompts."""
    return float((1 - (1 - p) ** k).mean())


def gain(rates: Tensor, ends: Tensor, k: int) -> float:
    """pass@k of a guide's ``ends``, minus that of the β, without a guide, that has its pass@1; both on average over prompts."""
    far = torch.tensor(60.0, dtype=torch.float64)  # of 1/β; below 0 it would turn from what is right
    shift = falls_to_zero(lambda x: ends.mean() - torch.sigmoid(rates.logit() + x).mean(), -far, far)
    return pass_at(ends, k) - pass_at(torch.sigmoid(rates.logit() + shift), k)


def values(world: World, logits: Tensor) -> Tensor:
    """(Y, T + 1): the chance to be right under a policy (N, V), before the first token and after each. No head knows more."""
    pi = world.probs(logits)
    lost = world.visits(pi)[world.nodes]  # (Y, T) chance of the prefix before y_t
    won = world.visits(pi * world.reward)[world.nodes]
    return torch.cat([won / lost, world.reward[:, None]], 1)
