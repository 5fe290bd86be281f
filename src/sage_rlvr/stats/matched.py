"""One point at a time: its pass@n against what the reference family's frontier has at the same pass@1.

This is what an arm with a single setting can be held to, and where on the frontier a family's gain lies. A point outside of the
frontier's range is not judged, nor one that chance would put outside more than once in ten: a frontier's end is as unsure as the
point. Near the end of a steep frontier, where a point is judged only if chance puts it inside, the intervals that are given hold
85 to 90 times in 100, not 95; elsewhere they hold. So a matched gain there decides nothing.
Intervals: ``stats.intervals``, over problems, which both sides share, and the seeds of each.
"""

from dataclasses import dataclass

import numpy as np

from sage_rlvr.stats.frontier import Families, Point, by_stratum, height_at, in_order
from sage_rlvr.stats.intervals import Interval, crossed, linearised

ASTRAY = 1.2816  # standard errors from the frontier's end: nearer, and more than a tenth of studies would put the point outside


@dataclass(frozen=True)
class Matched:
    family: str
    variant: str
    seeds: int
    problems: int
    pass_1: Interval
    pass_n: Interval
    gain: Interval | None  # pass@n − the reference frontier's at this pass@1; None (too often) outside of its range


def matched(families: Families, reference: str, level: float = 0.95) -> list[Matched]:
    """Every point of every family. ``level``: of the gains."""
    line = in_order(families[reference])
    return [
        Matched(
            family,
            p.variant,
            p.x.shape[0],
            p.x.shape[1],
            *p.levels,
            None if family == reference else _gain(p, line, level),
        )
        for family, points in families.items()
        for p in points
    ]


def _gain(point: Point, line: list[Point], level: float) -> Interval | None:
    strata = by_stratum([point, *line])

    def over(at: np.ndarray) -> np.ndarray:  # (..., arms, 2) → (...,)
        x, y = at[..., 0], at[..., 1]
        return y[..., 0] - height_at(x[..., 1:], y[..., 1:], x[..., 0])

    for arms in strata:
        own, *x = (table[0] for table in arms)
        left, right = sorted((x[0], x[-1]), key=np.mean)  # the line's ends
        for room in (crossed([own, -left]), crossed([right, -own])):
            if room.mean <= max(0.0, ASTRAY * room.error):  # with one point on the line, both are 0
                return None
    return linearised(over, *strata).interval(level)
