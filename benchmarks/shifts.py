"""How training moves the log-odds of a right answer, problem by problem: by how much on average, and how evenly.

Before training, problems have log-odds of some distribution: weights on ``GRID``, the likeliest ones given the counts of the
base's probe. Training adds a shift, taken to be normal over problems; its mean and spread are the likeliest ones given the
counts of an arm's runs. Had every problem the same shift, pass@k would be that of ``even`` at the same pass@1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from sage_rlvr.stats.counts import RIGHT, TaskCounts

GRID = np.linspace(-13.0, 6.0, 191)  # log-odds, a tenth apart
LEAST = 0.06  # a narrower spread would fall between the grid's points
ROUNDS = 1500  # of EM
SPREADS, MEANS = np.arange(0.1, 2.6, 0.4), np.arange(-1.0, 1.9, 0.4)  # then finer, around the best


@dataclass(frozen=True)
class Shift:
    """Natural log-odds, over the problems asked for."""

    mean: float
    spread: float  # sd over problems
    again: float | None  # the share of that variance which another seed repeats; None of a single run


def chances(counts: TaskCounts, seed: int | None = None) -> np.ndarray:
    """(problems, grid) how likely the counts are at each log-odds, up to a factor per problem; ``seed``: the number of the
    evaluation seed that alone is counted."""
    right = (counts.state == RIGHT).sum(2)  # (problems, seeds)
    right = right.sum(1) if seed is None else right[:, seed]
    wrong = counts.n * (len(counts.seeds) if seed is None else 1) - right
    each = right[:, None] * -np.logaddexp(0, -GRID) + wrong[:, None] * -np.logaddexp(0, GRID)
    return np.exp(each - each.max(1, keepdims=True))


def before(probe: TaskCounts) -> np.ndarray:
    """(problems, grid) the posterior of each problem's log-odds, from the likeliest distribution of all (by EM)."""
    likely, weights = chances(probe), np.full(GRID.size, 1 / GRID.size)
    for _ in range(ROUNDS):
        weights = weights * (likely * (1 / (likely @ weights))[:, None]).mean(0)
    found = likely * weights
    return found / found.sum(1, keepdims=True)


def even(posterior: np.ndarray, strata: Sequence[np.ndarray], shifts: np.ndarray, k: int) -> list[tuple[float, float]]:
    """pass@1 and pass@k, averaged over the strata, had every problem the same shift: a point for each of ``shifts``."""
    weights = np.mean([posterior[own].mean(0) for own in strata], axis=0)
    p = 1 / (1 + np.exp(-GRID - shifts[:, None]))
    return [(float(a), float(b)) for a, b in zip(p @ weights, (1 - (1 - p) ** k) @ weights)]


def shift(posterior: np.ndarray, runs: Sequence[TaskCounts], own: np.ndarray) -> Shift:
    """Of one arm's runs, over the problems ``own``."""
    start, ends = posterior[own], [chances(run)[own] for run in runs]

    def fit(mean: float, spread: float) -> float:
        after = start @ _kernel(mean, spread)
        return float(sum(np.log((after * end).sum(1) + 1e-300).sum() for end in ends))

    mean, spread = max(product(MEANS, SPREADS), key=lambda at: fit(*at))
    for width in (0.2, 0.1, 0.05):
        near = product((mean - width, mean, mean + width), (max(0.1, spread - width), spread, spread + width))
        mean, spread = max(near, key=lambda at: fit(*at))
    return Shift(round(float(mean), 2), round(float(spread), 2), _again(start, runs, own, mean, spread))


def _kernel(mean: float, spread: float) -> np.ndarray:
    """(grid, grid) from log-odds before to those after."""
    k = np.exp(-0.5 * ((GRID[None] - GRID[:, None] - mean) / max(spread, LEAST)) ** 2)
    return k / k.sum(1, keepdims=True)


def _again(start: np.ndarray, runs: Sequence[TaskCounts], own: np.ndarray, mean: float, spread: float) -> float | None:
    """The likeliest share: a problem's shift is a part that all seeds have, and one of each seed's own. Seeds are taken in
    pairs, on unlike evaluation draws: all runs answer one evaluation seed with the same random numbers."""
    pairs = list(zip(runs[::2], runs[1::2]))
    if not pairs or len(runs[0].seeds) < 2:
        return None
    ends = [(chances(one, 0)[own], chances(other, 1)[own]) for one, other in pairs]

    def fit(share: float) -> float:
        common, each = _kernel(mean, spread * share**0.5), _kernel(0.0, spread * (1 - share) ** 0.5).T
        after = start @ common
        return float(sum(np.log((after * (a @ each) * (b @ each)).sum(1) + 1e-300).sum() for a, b in ends))

    return max((i / 10 for i in range(11)), key=fit)
