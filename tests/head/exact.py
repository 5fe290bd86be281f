"""The answer by the book: float64, all logits at once, autograd. And inputs whose distributions run from flat to certain."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Case:
    hidden: Tensor
    weight: Tensor
    targets: Tensor
    bias: Tensor | None = None


def draw(n, width, vocab, *, dtype=torch.float32, bias=False, spread=0.05, sure=15.0) -> Case:
    """Hidden states that lean toward their target by anything from nothing to ``sure`` nats."""
    weight = torch.randn(vocab, width) * spread
    targets = torch.randint(vocab, (n,))
    chosen = weight[targets]
    lean = torch.rand(n, 1) * sure * chosen / chosen.norm(dim=1, keepdim=True).square()
    hidden = torch.randn(n, width) + lean
    return Case(hidden.to(dtype), weight.to(dtype), targets, torch.randn(vocab).to(dtype) if bias else None)


def logits64(hidden, weight, bias=None, temperature=1.0, softcap=None, logit_scale=1.0):
    x = hidden @ weight.t()
    x = (x if bias is None else x + bias) * logit_scale
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    return x / temperature


def answer(case: Case, pull_logps: Tensor, pull_entropies: Tensor | None = None, mask=None, **shape):
    """logps, entropies and the gradients of Σ pull·(both) in hidden, weight and bias, all float64."""
    hidden, weight = (t.double().requires_grad_() for t in (case.hidden, case.weight))
    bias = None if case.bias is None else case.bias.double().requires_grad_()
    logp = logits64(hidden, weight, bias, **shape).log_softmax(-1)
    keep = torch.ones(len(hidden)) if mask is None else mask
    logps = logp.gather(1, case.targets.clamp(min=0)[:, None])[:, 0] * keep.double()
    entropies = -(logp.exp() * logp).sum(1) * keep.double()
    loss = (logps * pull_logps.double()).sum()
    if pull_entropies is not None:
        loss = loss + (entropies * pull_entropies.double()).sum()
    leaves = [hidden, weight] + ([] if bias is None else [bias])
    return logps.detach(), entropies.detach(), torch.autograd.grad(loss, leaves)


def off(found: Tensor, exact: Tensor) -> float:
    """‖found − exact‖ / ‖exact‖; NaN where anything is NaN."""
    return float((found.double() - exact).norm() / exact.norm())
