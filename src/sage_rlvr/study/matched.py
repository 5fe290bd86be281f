"""One point at a time: its pass@n against what the reference family's frontier has at the same pass@1.

This is what an arm with a single setting can be held to, and where on the frontier a family's gain lies. Problems are drawn
together for the point and the frontier, seeds for each by themselves; a point outside of the frontier's range is not judged,
nor one that more than a tenth of the draws put outside: a frontier's end is as unsure as the point.

And arm against arm, at one setting: better on both, or not.
"""

from dataclasses import dataclass

import numpy as np

from sage_rlvr.stats.intervals import Interval
from sage_rlvr.study.frontier import DRAWS, Point, drawn, ends, frontier_at, interval, means

ASTRAY = 0.1  # share of draws outside of the frontier, above which a point is not judged


@dataclass(frozen=True)
class Matched:
    family: str
    variant: str
    seeds: int
    problems: int
    pass_1: Interval
    pass_n: Interval
    gain: Interval | None  # pass@n − the reference frontier's at this pass@1; None (too often) outside of its range


def matched(families: dict[str, list[Point]], reference: str, draws: int = DRAWS, seed: int = 0) -> list[Matched]:
    """Every point of every family. A drawn point that falls outside of the drawn frontier is held to its nearer end."""
    points = [(family, p) for family, found in families.items() for p in found]
    plain, against = means([p for _, p in points]), means(families[reference])
    at = frontier_at(*against, plain[0])  # (points,) nan outside
    again = drawn({"points": [p for _, p in points], "frontier": families[reference]}, draws, seed)
    (xs, ys), frontier = again["points"], again["frontier"]  # (draws, points)
    low, high = ends(*frontier)
    inside = xs.clip(low[:, None], high[:, None])
    gains, astray = ys - frontier_at(*frontier, inside), (inside != xs).mean(0)
    problems = points[0][1].x.shape[1]
    return [
        Matched(
            family,
            p.variant,
            p.x.shape[0],
            problems,
            interval(float(plain[0][j]), xs[:, j]),
            interval(float(plain[1][j]), ys[:, j]),
            None
            if family == reference or np.isnan(at[j]) or astray[j] > ASTRAY
            else interval(float(plain[1][j] - at[j]), gains[:, j]),
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
    """Every arm whose setting the reference has too; problems are drawn together for both, seeds for each by itself. A family's
    intervals hold all at once with 95% (Bonferroni): with six settings one of them would else look better too often."""
    again, found = drawn(families, draws, seed), []
    at = {_setting(p.variant): j for j, p in enumerate(families[reference])}
    for family, points in families.items():
        level = 1 - 0.05 / len(points)
        for i, p in enumerate(points):
            j = at.get(_setting(p.variant))
            if family == reference or j is None:
                continue
            theirs = families[reference][j]
            less = [own[:, i] - other[:, j] for own, other in zip(again[family], again[reference])]
            plain = p.x.mean() - theirs.x.mean(), p.y.mean() - theirs.y.mean()
            one, many = (interval(float(mean), each, level) for mean, each in zip(plain, less))
            found.append(Pair(p.variant, theirs.variant, one, many))
    return found


def _setting(variant: str) -> str | None:
    """What was swept, and its value: grpo+beta0.05 → beta0.05; None where nothing was."""
    return variant.partition("+")[2] or None
