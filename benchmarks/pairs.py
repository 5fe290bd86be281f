"""What the pages of results hold against each other beside frontiers: an arm and the reference's at the same setting, a
family and the references that share its estimator of the KL. The intervals are those of ``sage_rlvr.stats``."""

from collections.abc import Sequence
from dataclasses import dataclass

from sage_rlvr.stats.distance import Excess, Run, excesses
from sage_rlvr.stats.frontier import Point, by_stratum, setting
from sage_rlvr.stats.intervals import FEWEST, Interval, crossed


@dataclass(frozen=True)
class Pair:
    """An arm minus the reference's at the same setting of the sweep."""

    variant: str
    against: str
    pass_1: Interval
    pass_n: Interval
    seeds: int  # of the two, the fewer

    @property
    def better_on_both(self) -> bool:
        return self.seeds >= FEWEST and self.pass_1.low > 0 and self.pass_n.low > 0


def pairs(families: dict[str, list[Point]], reference: str) -> list[Pair]:
    """Every arm whose setting the reference has too. A family's intervals hold all at once with 95% (Bonferroni): with six
    settings one of them would else look better too often."""
    found = []
    at = {setting(p.variant): p for p in families[reference]}
    for family, points in families.items():
        level = 1 - 0.05 / len(points)
        for p in points:
            theirs = at.get(setting(p.variant))
            if family == reference or theirs is None or setting(p.variant) is None:
                continue
            strata, size = by_stratum([p, theirs]), len(p.tables)
            one, many = (crossed(*([a[i] / size, -b[i] / size] for a, b in strata)).interval(level) for i in (0, 1))
            found.append(Pair(p.variant, theirs.variant, one, many, min(len(p.x), len(theirs.x))))
    return found


def like_for_like(runs: Sequence[Run], references: Sequence[str]) -> list[Excess]:
    """Every family but the references, against the curve of those that share its estimator; where there are none, or too few
    for a curve, against the curve of all of them."""
    found: dict[str, Excess] = {}
    for estimator in dict.fromkeys(r.estimator for r in runs):
        alike = [r for r in runs if r.estimator == estimator]
        curve = [f for f in references if any(r.family == f for r in alike)]
        with_all = [*alike, *(r for r in runs if r.family in references and r.estimator != estimator)]
        found |= {e.family: e for e in (excesses(alike, curve) if curve else []) or excesses(with_all, references)}
    return [found[f] for f in dict.fromkeys(r.family for r in runs) if f in found and f not in references]
