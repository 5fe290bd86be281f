"""The rules of docs/protocols/hard.md as benchmarks/gpu/hard_gate.py applies them."""

import sys
from pathlib import Path

import pytest

from sage_rlvr.stats.intervals import Interval

GPU = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


@pytest.fixture
def gate(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(GPU), *sys.path])
    import hard_gate

    return hard_gate


def base(one, many, far):
    return {"pass@1": one, "pass@256": many, "far@512": far}


def test_the_base_has_room_and_reaches_the_far_set(gate):
    fit = {2000: base(0.013, 0.64, 0.25), 2500: base(0.015, 0.5, 0.21)}
    assert gate.choose_base(fit) == 2500
    for unfit in (
        base(0.06, 0.5, 0.3),
        base(0.011, 0.5, 0.3),
        base(0.02, 0.66, 0.3),
        base(0.02, 0.29, 0.3),
        base(0.02, 0.5, 0.19),
    ):
        assert gate.choose_base({**fit, 3000: unfit}) == 2500
    assert gate.choose_base({2500: base(0.02, 0.5, 0.1), 3000: base(0.015, 0.5, 0.19)}) == 2500, "no far set is reached"
    assert gate.choose_base({2500: base(0.02, 0.9, 0.1), 3000: base(0.015, 0.7, 0.19)}) == 3000, "none has room"


def test_the_smallest_rate_that_learns_and_loses(gate):
    def rate(one, high):
        return {"pass@1": one, "lost": Interval(high - 0.05, high - 0.1, high)}

    rows = {1e-4: rate(0.025, -0.02), 3e-4: rate(0.05, -0.01), 6e-4: rate(0.08, -0.2)}
    assert gate.choose_rate(rows, base=0.02) == 3e-4
    assert gate.choose_rate({**rows, 3e-4: rate(0.05, 0.01)}, base=0.02) == 6e-4
    assert gate.choose_rate(rows, base=0.05) == 6e-4, "none doubles it: the highest pass@1"
