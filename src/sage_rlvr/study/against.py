"""A study on several tasks: every variant's pass@1 and pass@n on each and on their mean, and what it has more than one of them.

Problems are drawn within their task and together for all; seeds for each variant by itself, the same ones on every task, since a
seed is one trained model. Where a variant has a single seed its intervals are over problems alone, and say nothing of training
again.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.counts import TaskCounts, counts_of
from sage_rlvr.metrics import Interval, pass_at_k
from sage_rlvr.study.frontier import DRAWS, interval
from sage_rlvr.study.plan import read_folder
from sage_rlvr.study.run import finished_runs
from sage_rlvr.study.table import common_problems

MEAN = "mean of tasks"


@dataclass(frozen=True)
class Standing:
    """A variant on one task, or a variant less another."""

    task: str
    variant: str
    seeds: int  # of two, the fewer
    pass_1: Interval
    pass_n: Interval


@dataclass(frozen=True)
class Drawn:
    """``plain[task, variant]`` (2,) pass@1 and pass@n, ``again`` the same (2, draws) over problems and seeds."""

    tasks: list[str]  # the mean last, where there are several
    seeds: dict[str, int]  # of each variant
    plain: dict[tuple[str, str], np.ndarray]
    again: dict[tuple[str, str], np.ndarray]

    def standing(self) -> list[Standing]:
        return [
            self._row(t, v, n, self.plain[t, v], self.again[t, v]) for t in self.tasks for v, n in self.seeds.items()
        ]

    def less(self, reference: str) -> list[Standing]:
        """Every trained variant less ``reference``."""
        if reference not in self.seeds:
            raise UserError(f"no run of {reference} is finished; there are {', '.join(self.seeds)}.")
        return [
            self._row(t, v, min(n, self.seeds[reference]), *(by[t, v] - by[t, reference] for by in (self.plain, self.again)))
            for t in self.tasks
            for v, n in self.seeds.items()
            if v not in ("base", reference)
        ]  # fmt: skip

    def _row(self, task: str, variant: str, seeds: int, means: np.ndarray, drawn: np.ndarray) -> Standing:
        return Standing(task, variant, seeds, *(interval(float(m), each) for m, each in zip(means, drawn)))


def draw(out: str | Path, draws: int = DRAWS, seed: int = 0) -> Drawn:
    """Of every variant with a finished run, the base among them."""
    study, runs = read_folder(out), dict[str, list[dict[str, TaskCounts]]]()
    for run, folder in finished_runs(out).items():
        variant = run if run == "base" else study.variant_of(run)[0]
        runs.setdefault(variant, []).append(counts_of(folder).tasks)
    tasks, rng = list(study.evaluate["tasks"]), np.random.default_rng(seed)
    common = {task: common_problems([by[task] for own in runs.values() for by in own]) for task in tasks}
    problems = {task: _shares(rng, len(common[task]), draws) for task in tasks}
    plain, again = {}, {}
    for variant, own in runs.items():
        seeds = _shares(rng, len(own), draws)
        for task in tasks:
            grids = _grids([by[task].only(common[task]) for by in own])
            plain[task, variant] = np.array([grid.mean() for grid in grids])
            again[task, variant] = np.stack([((seeds @ grid) * problems[task]).sum(1) for grid in grids])
        for by in (plain, again):
            by[MEAN, variant] = np.mean([by[task, variant] for task in tasks], axis=0)
    several = [MEAN] * (len(tasks) > 1)
    return Drawn([*tasks, *several], {variant: len(own) for variant, own in runs.items()}, plain, again)


def _grids(runs: list[TaskCounts]) -> list[np.ndarray]:
    """(seeds, problems) of pass@1 and of pass@n."""
    n = runs[0].n * len(runs[0].seeds)
    return [np.stack([pass_at_k(r.totals, r.rights, k) for r in runs]) for k in (1, n)]


def _shares(rng: np.random.Generator, size: int, draws: int) -> np.ndarray:
    """(draws, size): how much of each a bootstrap draw has."""
    return rng.multinomial(size, np.full(size, 1 / size), draws) / size
