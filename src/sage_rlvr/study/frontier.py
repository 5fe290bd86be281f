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
from sage_rlvr.metrics import Interval, pass_at_k
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
    """(grid,) height of the frontier of the points (x, y); nan outside of it."""
    keep = best(x, y)
    order = np.argsort(x[keep])
    return np.interp(grid, x[keep][order], y[keep][order], left=np.nan, right=np.nan)


def best(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which points no other one beats: at least as good on both axes and better on one."""
    beaten = (x[:, None] <= x) & (y[:, None] <= y) & ((x[:, None] < x) | (y[:, None] < y))
    return np.logical_not(beaten.any(1))


def frontiers(families: dict[str, list[Point]], reference: str, draws: int = DRAWS, seed: int = 0) -> list[Frontier]:
    if reference not in families:
        raise UserError(f"--reference {reference} is no family of this study; it has {', '.join(families)}.")
    plain = {name: means(points) for name, points in families.items()}
    rng = np.random.default_rng(seed)
    problems = families[reference][0].x.shape[1]
    spans = {name: _shared(plain[reference], xy) for name, xy in plain.items()}
    drawn: dict[str, list[tuple[float, float]]] = {name: [] for name, span in spans.items() if span is not None}
    for _ in range(draws):
        weights = rng.multinomial(problems, np.full(problems, 1 / problems)) / problems
        again = {name: means(families[name], weights, rng) for name in drawn | {reference: []}}
        for name in drawn:
            span = _shared(again[reference], again[name])
            if span is not None:  # a draw whose frontiers lie apart says nothing of their heights
                drawn[name].append((_height(again[name], span), _height(again[reference], span)))
    return [_frontier(name, families[name], plain, spans[name], drawn.get(name), reference) for name in families]


def means(
    points: list[Point], weights: np.ndarray | None = None, rng: np.random.Generator | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(points,) pass@1 and pass@n: over all problems and seeds, or over a draw of both."""
    x, y = [], []
    for p in points:
        seeds, problems = p.x.shape
        rows = np.bincount(rng.integers(seeds, size=seeds), minlength=seeds) if rng is not None else np.ones(seeds)
        w = weights if weights is not None else np.full(problems, 1 / problems)
        x.append(rows / seeds @ p.x @ w)
        y.append(rows / seeds @ p.y @ w)
    return np.array(x), np.array(y)


def ends(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Where the frontier begins and ends on the axis of pass@1."""
    inside = x[best(x, y)]
    return float(inside.min()), float(inside.max())


def _shared(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> np.ndarray | None:
    """(GRID,) pass@1 from where both frontiers begin to where the first ends."""
    (low_a, high_a), (low_b, high_b) = ends(*a), ends(*b)
    low, high = max(low_a, low_b), min(high_a, high_b)
    return np.linspace(low, high, GRID) if high > low else None


def _height(xy: tuple[np.ndarray, np.ndarray], span: np.ndarray) -> float:
    """Mean height over a span inside of the frontier."""
    return float(frontier_at(*xy, span.clip(*ends(*xy))).mean())  # clipped by rounding alone


def _frontier(
    name: str,
    points: list[Point],
    plain: dict[str, tuple[np.ndarray, np.ndarray]],
    span: np.ndarray | None,
    drawn: list[tuple[float, float]] | None,
    reference: str,
) -> Frontier:
    x, y = plain[name]
    height = gain = None
    if span is not None and drawn:
        own, theirs = _height(plain[name], span), _height(plain[reference], span)
        draws = np.array(drawn)
        height = interval(own, draws[:, 0])
        gain = interval(own - theirs, draws[:, 0] - draws[:, 1]) if name != reference else None
    where = {p.variant: (float(a), float(b)) for p, a, b in zip(points, x, y)}
    over = None if span is None else (float(span[0]), float(span[-1]))
    return Frontier(name, where, [p.variant for p, on in zip(points, best(x, y)) if on], over, height, gain)


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
