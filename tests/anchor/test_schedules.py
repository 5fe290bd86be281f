"""CosineRestarts against METHOD's words, computed step by step with a running peak."""

import math

import pytest

from sage_rlvr import CosineRestarts


def walked(high, low, periods, decay, max_steps):
    """The schedule as a loop that keeps state, the way the text describes it."""
    length, peak, restarts, out = max(1, max_steps // periods), high, 0, []
    for step in range(max_steps):
        if step and step % length == 0 and restarts < periods - 1:
            peak, restarts = peak * decay, restarts + 1
        u = (step % length) / length
        out.append(low + (peak - low) * (1 + math.cos(math.pi * u)) / 2)
    return out


@pytest.mark.parametrize("max_steps", [1, 5, 8, 100, 1000, 1003])
@pytest.mark.parametrize(("high", "low"), [(0.3, 0.1), (0.1, 0.0), (0.25, 0.1)])
def test_equals_the_walk(high, low, max_steps):
    schedule = CosineRestarts(high, low)
    assert [schedule(s, max_steps) for s in range(max_steps)] == pytest.approx(
        walked(high, low, 8, 0.9, max_steps), abs=1e-12
    )


def test_restarts_peak_where_they_should():
    schedule = CosineRestarts(1.0, 0.0)
    assert [round(schedule(125 * i, 1000), 6) for i in range(8)] == [round(0.9**i, 6) for i in range(8)]
    assert schedule(124, 1000) < 0.001
