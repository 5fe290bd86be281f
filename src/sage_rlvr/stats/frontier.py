"""Frontiers: pass@1 against pass@n over a sweep. β alone walks along a trade-off, so two points prove nothing (METHOD 10).

A family is a variant with a ``sweep`` in the study file. Its frontier runs through all of its arms, in order of their setting,
by straight lines. Two families are compared where both have a frontier: ``height`` is the mean of pass@n over that range of
pass@1, the area under the frontier divided by the range's width. Where noise folds the line back (a smaller β with a smaller
pass@1) the area is signed, ∫ pass@n d(pass@1) along the line, so that the fold takes away what it had added.

No arm is left out for being beaten by another: a line through the best of many noisy arms lies above the truth, the more arms
the higher, and 12 arms beat 4 on one and the same line in 11% of studies instead of 2.5%. Intervals are over problems and seeds
(``stats.intervals``), the uncertainty of the range among them, since harder problems move both frontiers to the left together.

A study may name its primary measure, as in ``evaluate: {primary: {k: 64, strata: [0, 2, 8, 25]}}``. Problems are sorted by how
many samples of the base's probe were right (0; 1–2; 3–8; 9–25; the rest is left out): an evaluation of its own, whose draws no
run shares, used for nothing else. Families are compared within each stratum, and heights and gains are averaged over the strata.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.stats.counts import TaskCounts
from sage_rlvr.stats.estimates import pass_grid
from sage_rlvr.stats.intervals import Interval, crossed, linearised


@dataclass(frozen=True)
class Point:
    """One arm on the plane of pass@1 and pass@n."""

    variant: str
    x: np.ndarray  # (seeds, problems) pass@1
    y: np.ndarray  # (seeds, problems) pass@n
    strata: tuple[np.ndarray, ...] = ()  # indices of problems; empty: all of them are one stratum

    @cached_property
    def tables(self) -> list[np.ndarray]:
        """(2, seeds, problems) per stratum."""
        both = np.stack([self.x, self.y])
        return [both[:, :, own] for own in self.strata] or [both]

    @cached_property
    def mean(self) -> tuple[float, float]:
        """pass@1 and pass@n, averaged over the strata."""
        x, y = np.mean([table.mean((1, 2)) for table in self.tables], axis=0)
        return float(x), float(y)

    @cached_property
    def levels(self) -> tuple[Interval, Interval]:
        """``mean`` with its intervals."""
        tables, size = self.tables, len(self.tables)
        one, many = (crossed(*([table[i] / size] for table in tables)).interval(within=(0, 1)) for i in (0, 1))
        return one, many


Families = dict[str, list[Point]]


@dataclass(frozen=True)
class Frontier:
    """One family, held against ``reference``. None where the two share no range of pass@1."""

    family: str
    points: dict[str, tuple[float, float]]  # variant → (pass@1, pass@n)
    on_it: list[str]  # those no other beats on both axes
    over: tuple[float, float] | None  # the range of pass@1 that both have, in every stratum; averaged over the strata
    height: Interval | None  # None, too, where none was asked for
    gain: Interval | None  # height − the reference's over the same range, paired over problems
    seeds: int  # of the arm, of either family, that has the fewest
    corrected: Interval | None = None  # the gain's, wide enough for ``comparisons`` families at once (Bonferroni)
    comparisons: int = 1


def setting(variant: str) -> str | None:
    """What was swept, and its value: grpo+beta0.05 → beta0.05; None where nothing was."""
    return variant.partition("+")[2] or None


class Named(Protocol):
    @property
    def variant(self) -> str: ...


A = TypeVar("A", bound=Named)


def in_order(points: Sequence[A]) -> list[A]:
    """By the number in the setting; as the study lists them where one has none, or several."""
    numbers = [re.findall(r"[-+]?\d*\.?\d+(?:e[-+]?\d+)?", setting(p.variant) or "") for p in points]
    if any(len(n) != 1 for n in numbers):
        return list(points)
    return [points[i] for i in sorted(range(len(points)), key=lambda i: float(numbers[i][0]))]


def mean_height(x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(...,) mean of y over ``low`` to ``high`` of x, along the line through the points (..., points) in their order."""
    low, high = np.asarray(low)[..., None], np.asarray(high)[..., None]
    begin, end = x[..., :-1].clip(low, high), x[..., 1:].clip(low, high)  # what of each piece lies in the range
    run = x[..., 1:] - x[..., :-1]
    slope = (y[..., 1:] - y[..., :-1]) / np.where(run == 0, 1.0, run)
    area = ((end - begin) * (y[..., :-1] + slope * ((begin + end) / 2 - x[..., :-1]))).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return area * np.sign(x[..., -1] - x[..., 0]) / (high - low)[..., 0]


