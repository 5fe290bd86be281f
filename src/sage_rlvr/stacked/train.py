"""RL of a stack of runs: sample, judge, credit, step. The runs share their sizes; all else may differ.

What a run is stacked with changes nothing but rounding: its problems, its draws and its noise come from its seed.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.errors import UserError
from sage_rlvr.stacked.credit import Batch, Credit, refuse, seeded
from sage_rlvr.stacked.model import Prompts, Stack
from sage_rlvr.stacked.steps import AdamW, rates_of
from sage_rlvr.stacked.world import Problems, World
from sage_rlvr.train.config import SAGEConfig

ALIKE = (  # what the runs of a stack share
    "max_steps", "per_device_train_batch_size", "num_generations", "max_completion_length", "weight_decay", "max_grad_norm",
    "adam_beta1", "adam_beta2", "adam_epsilon",
)  # fmt: skip


class Run:
    """One of a stack: its settings, its draws, its order of the problems and its log."""

    def __init__(self, name: str, args: SAGEConfig, chance: float | None = None):
        refuse(args, name)
        self.name, self.args, self.credit = name, args, Credit(args)
        self.chance = chance  # of a reward of 1, whatever is answered: a control
        self.rates = rates_of(
            args.learning_rate, args.max_steps, int(args.warmup_steps), str(args.lr_scheduler_type.value)
        )
        self.log: list[dict[str, Tensor | float]] = []
        self.diverged: int | None = None  # the step at which a number was not finite: from then on it is not trained

    def starts(self, problems: int, device: str | torch.device) -> None:
        self.draws = torch.Generator(device).manual_seed(seeded("rollouts", self.args.seed))
        self.order = _order(self.args.seed, problems, prompts_of(self.args) * self.args.max_steps).to(device)

    def problems(self, step: int) -> Tensor:
        """(P,)"""
        count = prompts_of(self.args)
        return self.order[step * count : (step + 1) * count]

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.draws, device=self.draws.device)

    def loss(self, rolled: dict[str, Tensor], right: Tensor, world: World, step: int) -> Tensor:
        """From its rows, (B, …), and their verdicts, (B,) float."""
        paid = right if self.chance is None else (self.uniform(len(right)) < self.chance).float()
        ids = rolled.pop("ids")
        answers = world.keys(ids, paid > 0) if self.credit.reads_answers else None
        loss, told = self.credit.loss(Batch(**rolled, rewards=paid, answers=answers), step)
        self.log.append({"step": step + 1, **told})
        if self.chance is not None:
            self.log[-1]["sage/true_reward"] = right.mean()
        return loss


def prompts_of(args: SAGEConfig) -> int:
    """Per step."""
    return args.per_device_train_batch_size // args.num_generations


def size_of(args: SAGEConfig) -> tuple[Any, ...]:
    return tuple(getattr(args, name) for name in ALIKE)


def train(
    runs: Sequence[Run],
    stack: Stack,
    base: Stack,
    world: World,
    problems: Problems,
    at: Callable[[int], None] = lambda step: None,
) -> None:
    """Trains the stack, a run each, from wherever its weights are. ``base``: π_ref, a stack of one. ``at`` is called after every
    step with the number of steps done."""
    if len({size_of(run.args) for run in runs}) != 1:
        raise UserError(f"runs of one stack differ in {', '.join(ALIKE)}: stack those that are alike.")
    args, device = runs[0].args, world.device
    for run in runs:
        run.starts(len(problems.all), device)
    betas = (args.adam_beta1, args.adam_beta2)
    optimizer = AdamW(stack.trained(), args.weight_decay, args.max_grad_norm, betas, args.adam_epsilon)
    shape = (prompts_of(args), args.num_generations, args.max_completion_length)
    for step in range(args.max_steps):
        began = time.perf_counter()
        which = torch.stack([run.problems(step) for run in runs])  # (R, P)
        prompts, drawn = problems.prompts(which), torch.stack([run.uniform(*shape) for run in runs])
        ids = stack.sample(prompts, drawn, world.end, world.pad)
        right = world.right(problems, which, ids).float()  # (R, P, G)
        rolled = _rolled(stack, base, prompts, ids, counted(ids, world.end))
        own = [{name: x[r].flatten(0, 1) for name, x in rolled.items()} for r in range(len(runs))]
        _mark(runs, torch.stack([rows["logps"].detach().isfinite().all() for rows in own]), step)
        trained = [r for r, run in enumerate(runs) if run.diverged is None]
        if not trained:
            return
        losses = torch.stack([runs[r].loss(own[r], right[r].flatten(), world, step) for r in trained])
        losses.sum().backward()
        norms = optimizer.step(torch.tensor([run.rates[step] for run in runs], device=device))
        _mark(runs, norms.isfinite(), step)
        seconds = (time.perf_counter() - began) / len(runs)
        for r in trained:
            runs[r].log[-1] |= {"grad_norm": norms[r], "learning_rate": runs[r].rates[step], "seconds": seconds}
        at(step + 1)


def _mark(runs: Sequence[Run], finite: Tensor, step: int) -> None:
    """``finite``: (R,) bool."""
    for run, good in zip(runs, finite.tolist()):
        if not good and run.diverged is None:
            run.diverged = step + 1


def _rolled(stack: Stack, base: Stack, prompts: Prompts, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """What Batch holds of the rollouts, with ids; all (R, P, G, …)."""
    logps, entropies, hidden = scored(stack, prompts, ids)
    with torch.no_grad():  # the base reads all runs' rows as one run's
        one = Prompts(prompts.ids.flatten(0, 1)[None], prompts.seen.flatten(0, 1)[None])
        ref_logps = scored(base, one, ids.flatten(0, 1)[None])[0].view(ids.shape)
    return {"ids": ids, "logps": logps, "entropies": entropies, "ref_logps": ref_logps, "mask": mask, "hidden": hidden}


def counted(ids: Tensor, end: int) -> Tensor:
    """bool, like ids (…, T): up to the end of each completion, that token included."""
    ended = ids == end
    return ended.cumsum(-1) - ended.long() == 0


def scored(stack: Stack, prompts: Prompts, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log π of each token and the entropy before it, (R, P, G, T), and the states, (R, P, G, T + 1, D)."""
    states = stack.states(prompts, ids)
    logits = stack.logits(states[..., :-1, :]).log_softmax(-1)
    entropies = -(logits.exp() * logits).sum(-1)
    return logits.gather(-1, ids[..., None])[..., 0], entropies, states


def _order(seed: int, problems: int, wanted: int) -> Tensor:
    """(wanted,) which problem comes when: each once before any comes again."""
    generator = torch.Generator().manual_seed(seeded("problems", seed))
    rounds = -(-wanted // problems)
    return torch.cat([torch.randperm(problems, generator=generator) for _ in range(rounds)])[:wanted]
