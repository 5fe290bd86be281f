"""SFT of a stack: bases that differ in what they are shown, taught side by side. The loss is that of TRL's SFT on completions."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sage_rlvr.stacked.credit import over, seeded
from sage_rlvr.stacked.model import Prompts, Stack
from sage_rlvr.stacked.steps import AdamW, rates_of
from sage_rlvr.stacked.train import counted, scored
from sage_rlvr.stacked.world import World

Rows = Sequence[dict[str, str]]  # prompt, completion


def teach(
    stack: Stack,
    world: World,
    shown: Sequence[Rows],
    steps: int,
    batch: int,
    rate: float,
    seed: int = 0,
    at: Callable[[int, Tensor], None] = lambda step, losses: None,
) -> None:
    """Run r sees ``shown[r]``, each row once before any comes again. ``at`` is told the steps done and the losses, (R,)."""
    tables = [_table(rows, world) for rows in shown]
    columns = [max(t[i].shape[-1] for t in tables) for i in (0, 2)]
    tables = [
        (_left(a, columns[0], world.pad), _left(b, columns[0], 0), _right(c, columns[1], world.pad))
        for a, b, c in tables
    ]
    generators = [torch.Generator().manual_seed(seeded("teach", seed)) for _ in shown]
    optimizer = AdamW(stack.trained())
    rates = rates_of(rate, steps, 0, "linear")
    waiting = [torch.empty(0, dtype=torch.long) for _ in shown]
    for step in range(steps):
        for r, generator in enumerate(generators):
            while len(waiting[r]) < batch:
                waiting[r] = torch.cat([waiting[r], torch.randperm(len(shown[r]), generator=generator)])
        which = [rows[:batch] for rows in waiting]
        waiting = [rows[batch:] for rows in waiting]
        ids, seen, answers = (
            torch.stack([table[i][own] for table, own in zip(tables, which)]).to(world.device) for i in range(3)
        )
        answers = answers[:, :, None]  # (R, P, 1, T)
        logps = scored(stack, Prompts(ids, seen.bool()), answers)[0]
        mask = counted(answers, world.end)
        losses = torch.stack([-over(logps[r], mask[r]) for r in range(len(shown))])
        losses.sum().backward()
        optimizer.step(torch.full((len(shown),), rates[step], device=world.device))
        at(step + 1, losses.detach())


def _table(rows: Rows, world: World) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts' ids and what is seen of them, (N, S), and completions with their end, (N, T)."""
    ids, seen = world.left_padded([row["prompt"] for row in rows])
    answers = [[*row, world.end] for row in world.rows([row["completion"] for row in rows])]
    columns = max(map(len, answers))
    return ids, seen, torch.tensor([row + [world.pad] * (columns - len(row)) for row in answers])


def _left(x: Tensor, columns: int, fill: int) -> Tensor:
    return torch.nn.functional.pad(x, (columns - x.shape[1], 0), value=fill)


def _right(x: Tensor, columns: int, fill: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, columns - x.shape[1]), value=fill)
