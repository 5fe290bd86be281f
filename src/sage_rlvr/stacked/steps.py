"""Optimizer steps of a stack: AdamW and the clipping of gradients as transformers' Trainer has them, each run by itself."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import get_scheduler


class AdamW:
    def __init__(
        self,
        weights: dict[str, Tensor],
        decay: float = 0.0,
        clip: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        self.weights, self.decay, self.clip, self.betas, self.eps = weights, decay, clip, betas, eps
        self.mean = {name: torch.zeros_like(p) for name, p in weights.items()}
        self.square = {name: torch.zeros_like(p) for name, p in weights.items()}
        self.done = 0

    @torch.no_grad()
    def step(self, rates: Tensor) -> Tensor:
        """With a learning rate per run, (R,); answers the runs' gradient norms before clipping, (R,). A run whose gradient is not
        finite keeps its weights."""
        self.done += 1
        grads = {name: p.grad for name, p in self.weights.items() if p.grad is not None}
        norms = torch.stack([g.flatten(1).square().sum(1) for g in grads.values()]).sum(0).sqrt()  # (R,)
        finite, factor = norms.isfinite(), (self.clip / (norms + 1e-6)).clamp(max=1.0)
        one, two = self.betas
        unbiased = (1 - one**self.done), (1 - two**self.done) ** 0.5
        for name, g in grads.items():
            p = self.weights[name]

            def per_run(x: Tensor, like: Tensor = p) -> Tensor:
                return x.view(-1, *[1] * (like.ndim - 1))

            g = torch.where(per_run(finite), g * per_run(factor), 0.0)
            if self.decay and "bias" not in name and "norm" not in name:  # as Trainer
                p.mul_(1 - per_run(rates * finite) * self.decay)
            self.mean[name].lerp_(g, 1 - one)
            self.square[name].mul_(two).addcmul_(g, g, value=1 - two)
            p.sub_(
                per_run(rates * finite / unbiased[0])
                * self.mean[name]
                / (self.square[name].sqrt() / unbiased[1] + self.eps)
            )
            p.grad = None
        return norms


def rates_of(rate: float, steps: int, warmup: int, schedule: str) -> Sequence[float]:
    """The learning rate of each step, by transformers' own schedule."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates
