"""A study on several tasks: every variant's pass@1 and pass@n on each and on their mean, and what it has more than one of them.

Intervals are over problems, within their task and paired between variants, and seeds: a seed is one trained model, the same on
every task, so that a good one is good on all of them. Where a variant has a single seed its intervals are over problems alone,
and say nothing of training again.
"""

from dataclasses import dataclass

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.stats.intervals import FEWEST, Estimate, Interval, crossed

MEAN = "mean of tasks"
DETECTED = 1 + 0.84 / 1.96  # half-widths of a 95% interval that a difference needs to be found four times in five


@dataclass(frozen=True)
class Standing:
    """A variant on one task, or a variant minus another."""

    task: str
    variant: str
    seeds: int  # of two, the fewer
    pass_1: Interval
    pass_n: Interval
    corrected: tuple[Interval, Interval] | None = None  # of a difference: both, for ``comparisons`` variants at once
    comparisons: int = 1

    def verdict(self) -> str:
        """Of a difference: on both numbers at once, or on none; by intervals that hold for all judged variants (Bonferroni)."""
        if self.seeds < FEWEST:
            return f"not judged ({self.seeds} seed{'s' * (self.seeds > 1)} of {FEWEST})"
        sides = [_side(x) for x in self.corrected or (self.pass_1, self.pass_n)]
        if sides[0] == sides[1]:
            return {"above": "better on both", "below": "worse on both"}.get(sides[0], "no detectable difference")
        return f"not better on both: pass@1 {sides[0]}, pass@n {sides[1]}"


def _side(x: Interval) -> str:
    return "above" if x.low > 0 else "below" if x.high < 0 else "not detected"


def detectable(x: Interval) -> float:
    """The size of a difference that an interval as wide as this one leaves out of 0 four times in five."""
    return DETECTED * (x.high - x.low) / 2


@dataclass(frozen=True)
class Standings:
    """``grids[task, variant]`` (2, seeds, problems): pass@1 and pass@n."""

    n: int  # samples a problem
    grids: dict[tuple[str, str], np.ndarray]

    @property
    def tasks(self) -> list[str]:
        """The mean last, where there are several."""
        own = self._own()
        return [*own, *[MEAN] * (len(own) > 1)]

    @property
    def seeds(self) -> dict[str, int]:
        """Of each variant."""
        return {v: grid.shape[1] for (_, v), grid in self.grids.items()}

    def standing(self) -> list[Standing]:
        return [
            Standing(t, v, n, one.interval(within=(0.0, 1.0)), many.interval(within=(0.0, 1.0)))
            for t in self.tasks
            for v, n in self.seeds.items()
            for one, many in [self._estimates(t, v)]
        ]

    def less(self, reference: str) -> list[Standing]:
        """Every trained variant minus ``reference``; the base, which is not trained, has as many seeds as asked."""
        if reference not in self.seeds:
            raise UserError(f"no run of {reference} is finished; there are {', '.join(self.seeds)}.")
        fewest = {v: n if reference == "base" else min(n, self.seeds[reference]) for v, n in self.seeds.items()}
        others = [v for v in self.seeds if v not in ("base", reference)]
        judged = max(1, sum(fewest[v] >= FEWEST for v in others))
        level = 1 - 0.05 / judged
        return [
            Standing(
                t, v, fewest[v], one.interval(), many.interval(), (one.interval(level), many.interval(level)), judged
            )
            for t in self.tasks
            for v in others
            for one, many in [self._estimates(t, v, reference)]
        ]

    def _own(self) -> list[str]:
        return list(dict.fromkeys(task for task, _ in self.grids))

    def _estimates(self, task: str, variant: str, reference: str | None = None) -> tuple[Estimate, Estimate]:
        """Of pass@1 and of pass@n; minus the reference's, where one is named."""
        tasks = self._own() if task == MEAN else [task]
        signs = {variant: 1.0} if reference is None else {variant: 1.0, reference: -1.0}
        one, many = (
            crossed(*([sign * self.grids[t, v][i] / len(tasks) for v, sign in signs.items()] for t in tasks))
            for i in (0, 1)
        )
        return one, many
