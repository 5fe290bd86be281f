"""Every interval of the project: how far a number would move with other problems, and with other seeds. NumPy alone.

Two rules. Of **one run** (an evaluation) only the problems could have been others: ``bootstrap_interval``, and ``bands`` for many
numbers at once. Of **a study** the seeds could have been others too: ``crossed``, on tables (seeds, problems). There the variance
of the mean is

    problems: variance of the problems' means (over seeds) / P        σ_P²/P + σ²/(S·P)
    + seeds:  variance of the seeds' means (over problems) / S        σ_S²/S + σ²/(S·P)
    − residual: what is left in a cell / (S·P)                        σ²/(S·P), which both have counted

A two-way bootstrap counts the residual three times: its intervals are too wide, by half in the first studies. Each part is as
sure as it has degrees of freedom: the half-width is √(t²·problems + t²·seeds), each t Student's with that part's own freedom
(Howe, JASA 1974). Simulated studies (3 to 10 seeds, seed sd .005 to .05, rates and 0/1) lie within it 93 to 97 times in 100.
Levels above 95%, which many comparisons at once need, take the wider of that and Satterthwaite's t for the whole variance: three
seeds that happen to agree would else be taken at their word too often. With one seed there is no seeds' part: the interval is
over problems alone, and says nothing of training again.

``linearised``: the same for a smooth function of many arms' means, a gain over a curve for instance.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import UserError

FEWEST = 3  # seeds on either side, below which nothing is called better
RESAMPLES = 10_000
KEPT = 16_000_000  # problems × resamples whose draws are kept: 32 MB
NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)  # under Student's distribution: 1e-9 from df 1 to the normal
PLACES = (NODES + 1) / 2  # of the nodes, where −1 to 1 is 0 to 1
MOST = 1e6  # degrees of freedom; beyond it Student's is the normal to seven digits


class Interval(NamedTuple):
    """A number and its interval (nan where there is none: one problem)."""

    mean: float
    low: float
    high: float


# ---- a study: seeds and problems -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A number and the two parts of its variance, each with the degrees of freedom it is known with."""

    mean: float
    problems: float  # the residual included
    problem_df: float
    seeds: float = 0.0  # what seeds add beyond the residual; 0 with one seed
    seed_df: float = MOST
    seed_square: float = 0.0  # variance of the mean by the seeds' means alone: seeds and residual

    @property
    def error(self) -> float:
        return math.sqrt(self.problems + self.seeds)

    def interval(self, level: float = 0.95, within: tuple[float, float] | None = None) -> Interval:
        """``within``: where the number must lie, (0, 1) for a rate."""
        _check_level(level)
        if not self.problem_df > 0:  # one problem
            return Interval(self.mean, float("nan"), float("nan"))
        p = (1 + level) / 2
        t_problems, t_seeds = student(p, self.problem_df), student(p, self.seed_df)
        half = math.sqrt(t_problems**2 * self.problems + t_seeds**2 * self.seeds)
        if level > 0.95:
            half = max(half, self._satterthwaite(p))
        low, high = self.mean - half, self.mean + half
        if within is not None:
            low, high = max(low, within[0]), min(high, within[1])
        return Interval(self.mean, low, high)

    def _satterthwaite(self, p: float) -> float:
        whole = max(self.problems + self.seeds, self.seed_square)
        doubt = self.problems**2 / self.problem_df + self.seed_square**2 / self.seed_df
        return student(p, whole**2 / doubt if doubt > 0 else MOST) * math.sqrt(whole)


def crossed(*tasks: Sequence[ArrayLike]) -> Estimate:
    """The sum of the means of all tables. A task is a list of tables (seeds, problems), one an arm: its arms share its problems;
    an arm, at the same place in every task, has seeds of its own, the same models on every task.

    ``crossed([x])`` is an arm's mean; ``crossed([x, -y])`` an arm minus another; ``crossed([x / 2, -y / 2], [u / 2, -v / 2])``
    the same on the mean of two tasks.
    """
    tables = [[_Table.of(x) for x in arms] for arms in tasks]
    mean = sum(x.mean for arms in tables for x in arms)
    of_tasks = [sum(x.over_seeds for x in arms) for arms in tables]  # (problems,) each
    spread = [_variance_of_mean(col) if col.size > 1 else float("nan") for col in of_tasks]
    problems, problem_df = _together(spread, [col.size - 1 for col in of_tasks])
    of_arms = [sum(x.over_problems for x in own) for own in zip(*tables)]  # (seeds,) each
    many = [row for row in of_arms if row.size > 1]
    seeds, seed_df = _together([_variance_of_mean(row) for row in many], [row.size - 1 for row in many])
    residual = sum(x.residual() for arms in tables for x in arms)
    return Estimate(mean, problems, problem_df, max(seeds - residual, 0.0), seed_df, seeds)


