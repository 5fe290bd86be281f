"""Bands of many numbers at once: what each of them, and each task, keeps to itself."""

import numpy as np
import pytest

from sage_rlvr.stats.intervals import bands


def test_a_band_ends_where_its_own_numbers_do():
    """Two of ten problems solved, beside a number that ranges from −5 to 5."""
    table = np.stack([[1.0, 1.0] + [0.0] * 8, np.linspace(-5, 5, 10)], axis=1)
    (found,), _ = bands([table], level=0.9)
    assert found.low[0] == 0
    assert -5 < found.low[1] < found.high[1] < 5


def test_tasks_are_drawn_apart():
    """The same table twice: the mean of two independent means is narrower by √2."""
    table = np.random.default_rng(0).random((50, 1))
    (one, other), both = bands([table, table], resamples=40_000)
    assert one.high - one.low == pytest.approx(other.high - other.low, rel=0.03)
    assert both.high - both.low == pytest.approx((one.high - one.low) / 2**0.5, rel=0.03)
