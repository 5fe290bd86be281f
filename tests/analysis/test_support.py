"""Support by hand, and against evaluate's own count."""

import pytest

from sage_rlvr.analysis.support import support
from sage_rlvr.analysis.verdicts import read_verdicts
from sage_rlvr.errors import UserError
from sage_rlvr.evaluate import results as evaluated
from tests.analysis.stores import make_store, words

BASE = {"a": "1000", "b": "0001", "c": "0000", "d": "0000", "e": "0100", "f": "1111", "u": "1?11"}
TRAINED = {"a": "0110", "b": "0000", "c": "0010", "d": "0000", "e": "0001", "f": "1111", "u": "1111"}


@pytest.fixture
def runs(tmp_path):
    return tuple(make_store(tmp_path / name, words("t", w)) for name, w in (("base", BASE), ("trained", TRAINED)))


def test_known_answer(runs):
    s = support(*runs)["t"]
    assert (s.budget, s.P, s.E, s.S, s.O) == (4, ["a", "e", "f"], ["c"], ["b"], ["d"])
    assert s.left_out == ["u"]
    assert pytest.approx(3 / 4) == s.metrics.SRR
    assert pytest.approx(1 / 4) == s.metrics.NDR
    assert pytest.approx(2 * 0.75 * 0.25 / 1.0) == s.metrics.SDS
    assert pytest.approx(0 / 5) == s.metrics.NSCR


def test_a_smaller_budget_looks_at_the_first_samples_alone(runs):
    s = support(*runs, budget=2)["t"]
    assert (s.P, s.E, s.S) == (["a", "f"], [], ["e"])


def test_same_as_evaluate(runs):
    for budget in (None, 1, 3):
        ours, theirs = support(*runs, budget)["t"], evaluated.support(*runs, budget)["t"]
        for field in ("budget", "P", "E", "S", "O", "metrics"):
            assert getattr(ours, field) == getattr(theirs, field), field


def test_whole_cells_only(tmp_path):
    rows = [*words("t", {"a": "0001", "b": "1111"}), *[("t", "a", 1, i, "x", 1.0) for i in range(2)]]
    read = read_verdicts(make_store(tmp_path / "r", rows))
    assert read.tasks["t"].right["a"].tolist() == [False, False, False, True]
    assert read.tasks["t"].pass_at(1) == pytest.approx((1 / 4 + 1) / 2)
    assert "half finished" in read.notes[0]


def test_too_large_a_budget_is_refused(runs):
    with pytest.raises(UserError, match="no problem has 9 samples"):
        support(*runs, budget=9)