class _Table(NamedTuple):
    cells: NDArray[np.float64]  # (seeds, problems)
    mean: float
    over_seeds: Any  # (problems,) means
    over_problems: Any  # (seeds,)

    @classmethod
    def of(cls, x: ArrayLike) -> "_Table":
        cells = np.asarray(x, dtype=float)
        if cells.ndim != 2 or not cells.size:
            raise UserError(
                f"crossed: a table of shape {cells.shape}; give one number per seed and problem, (seeds, problems)."
            )
        mean = float(cells.sum()) / cells.size
        if not math.isfinite(mean):
            raise UserError("crossed: a table holds NaN or inf; drop the problems that have no value first.")
        return cls(cells, mean, cells.sum(0) / cells.shape[0], cells.sum(1) / cells.shape[1])

    def residual(self) -> float:
        """The variance of what neither seed nor problem explains, / (seeds · problems)."""
        s, p = self.cells.shape
        if s == 1 or p == 1:
            return 0.0
        left = self.cells - self.over_seeds - self.over_problems[:, None] + self.mean
        return float((left**2).sum()) / ((s - 1) * (p - 1)) / (s * p)


def _variance_of_mean(x: NDArray[np.float64]) -> float:
    """The variance of the mean of independent numbers."""
    left = x - x.sum() / x.size
    return float((left**2).sum()) / (x.size - 1) / x.size


def _together(parts: Sequence[float], freedom: Sequence[float]) -> tuple[float, float]:
    """The sum of independent mean squares and its degrees of freedom (Satterthwaite)."""
    total = float(sum(parts))
    doubt = sum(v**2 / f for v, f in zip(parts, freedom) if f > 0)
    if any(f < 1 for f in freedom):
        return total, 0.0
    return total, total**2 / doubt if doubt > 0 else MOST


def linearised(
    of: Callable[[NDArray[np.float64]], NDArray[np.float64]], *strata: Sequence[ArrayLike], step: float = 1e-6
) -> Estimate:
    """``of`` the arms' means, (..., arms, K) → (...,), where a stratum holds one table (K, seeds, problems) per arm, all over the
    same problems. With several strata: ``of`` in each of them, averaged; an arm has the same seeds in all.

    A small change of a mean moves ``of`` by its slope: the number varies as the sum of the arms' numbers, each times its slopes.
    """
    tables = [[np.asarray(x, dtype=float) for x in arms] for arms in strata]
    values, slopes = [], []
    for arms in tables:
        at = np.stack([x.mean((1, 2)) for x in arms])  # (arms, K)
        steps = step * np.eye(at.size).reshape(at.size, *at.shape)
        slopes.append(((of(at + steps) - of(at - steps)) / (2 * step * len(strata))).reshape(at.shape))
        values.append(float(of(at)))
    matter = np.any(slopes, axis=(0, 2))  # (arms,): an arm that moves nothing adds nothing, as most of a long line
    matter[0] = True  # one at least
    moved = [
        [np.tensordot(slope, x, 1) for slope, x, on in zip(own, arms, matter) if on]
        for own, arms in zip(slopes, tables)
    ]
    return replace(crossed(*moved), mean=float(np.mean(values)))


@lru_cache(maxsize=4096)
def student(p: float, df: float) -> float:
    """The quantile p > 1/2 of Student's distribution. t = √df·tan θ has the density ∝ cos(θ)^(df−1) in θ."""
    df = min(max(df, 1.0), MOST)
    whole = math.sqrt(math.pi) * math.exp(math.lgamma(df / 2) - math.lgamma((df + 1) / 2))  # over all θ
    low, high = 0.0, math.pi / 2
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        mass = middle / 2 * float(np.cos(middle * PLACES) ** (df - 1) @ WEIGHTS) / whole
        low, high = (low, middle) if mass > p - 0.5 else (middle, high)
    return math.sqrt(df) * math.tan(low)


