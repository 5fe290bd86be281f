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


def base(one, least, far):
    return {"pass@1": one, "least": least, "far@512": far}


def test_the_base_has_room_and_reaches_the_far_set(gate):
    fit = {"a": base(0.013, 90, 0.25), "b": base(0.015, 60, 0.21)}
    assert gate.choose_base(fit) == "b"
    for unfit in (base(0.06, 60, 0.3), base(0.005, 60, 0.3), base(0.02, 39, 0.3), base(0.02, 60, 0.19)):
        assert gate.choose_base({**fit, "c": unfit}) == "b"
    assert gate.choose_base({"a": base(0.02, 50, 0.1), "b": base(0.015, 50, 0.19)}) == "a", "no far set is reached"
    assert gate.choose_base({"a": base(0.09, 50, 0.1), "b": base(0.06, 50, 0.19)}) == "b", "none has room"


def test_the_shortest_training_that_rises_nearly_most_and_loses(gate):
    def cell(steps, rise, high):
        return {"steps": steps, "rise": rise, "lost": Interval(high - 0.05, high - 0.1, high)}

    best, soon, early = cell(400, 2.0, -0.02), cell(200, 1.92, -0.01), cell(100, 1.8, -0.01)
    assert gate.choose_cell([best, soon, early]) == soon
    assert gate.choose_cell([best, cell(200, 1.92, 0.01), early]) == best, "what loses nothing has nothing to keep"
    assert gate.choose_cell([cell(400, 2.0, 0.1), cell(200, 1.5, 0.1)])["steps"] == 400, "none loses: the best"


def test_the_smallest_stratum(gate, tmp_path, monkeypatch):
    import numpy as np

    right = [0, 0, 0, 1, 2, 3, 3, 9, 10, 30]
    state = np.array([[[2] * r + [1] * (40 - r)] for r in right])
    counts = type("Counts", (), {"tasks": {gate.HARD: type("Task", (), {"state": state})}})
    monkeypatch.setattr(gate, "counts_of", lambda folder: counts)
    assert gate.least(tmp_path, [0, 2, 8, 25]) == 2
    assert gate.least(tmp_path, [0, 4, 8, 25]) == 0, "nobody has 5 to 8"
