"""The rules of docs/protocols/hard.md as benchmarks/gpu/hard_gate.py applies them."""

import json
import multiprocessing as mp
import sys
from pathlib import Path

import pytest

from sage_rlvr.stats.intervals import Interval
from sage_rlvr.study.plan import load_study
from tests import forked

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


def test_strata_are_of_the_right_answers_of_256(gate):
    import numpy as np

    right = np.array([0, 0, 1, 2, 3, 8, 9, 25, 26, 200])
    assert gate.strata(right).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_what_is_lost_is_counted_where_the_base_was_right_9_to_25_times(gate):
    """By the base's second seed: its first chose the problems."""
    import torch

    first, second, after = [0, 10, 12, 200], [0, 9, 5, 256], [256, 0, 0, 0]
    base = gate.Measured("t", list("abcd"), [0, 1], 256, torch.tensor([list(zip(first, second))]), None, None)
    cell = gate.Measured("t", list("abcd"), [0], 256, torch.tensor([[[c] for c in after]]), None, None)
    expected = -(gate.pass_at_k(256, 9, 64) + gate.pass_at_k(256, 5, 64)) / 2
    assert gate.lost(base, cell, 0, 64).mean == pytest.approx(expected)


def _runs(*argv):
    """The gate over two rates, in a process of its own, its workers forked (tests/forked.py): they import nothing anew."""
    sys.path.insert(0, str(GPU))
    import hard_gate

    hard_gate.get_context = lambda _: mp.get_context("fork")
    hard_gate.RATES = hard_gate.RATES[1:3]
    sys.argv = ["hard_gate.py", *argv]
    sys.exit(hard_gate.main())


@pytest.mark.slow
def test_the_whole_gate_runs(gate, tmp_path):
    """Few steps: what it writes is a study that can be run."""
    done = forked.run(_runs, "--quick", "--out", str(tmp_path), "--to", str(tmp_path / "gate.json"), timeout=1200)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gate.json").read_text())
    assert len(found["bases"]) == len(gate.GUESSES)
    assert len(found["cells"]) == len(gate.GUESSES) * len(gate.POOLS) * 2 * 2
    assert {row["rate"] for row in found["cells"]} == {*gate.RATES[1:3]}
    study = load_study(tmp_path / "hard.yaml")
    assert study.train["learning_rate"] == found["cell"]["rate"]
    assert study.variants["low_rate+beta0.05"]["learning_rate"] == pytest.approx(found["cell"]["rate"] / 3, rel=1e-2)
    base = json.loads((tmp_path / "study" / "base" / "start.json").read_text())["model"]
    assert Path(base, "model.safetensors").is_file()
    kind = found["cell"]["base"].rpartition("-")[0]
    assert study.base["demonstrations"]["guesses"] == gate.GUESSES[kind]
