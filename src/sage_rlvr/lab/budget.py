"""Sampled training with a rollout budget: what happens to a right answer that is never drawn (Theorem 4.2).

The world: token 0 leads to a frequent right answer through sure steps; token 1 to a fork of four right answers that are
drawn often and a fifth, y*, also right, whose probability is far below any budget. Tokens 2 to 4 lead to wrong answers.
"""

import torch
from torch import Tensor

from sage_rlvr.anchor import BranchGuide
from sage_rlvr.lab.world import World, tree

BETA, RATE = 0.3, 0.3
SEEDS, ROLLOUTS, STEPS = 64, 16, 300  # completions drawn in each step
FORK_GUIDE = BranchGuide(ratio=0.8, threshold=1.0, source="reference")


def forked_world(rare: float = 1e-9) -> tuple[World, int]:
    """(the world, the index of y*)."""
    root = [0.70, 0.15, 0.06, 0.05, 0.04]  # H = 0.98, below the gate
    fork = [0.25, 0.25, 0.25, 0.25 - rare, rare]  # after token 1: H = 1.39
    sure = [0.97, 0.01, 0.01, 0.01 - rare, rare]  # after any other
    probs = torch.tensor([root, sure, fork, sure, sure, sure], dtype=torch.float64)
    first = torch.cartesian_prod(torch.arange(5), torch.arange(5))[:, 0]
    world = tree(probs.log(), (first <= 1).double(), depth=2)
    return world, 1 * 5 + 4


def never_sampled() -> tuple[Tensor, Tensor, bool]:
    """GRPO and SAGE with exact credit (k1-reward, no scaling) from the same seeds: the change of y*'s log-odds against the
    sampled right answers, (S,) each, and whether y* was never drawn."""
    world, rare = forked_world()
    (grpo, drawn), (sage, drawn_too) = (_train(world, world.log_q(guide), rare) for guide in (None, FORK_GUIDE))
    return grpo, sage, not (drawn or drawn_too)


def _train(world: World, log_q: Tensor, rare: int) -> tuple[Tensor, bool]:
    g = torch.Generator().manual_seed(0)
    logits = world.ref_logits.expand(SEEDS, -1, -1).clone().requires_grad_()
    anchor = (world.ref_logps + log_q).sum(-1)  # (Y,)
    drawn_rare = False
    for _ in range(STEPS):
        logp = world.logps(logits).sum(-1)  # (S, Y)
        drawn = torch.multinomial(logp.detach().exp(), ROLLOUTS, replacement=True, generator=g)  # (S, R)
        drawn_rare |= bool((drawn == rare).any())
        sampled = logp.gather(1, drawn)
        credit = world.reward[drawn] + BETA * (anchor[drawn] - sampled.detach())
        advantage = credit - credit.mean(1, keepdim=True)
        loss = -(advantage * sampled).mean(1).sum()
        (grad,) = torch.autograd.grad(loss, logits)
        logits = (logits - RATE * grad).detach().requires_grad_()
    return _log_odds(world, logits.detach(), rare) - _log_odds(world, world.ref_logits, rare), drawn_rare


def _log_odds(world: World, logits: Tensor, rare: int) -> Tensor:
    """log π(y*)/π(right answers that do get sampled): those above 1e-3 under the reference."""
    often = world.valid & (world.ref > 1e-3)
    logp = world.logps(logits).sum(-1)
    return logp[..., rare] - logp[..., often].logsumexp(-1)