# ---- one run: problems alone ---------------------------------------------------------------------------------------


def bootstrap_interval(
    values: ArrayLike, other: ArrayLike | None = None, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Bootstrap interval for the mean over problems; with ``other``, for the mean of the paired difference values − other.

    Problems are resampled, samples within a problem are not: the interval says how far this mean would move with another
    draw of problems like these. Rows are problems; a second axis (samples, say) is averaged first. Percentiles are widened by
    √(n/(n−1)), the bootstrap's known shortfall in small sets, and end at the least and the largest value: a mean lies between.
    """
    x = _per_problem("values", values)
    if other is not None:
        y = _per_problem("other", other)
        if x.shape != y.shape:
            raise UserError(
                f"bootstrap_interval: {x.size} problems against {y.size}; a paired difference needs the same ones."
            )
        x = x - y
    _check_level(level)
    mean = float(x.mean())
    if x.size == 1:
        return Interval(mean, float("nan"), float("nan"))
    low, high = np.quantile(_widened(x[:, None], resamples, (seed,)), [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UserError(f"level={level} must lie between 0 and 1: 0.95 for a 95% interval.")


def _per_problem(field: str, values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=float)
    if x.ndim == 0 or x.size == 0:
        raise UserError(f"bootstrap_interval: {field} is empty or a single number; give one value per problem.")
    if not np.isfinite(x).all():
        raise UserError(f"bootstrap_interval: {field} holds NaN or inf; drop the problems that have no value first.")
    return x.reshape(x.shape[0], -1).mean(1)


@dataclass(frozen=True)
class Bands:
    """For each of K numbers: the mean over problems, and its interval (nan where there is one problem)."""

    mean: np.ndarray  # (K,)
    low: np.ndarray
    high: np.ndarray


def bands(
    tables: Sequence[np.ndarray], level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[list[Bands], Bands]:
    """``bootstrap_interval`` for ``tables`` (problems, K) a task: each task's bands, and those of the mean of the tasks' means.

    Problems are resampled within their task. The K numbers of a task share each resample, so this is one matrix product.
    """
    _check_level(level)
    draws = [_widened(x, resamples, (seed, i)) for i, x in enumerate(tables)]  # (R, K) each
    centre = [x.mean(0) for x in tables]
    mean, spread = np.mean(centre, axis=0), np.mean([d - c for d, c in zip(draws, centre)], axis=0)
    each = [_band(c, d - c, level) for c, d in zip(centre, draws)]
    return each, _band(mean, spread, level)


def _band(mean: np.ndarray, spread: np.ndarray, level: float) -> Bands:
    low, high = np.quantile(spread, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Bands(mean, mean + low, mean + high)


def _widened(x: NDArray[np.float64], resamples: int, seed: tuple[int, ...]) -> NDArray[np.float64]:
    """Means of resampled problems (R, K), widened about the mean, as far as the values reach; nan for one problem. What is drawn
    depends on the number of problems, not on their values: kept, where it is small, for the next k or run."""
    size = x.shape[0]
    if size == 1:
        return np.full((resamples, x.shape[1]), np.nan)
    if resamples * size <= KEPT:
        out = _kept(size, resamples, seed) @ x / size
    else:
        out = np.concatenate([times @ x / size for times in _times_drawn(size, resamples, seed)])
    centre: Any = x.mean(0)
    return np.clip(centre + (out - centre) * np.sqrt(size / (size - 1)), x.min(0), x.max(0))


@lru_cache(maxsize=4)
def _kept(n: int, resamples: int, seed: tuple[int, ...]) -> NDArray[np.uint16]:
    return np.concatenate([times.astype(np.uint16) for times in _times_drawn(n, resamples, seed)])


def _times_drawn(n: int, resamples: int, seed: tuple[int, ...]) -> Iterator[NDArray[np.int64]]:
    """(rows, n): how often each problem is in each resample, a block at a time so that memory does not grow with their number."""
    rng, block = np.random.default_rng(seed), max(1, KEPT // 8 // n)
    for i in range(0, resamples, block):
        rows = min(block, resamples - i)
        drawn = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.reshape(-1), minlength=rows * n).reshape(rows, n)
