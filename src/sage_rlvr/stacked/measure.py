"""How many samples of each problem are right, for every run of a stack: what ``counts.json`` keeps of an evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.stacked.credit import seeded
from sage_rlvr.stacked.model import Stack
from sage_rlvr.stacked.train import counted
from sage_rlvr.stacked.world import Problems, World

AT_ONCE = {"cuda": 120_000, "cpu": 8_000}  # completions sampled at once, at most


@dataclass(frozen=True)
class Measured:
    """Of one task: R runs, N problems, W seeds of n samples."""

    task: str
    problems: list[str]
    seeds: list[int]
    n: int
    right: Tensor  # (R, N, W)
    tokens: Tensor  # (R, N, W)
    cut: Tensor  # (R,): samples that reached the length limit

    def cells(self, run: int) -> dict[str, Any]:
        """The task's part of counts.json. Which solutions were found is not kept: right ones stand under ""."""
        right, tokens = self.right[run].tolist(), self.tokens[run].tolist()
        cells = {
            name: [[self.n - c, {"": c} if c else {}, t] for c, t in zip(rights, lengths)]
            for name, rights, lengths in zip(self.problems, right, tokens)
        }
        cut = int(self.cut[run])
        return {"n": self.n, "seeds": self.seeds, "unverifiable": [], "truncated": cut, "problems": cells}


@torch.no_grad()
def measure(stack: Stack, world: World, problems: Problems, n: int, seeds: Sequence[int], length: int) -> Measured:
    """At temperature 1. All runs answer with the same draws, so that their differences are paired."""
    runs, device = stack.runs, world.device
    size = _piece(len(problems.all), max(1, AT_ONCE[torch.device(device).type] // (runs * n)))
    right = torch.zeros(runs, len(problems.all), len(seeds), dtype=torch.long, device=device)
    tokens, cut = torch.zeros_like(right), torch.zeros(runs, dtype=torch.long, device=device)
    for w, seed in enumerate(seeds):
        generator = torch.Generator(device).manual_seed(seeded("evaluation", world.task, seed))
        for chunk in torch.arange(len(problems.all), device=device).split(size):
            which = chunk.expand(runs, -1)
            drawn = torch.rand(len(chunk), n, length, generator=generator, device=device)
            ids = stack.sample(problems.prompts(which), drawn.expand(runs, -1, -1, -1), world.end, world.pad)
            mask = counted(ids, world.end)
            right[:, chunk, w] = world.right(problems, which, ids).sum(-1)
            tokens[:, chunk, w] = mask.sum((-1, -2))
            cut += (ids != world.end).all(-1).sum((1, 2))
    names = [p.id for p in problems.all]
    return Measured(world.task, names, list(seeds), n, right.cpu(), tokens.cpu(), cut.cpu())


def _piece(problems: int, most: int) -> int:
    """How many problems at once: pieces of one size where that is near, since each size is a program of its own."""
    alike = max(size for size in range(1, most + 1) if problems % size == 0)
    return alike if 2 * alike >= most else most
