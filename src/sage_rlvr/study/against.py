"""A study on several tasks: every variant's pass@1 and pass@n on each and on their mean, and what it has more than one of them.

Problems are drawn within their task and together for all; seeds for each variant by itself, the same ones on every task, since a
seed is one trained model. A bootstrap of three seeds spreads too little, by √(2/3) and by the normal's tails for Student's: its
draws are spread as much wider. Where a variant has a single seed its intervals are over problems alone, and say nothing of
training again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.counts import TaskCounts, counts_of
from sage_rlvr.metrics import pass_at_k
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.study.frontier import DRAWS, interval, shares
from sage_rlvr.study.plan import read_folder
from sage_rlvr.study.run import finished_runs
from sage_rlvr.study.table import common_problems

MEAN = "mean of tasks"
FEWEST = 3  # seeds of both that a verdict needs
DETECTED = 1 + 0.84 / 1.96  # half-widths of a 95% interval that a difference needs to be found four times in five


@dataclass(frozen=True)
class Standing:
    """A variant on one task, or a variant less another."""

    task: str
    variant: str
    seeds: int  # of two, the fewer
    pass_1: Interval
    pass_n: Interval

    def verdict(self) -> str:
        """Of a difference: on both numbers at once, or on none."""
        if self.seeds < FEWEST:
            return f"not judged ({self.seeds} seed{'s' * (self.seeds > 1)} of {FEWEST})"
        sides = [_side(x) for x in (self.pass_1, self.pass_n)]
        if sides[0] == sides[1]:
            return {"above": "better on both", "below": "worse on both"}.get(sides[0], "no detectable difference")
        return f"not better on both: pass@1 {sides[0]}, pass@n {sides[1]}"


def _side(x: Interval) -> str:
    return "above" if x.low > 0 else "below" if x.high < 0 else "not detected"


def detectable(x: Interval) -> float:
    """The size of a difference that an interval as wide as this one leaves out of 0 four times in five."""
    return DETECTED * (x.high - x.low) / 2


@dataclass(frozen=True)
class Drawn:
    """``plain[task, variant]`` (2,) pass@1 and pass@n, ``again`` the same (2, draws) over problems and seeds."""

    tasks: list[str]  # the mean last, where there are several
    n: int  # samples a problem
    seeds: dict[str, int]  # of each variant
    plain: dict[tuple[str, str], np.ndarray]
    again: dict[tuple[str, str], np.ndarray]

    def standing(self) -> list[Standing]:
        return [
            self._row(t, v, n, self.plain[t, v], self.again[t, v]) for t in self.tasks for v, n in self.seeds.items()
        ]

    def less(self, reference: str) -> list[Standing]:
        """Every trained variant less ``reference``; the base, which is not trained, has as many seeds as asked."""
        if reference not in self.seeds:
            raise UserError(f"no run of {reference} is finished; there are {', '.join(self.seeds)}.")
        fewest = {v: n if reference == "base" else min(n, self.seeds[reference]) for v, n in self.seeds.items()}
        return [
            self._row(t, v, fewest[v], *(by[t, v] - by[t, reference] for by in (self.plain, self.again)))
            for t in self.tasks
            for v in self.seeds
            if v not in ("base", reference)
        ]  # fmt: skip

    def without(self, *left_out: str) -> "Drawn":
        """The same draws, and a mean of the other tasks."""
        tasks = [task for task in self.tasks if task not in (*left_out, MEAN)]
        plain, again = (
            {(t, v): by[t, v] for t in tasks for v in self.seeds} | _means(by, tasks, self.seeds)
            for by in (self.plain, self.again)
        )
        return replace(self, tasks=[*tasks, MEAN], plain=plain, again=again)

    def _row(self, task: str, variant: str, seeds: int, means: np.ndarray, drawn: np.ndarray) -> Standing:
        return Standing(task, variant, seeds, *(interval(float(m), each) for m, each in zip(means, drawn)))


def draw(out: str | Path, draws: int = DRAWS, seed: int = 0) -> Drawn:
    """Of every variant with a finished run, the base among them."""
    study, runs = read_folder(out), dict[str, list[dict[str, TaskCounts]]]()
    for run, folder in finished_runs(out).items():
        variant = run if run == "base" else study.variant_of(run)[0]
        runs.setdefault(variant, []).append(counts_of(folder).tasks)
    every = [by for own in runs.values() for by in own]
    common = {
        t: common_problems([by[t] for by in every]) for t in study.evaluate["tasks"] if all(t in by for by in every)
    }
    tasks = [task for task, problems in common.items() if problems]
    if not tasks:
        raise UserError(f"{out}: no task has a problem that every finished run has whole.")
    n = min(by[task].n * len(by[task].seeds) for by in every for task in tasks)
    cut = {(t, v): [by[t].only(common[t]) for by in own] for t in tasks for v, own in runs.items()}
    grids = {
        place: np.stack([[pass_at_k(c.totals, c.rights, k) for c in own] for k in (1, n)]) for place, own in cut.items()
    }
    return resampled(grids, n, draws, seed)


def resampled(grids: dict[tuple[str, str], np.ndarray], n: int, draws: int = DRAWS, seed: int = 0) -> Drawn:
    """``grids[task, variant]`` (2, seeds, problems): pass@1 and pass@n."""
    rng = np.random.default_rng(seed)
    tasks, variants = (list(dict.fromkeys(names)) for names in zip(*grids))
    problems = {task: shares(rng, grids[task, variants[0]].shape[2], draws) for task in tasks}
    plain = {place: grid.mean((1, 2)) for place, grid in grids.items()}
    again, seeds = {}, {v: grids[tasks[0], v].shape[1] for v in variants}
    for v, count in seeds.items():
        rows = 1 / count + _wider(count) * (shares(rng, count, draws) - 1 / count)
        for task in tasks:
            again[task, v] = np.stack([((rows @ grid) * problems[task]).sum(1) for grid in grids[task, v]])
    for by in (plain, again):
        by |= _means(by, tasks, variants)
    return Drawn([*tasks, *[MEAN] * (len(tasks) > 1)], n, seeds, plain, again)


def _means(
    by: dict[tuple[str, str], np.ndarray], tasks: Iterable[str], variants: Iterable[str]
) -> dict[tuple[str, str], np.ndarray]:
    """Of these tasks, each weighing the same."""
    return {(MEAN, v): np.mean([by[t, v] for t in tasks], axis=0) for v in variants}


def _wider(seeds: int) -> float:
    """By how much a bootstrap's spread over ``seeds`` falls short: of the unbiased one, and of Student's t for two such groups
    (its 97.5% point by the first terms of its expansion in 1/freedom: 2.77 for 2.78 at three seeds)."""
    if seeds == 1:
        return 1.0
    z, f = 1.96, 2 * (seeds - 1)
    t = z + (z**3 + z) / (4 * f) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3)
    return (seeds / (seeds - 1)) ** 0.5 * t / z
