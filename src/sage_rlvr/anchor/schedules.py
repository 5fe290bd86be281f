"""Cosine annealing with restarts whose peak decays (METHOD section 2)."""

import math
from dataclasses import dataclass

from sage_rlvr.errors import UserError


@dataclass(frozen=True)
class CosineRestarts:
    """A value that falls from ``high`` to ``low`` along a half cosine, ``periods`` times; each new peak is ``decay`` × the last.

    It is a function of the optimizer step alone, so it cannot drift with micro-batches and needs no state of its own:

    >>> CosineRestarts(0.3, 0.1, periods=2)(step=0, max_steps=100)
    0.3
    """

    high: float
    low: float
    periods: int = 8
    decay: float = 0.9

    def __post_init__(self) -> None:
        if self.periods < 1:
            raise UserError(f"periods={self.periods}: a schedule needs at least one period; set periods to 1 or more.")
        if not 0 < self.decay <= 1:
            raise UserError(f"decay={self.decay}: the peak is multiplied by it, so it must lie in (0, 1].")
        if self.high < self.low:
            raise UserError(f"high={self.high} is below low={self.low}: give the pair as (high, low).")

    def __call__(self, step: int, max_steps: int) -> float:
        if step < 0:
            raise UserError(f"step={step}: optimizer steps count from 0.")
        length = max(1, max_steps // self.periods)
        period = min(step // length, self.periods - 1)
        u = (step % length) / length
        peak = self.high * self.decay**period
        return self.low + (peak - self.low) * (1 + math.cos(math.pi * u)) / 2
