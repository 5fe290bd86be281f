"""One point at a time: its pass@n against what the reference family's frontier has at the same pass@1.

This is what an arm with a single setting can be held to, and where on the frontier a family's gain lies. Problems are drawn
together for the point and the frontier, seeds for each by themselves; a point outside of the frontier's range is not judged.

And arm against arm, at one setting: better on both, or not.
"""

from dataclasses import dataclass

import numpy as np

from sage_rlvr.metrics import Interval
from sage_rlvr.study.frontier import DRAWS, Point, drawn, ends, frontier_at, interval, means


@dataclass(frozen=True)
class Matched:
    family: str
    variant: str
    seeds: int
    problems: int
    pass_1: Interval
    pass_n: Interval
    gain: Interval | None  # pass@n − the reference frontier's at this pass@1; None outside of its range


def matched(families: dict[str, list[Point]], reference: str, draws: int = DRAWS, seed: int = 0) -> list[Matched]:
    """Every point of every family. A drawn point that falls outside of the drawn frontier is held to its nearer end."""
    points = [(family, p) for family, found in families.items() for p in found]
    plain, against = means([p for _, p in points]), means(families[reference])
    at = frontier_at(*against, plain[0])  # (points,) nan outside
    again = drawn({"points": [p for _, p in points], "frontier": families[reference]}, draws, seed)
    (xs, ys), frontier = again["points"], again["frontier"]  # (draws, points)
    low, high = ends(*frontier)
    gains = ys - frontier_at(*frontier, xs.clip(low[:, None], high[:, None]))
    problems = points[0][1].x.shape[1]
    return [
        Matched(
            family,
            p.variant,
            p.x.shape[0],
            problems,
            interval(float(plain[0][j]), xs[:, j]),
            interval(float(plain[1][j]), ys[:, j]),
            None if family == reference or np.isnan(at[j]) else interval(float(plain[1][j] - at[j]), gains[:, j]),
        )
        for j, (family, p) in enumerate(points)
    ]


@dataclass(frozen=True)
class Pair:
    """An arm less the reference's at the same setting of the sweep."""

    variant: str
    against: str
    pass_1: Interval
    pass_n: Interval

    @property
    def better_on_both(self) -> bool:
        return self.pass_1.low > 0 and self.pass_n.low > 0


def pairs(families: dict[str, list[Point]], reference: str, draws: int = DRAWS, seed: int = 0) -> list[Pair]:
    """Every arm whose setting the reference has too; problems are drawn together for both, seeds for each by itself."""
    again, found = drawn(families, draws, seed), []
    at = {_setting(p.variant): j for j, p in enumerate(families[reference])}
    for family, points in families.items():
        for i, p in enumerate(points):
            j = at.get(_setting(p.variant))
            if family == reference or j is None:
                continue
            theirs = families[reference][j]
            one, many = (interval(float(own.mean() - other.mean()), again[family][axis][:, i] - again[reference][axis][:, j])
                         for axis, (own, other) in enumerate([(p.x, theirs.x), (p.y, theirs.y)]))  # fmt: skip
            found.append(Pair(p.variant, theirs.variant, one, many))
    return found


def _setting(variant: str) -> str | None:
    """What was swept, and its value: grpo+beta0.05 → beta0.05; None where nothing was."""
    return variant.partition("+")[2] or None
