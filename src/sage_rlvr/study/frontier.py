"""Frontiers: pass@1 against pass@n over a sweep. β alone walks along a trade-off, so two points prove nothing (METHOD 10).

A family is a variant with a ``sweep`` in the study file. Its frontier joins the points no other point of it beats on both
axes, by straight lines. Two families are compared where both have a frontier: ``height`` is the mean of pass@n over that
range of pass@1, the area under the frontier divided by the range's width. Intervals are over problems and seeds at once; every
draw has its own range, since harder problems move both frontiers to the left together.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.counts import TaskCounts, counts_of
from sage_rlvr.metrics import pass_at_k
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.study.plan import read_folder
from sage_rlvr.study.run import finished_runs
from sage_rlvr.study.table import common_problems

DRAWS = 2000
GRID = 200  # points of the shared range at which frontiers are read


@dataclass(frozen=True)
class Point:
    variant: str
    x: np.ndarray  # (seeds, problems) pass@1
    y: np.ndarray  # (seeds, problems) pass@n


@dataclass(frozen=True)
class Frontier:
    """One family, held against ``reference``. None where the two share no range of pass@1."""

    family: str
    points: dict[str, tuple[float, float]]  # variant → (pass@1, pass@n)
    on_it: list[str]  # those no other beats on both axes
    over: tuple[float, float] | None  # the range of pass@1 that both have
    height: Interval | None
    gain: Interval | None  # height − the reference's over the same range, paired over problems


def frontier_at(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """(..., grid) height of the frontier of the points (x, y), both (..., points); nan outside of it."""
    keep = best(x, y)
    order = np.argsort(np.where(keep, x, np.inf), -1, kind="stable")
    x = np.take_along_axis(np.where(keep, x, np.nan), order, -1)[..., None]
    y = np.take_along_axis(y, order, -1)[..., None]
    out = np.where(grid == x[..., 0, :], y[..., 0, :], np.nan)
    with np.errstate(invalid="ignore"):  # nan: a point that is not on it
        for k in range(x.shape[-2] - 1):
            left, right = x[..., k, :], x[..., k + 1, :]
            share = (grid - left) / np.where(right > left, right - left, 1.0)
            rise = y[..., k + 1, :] - y[..., k, :]
            out = np.where((left <= grid) & (grid <= right), y[..., k, :] + share * rise, out)
    return out


def best(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(..., points) which of them no other one beats: at least as good on both axes and better on one."""
    x, other_x, y, other_y = x[..., :, None], x[..., None, :], y[..., :, None], y[..., None, :]
    beaten = (x <= other_x) & (y <= other_y) & ((x < other_x) | (y < other_y))
    return np.logical_not(beaten.any(-1))


def frontiers(families: dict[str, list[Point]], reference: str, draws: int = DRAWS, seed: int = 0) -> list[Frontier]:
    if reference not in families:
        raise UserError(f"--reference {reference} is no family of this study; it has {', '.join(families)}.")
    plain = {name: means(points) for name, points in families.items()}
    again = drawn(families, draws, seed)
    return [_frontier(name, families[name], plain, again, reference) for name in families]


def means(points: list[Point]) -> tuple[np.ndarray, np.ndarray]:
    """(points,) pass@1 and pass@n over all problems and seeds."""
    return np.array([p.x.mean() for p in points]), np.array([p.y.mean() for p in points])


def drawn(families: dict[str, list[Point]], draws: int, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """family → (draws, points) pass@1 and pass@n, over problems drawn once for all and seeds drawn for each point by itself."""
    rng = np.random.default_rng(seed)
    problems = next(iter(families.values()))[0].x.shape[1]
    weights = shares(rng, problems, draws)
    out = {}
    for name, points in families.items():
        x, y = [], []
        for p in points:
            rows = shares(rng, p.x.shape[0], draws)
            x.append(((rows @ p.x) * weights).sum(1))
            y.append(((rows @ p.y) * weights).sum(1))
        out[name] = np.stack(x, 1), np.stack(y, 1)
    return out


def shares(rng: np.random.Generator, size: int, draws: int) -> np.ndarray:
    """(draws, size): how much of each a bootstrap draw has."""
    return rng.multinomial(size, np.full(size, 1 / size), draws) / size


def ends(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(...,) where the frontier begins and ends on the axis of pass@1."""
    keep = best(x, y)
    return np.where(keep, x, np.inf).min(-1), np.where(keep, x, -np.inf).max(-1)


def _heights(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(..., 2) from where both frontiers begin to where the first ends, and (...,) the mean height of each there: nan where
    they share no range."""
    (low_a, high_a), (low_b, high_b) = ends(*a), ends(*b)
    low, high = np.maximum(low_a, low_b), np.minimum(high_a, high_b)
    grid = np.linspace(low, np.where(high > low, high, np.nan), GRID, axis=-1)
    inside = [np.clip(grid, np.asarray(lo)[..., None], np.asarray(hi)[..., None]) for lo, hi in (ends(*a), ends(*b))]
    heights = (frontier_at(*xy, g).mean(-1) for xy, g in zip((a, b), inside))  # clipped by rounding alone
    return np.stack([low, high], -1), *heights


def _frontier(
    name: str,
    points: list[Point],
    plain: dict[str, tuple[np.ndarray, np.ndarray]],
    again: dict[str, tuple[np.ndarray, np.ndarray]],
    reference: str,
) -> Frontier:
    x, y = plain[name]
    over, own, theirs = _heights(plain[name], plain[reference])
    _, own_again, theirs_again = _heights(again[name], again[reference])
    shared = ~np.isnan(own_again)  # a draw whose frontiers lie apart says nothing of their heights
    height = gain = None
    if over[1] > over[0] and shared.any():
        height = interval(float(own), own_again[shared])
        if name != reference:
            gain = interval(float(own - theirs), (own_again - theirs_again)[shared])
    where = {p.variant: (float(a), float(b)) for p, a, b in zip(points, x, y)}
    span = (float(over[0]), float(over[1])) if over[1] > over[0] else None
    return Frontier(name, where, [p.variant for p, on in zip(points, best(x, y)) if on], span, height, gain)


def interval(mean: float, draws: np.ndarray, level: float = 0.95) -> Interval:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high))


# ---- from a study's folder -----------------------------------------------------------------------------------------


def read_families(out: str | Path, task: str, k: int | None = None) -> dict[str, list[Point]]:
    """family → its points; every variant by itself where the study sweeps nothing. ``k``: of pass@k (default: n)."""
    study, done = read_folder(out), finished_runs(out)
    runs: dict[str, list[TaskCounts]] = {}
    for run, folder in done.items():
        found = counts_of(folder).tasks.get(task)
        if run != "base" and found is not None:
            runs.setdefault(study.variant_of(run)[0], []).append(found)
    if not runs:
        raise UserError(f"{out}: no finished run has samples of {task}; the study evaluates {study.evaluate['tasks']}.")
    keep = common_problems([c for counts in runs.values() for c in counts])
    families: dict[str, list[Point]] = {}
    for variant, counts in runs.items():
        cut = [c.only(keep) for c in counts]
        n = k or cut[0].n * len(cut[0].seeds)
        families.setdefault(study.family_of(variant), []).append(Point(variant, _stack(cut, 1), _stack(cut, n)))
    return families


def _stack(runs: list[TaskCounts], k: int) -> np.ndarray:
    return np.stack([pass_at_k(r.totals, r.rights, k) for r in runs])
