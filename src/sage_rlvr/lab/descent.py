"""Gradient descent under every estimator with exact expectations, many arms at once.

An arm is an estimator, a guide's log q and, for k1, a credit. Its gradient is the one a trainer would average over
infinitely many on-policy rollouts: π(y) weighs each completion but is not differentiated, the loss in the brackets is.
Denominators are constant: penalties are summed over tokens, never divided by |y|.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.anchor import anchor_penalty, anchor_reward
from sage_rlvr.lab.world import World


@dataclass(frozen=True)
class Arm:
    estimator: str  # one of ESTIMATORS
    log_q: Tensor  # (Y, T), held fixed
    credit: str = "sequence"  # for k1-reward
    label: str = ""
    pay: Callable[[Tensor], Tensor] | None = None  # π(y) → each completion's credit, (Y,); None: its reward


def surrogate(world: World, logits: Tensor, arms: Sequence[Arm], beta: float) -> Tensor:
    """One loss per arm, (A,): its autodiff gradient is the arm's expected gradient. logits (A, N, V)."""
    logps = world.logps(logits)  # (A, Y, T)
    pi = logps.sum(-1).exp().detach()  # (A, Y)
    losses = []
    for a, arm in enumerate(arms):
        ref, mask = world.ref_logps, torch.ones_like(world.ref_logps)
        reward = world.reward if arm.pay is None else arm.pay(pi[a])
        if arm.estimator == "k1-reward":
            bonus = anchor_reward(logps[a].detach(), ref, arm.log_q, mask, arm.credit)
            credit = reward[:, None] + beta * (bonus if bonus.dim() == 2 else bonus[:, None])  # (Y, 1) or (Y, T)
            per_completion = -(credit * logps[a]).sum(-1)
        else:
            penalty = anchor_penalty(logps[a], ref, arm.log_q, arm.estimator)
            per_completion = -reward * logps[a].sum(-1) + beta * penalty.sum(-1)
        losses.append((pi[a] * per_completion).sum())
    return torch.stack(losses)


def expected_gradient(world: World, logits: Tensor, arms: Sequence[Arm], beta: float) -> Tensor:
    """(A, N, V)."""
    logits = logits.detach().requires_grad_()
    return torch.autograd.grad(surrogate(world, logits, arms, beta).sum(), logits)[0]


def descend(
    world: World,
    gradient: Callable[[Tensor], Tensor],
    policies: int = 1,
    steps: int = 600,
    rate: float = 0.5,
    watch: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """From π_ref to where ``gradient``, (A, N, V) → (A, N, V), leaves each policy: logits (A, N, V).

    The step is the natural gradient, g/(visit·π), the exact Fisher of a tabular softmax policy: it has the fixed points of
    plain descent and reaches prefixes of probability 1e-6 as fast as the root. ``watch(step, logits)`` sees each step.
    """
    logits = world.ref_logits.expand(policies, -1, -1).clone()
    for step in range(steps):
        if watch is not None:
            watch(step, logits)
        fisher = world.visits(world.probs(logits))[..., None] * logits.softmax(-1)
        logits = logits - (rate * gradient(logits) / fisher).clamp(-1, 1)
    if watch is not None:
        watch(steps, logits)
    return logits


def train(world: World, arms: Sequence[Arm], beta: float, **how: Any) -> Tensor:
    """Descent under each arm's expected gradient to where it stops, (A, N, V)."""
    return descend(world, lambda logits: expected_gradient(world, logits, arms, beta), len(arms), **how)