def height_at(x: np.ndarray, y: np.ndarray, where: np.ndarray) -> np.ndarray:
    """(...,) of the line at ``where`` (...,): where it folds, its crossings to the right minus those to the left. nan outside."""
    at = np.asarray(where)[..., None]
    left, right = x[..., :-1], x[..., 1:]
    run = np.where(right == left, 1.0, right - left)
    above, below = (left < at) & (at <= right), (right < at) & (at <= left)  # crossed on the way up, or down
    value = y[..., :-1] + (at - left) / run * (y[..., 1:] - y[..., :-1])
    signed = np.where(above, value, 0.0).sum(-1) - np.where(below, value, 0.0).sum(-1)
    found = signed * np.sign(x[..., -1] - x[..., 0])
    low, high = ends(x)
    found = np.where(at[..., 0] == low, np.where(x[..., 0] <= x[..., -1], y[..., 0], y[..., -1]), found)
    return np.where((low <= at[..., 0]) & (at[..., 0] <= high), found, np.nan)


def ends(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(...,) where the line begins and ends on the axis of pass@1."""
    return np.minimum(x[..., 0], x[..., -1]), np.maximum(x[..., 0], x[..., -1])


def best(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(..., points) which of them no other one beats: at least as good on both axes and better on one."""
    x, other_x, y, other_y = x[..., :, None], x[..., None, :], y[..., :, None], y[..., None, :]
    beaten = (x <= other_x) & (y <= other_y) & ((x < other_x) | (y < other_y))
    return np.logical_not(beaten.any(-1))


def frontiers(families: Families, reference: str, comparisons: int = 1, heights: bool = True) -> list[Frontier]:
    """Every family against ``reference``. ``comparisons``: how many of them are judged. Without ``heights``, half of the work."""
    if reference not in families:
        raise UserError(f"--reference {reference} is no family of this study; it has {', '.join(families)}.")
    line = families[reference]
    return [_frontier(f, points, line, f == reference, comparisons, heights) for f, points in families.items()]


def by_stratum(points: Sequence[Point]) -> list[list[np.ndarray]]:
    """Per stratum: the points' tables (2, seeds, problems)."""
    return [list(tables) for tables in zip(*(p.tables for p in points))]


def _shared(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From where both lines, of pass@1 (..., points), begin to where the first ends."""
    (low_a, high_a), (low_b, high_b) = ends(a), ends(b)
    return np.maximum(low_a, low_b), np.minimum(high_a, high_b)


def _frontier(
    name: str, points: list[Point], reference: list[Point], itself: bool, comparisons: int, heights: bool
) -> Frontier:
    own, theirs = in_order(points), in_order(reference)
    size, strata = len(own), by_stratum([*own, *theirs])

    def height(at: np.ndarray) -> np.ndarray:  # (..., arms, 2) → (...,)
        span = _shared(at[..., :size, 0], at[..., size:, 0])
        return mean_height(at[..., :size, 0], at[..., :size, 1], *span)

    def gain(at: np.ndarray) -> np.ndarray:
        span = _shared(at[..., :size, 0], at[..., size:, 0])
        return height(at) - mean_height(at[..., size:, 0], at[..., size:, 1], *span)

    x, y = np.array([p.mean for p in points]).T
    at = np.array([[table[0].mean() for table in arms] for arms in strata])  # (strata, arms) pass@1
    low, high = _shared(at[:, :size], at[:, size:])
    over = (float(low.mean()), float(high.mean())) if (high > low).all() else None
    more = linearised(gain, *strata) if over and not itself else None
    return Frontier(
        name,
        {p.variant: p.mean for p in points},
        [p.variant for p, on in zip(points, best(x, y)) if on],
        over,
        linearised(height, *strata).interval() if over and heights else None,
        more.interval() if more else None,
        min(len(p.x) for p in (*points, *reference)),
        more.interval(1 - 0.05 / comparisons) if more else None,
        comparisons,
    )


# ---- a whole study on one task ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planes:
    """A study's counts on one task, cut to the problems that every finished run has whole: a plane at any k."""

    problems: list[str]
    n: int  # samples of each
    base: np.ndarray | None  # (problems,) right of ``sorts`` samples by the base: of its probe, where there is one
    runs: dict[str, dict[str, list[TaskCounts]]]  # family → variant → a seed each
    k: int  # of the primary measure; n where the study names none
    strata: tuple[np.ndarray, ...] = ()  # of the primary measure: indices of problems
    start: tuple[float, float] | None = None  # the base's pass@1 and pass@k by the primary measure
    sorts: int = 0

    def families(self, k: int | None = None) -> Families:
        """family → its points, pass@1 and pass@k over all problems. Without k: the primary measure."""
        strata = self.strata if k is None else ()
        return {
            family: [Point(v, pass_grid(runs, 1), pass_grid(runs, k or self.k), strata) for v, runs in arms.items()]
            for family, arms in self.runs.items()
        }


def on_problems(families: Families, own: np.ndarray) -> Families:
    """The same over some of the problems (indices), as one stratum."""
    return {family: [Point(p.variant, p.x[:, own], p.y[:, own]) for p in arms] for family, arms in families.items()}
