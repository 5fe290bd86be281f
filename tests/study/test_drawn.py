"""Intervals are over seeds as well as problems; and the settings and logs that are met."""

import json

import numpy as np
import pytest

from benchmarks.claims import pairs
from sage_rlvr.stats.distance import excesses
from sage_rlvr.stats.frontier import Point, frontiers
from sage_rlvr.study.read import read_runs

from .test_against import study_of
from .test_distance import on_the_curve

SEEDS = 40
LUCK = np.tile([-0.1, 0.1], SEEDS // 2)  # of each seed: their mean has an error of 0.1/√39
SPREAD = 0.1 / (SEEDS - 1) ** 0.5


def wide(interval, t):
    """The error that a 95% interval of this width has, by Student's t."""
    return (interval.high - interval.low) / 2 / t


def point(variant, x, y, luck=0.0):
    return Point(variant, np.full((SEEDS, 6), x), y + luck * LUCK[:, None] + np.zeros((SEEDS, 6)))


def test_an_interval_is_over_seeds_too():
    """All problems alike. A height is the mean of its two ends: the error of one, over √2, and twice 39 degrees of freedom."""
    families = {
        "a": [point("a1", 0.1, 0.8), point("a2", 0.4, 0.5)],
        "b": [point("b1", 0.1, 0.9, luck=1), point("b2", 0.4, 0.6, luck=1)],
    }
    gain = frontiers(families, "a")[1].gain
    assert gain.mean == pytest.approx(0.1)
    assert wide(gain, 1.99085) == pytest.approx(SPREAD / 2**0.5, rel=1e-4)


def test_arms_are_met_by_their_setting_not_by_their_place():
    families = {
        "grpo": [point("grpo+beta0.2", 0.5, 0.1), point("grpo+beta0.1", 0.1, 0.6)],
        "sage": [point("sage+beta0.1", 0.3, 0.7), point("sage+beta0.2", 0.8, 0.4)],
    }
    found = {pair.variant: pair for pair in pairs(families, "grpo")}
    assert {pair.against for pair in found.values()} == {"grpo+beta0.1", "grpo+beta0.2"}
    assert found["sage+beta0.1"].pass_1 == pytest.approx((0.2,) * 3)
    assert found["sage+beta0.1"].pass_n == pytest.approx((0.1,) * 3)
    assert found["sage+beta0.2"].pass_1 == pytest.approx((0.3,) * 3)
    assert found["sage+beta0.2"].pass_n == pytest.approx((0.3,) * 3)


def test_a_height_above_the_curve_is_as_unsure_as_its_seeds():
    """References on a known curve, one arm whose seeds lie above it and below."""
    arm = on_the_curve("sage", (0.05,), seeds=SEEDS)
    for run, luck in zip(arm, LUCK):
        run.passes[8] += luck
    runs = [*on_the_curve("ref", (0.01, 0.03, 0.06, 0.1, 0.2)), *arm]
    above = excesses(runs, ["ref"])[1].above
    assert above[8].mean == pytest.approx(0, abs=1e-9)
    assert wide(above[8], 2.02269) == pytest.approx(SPREAD, rel=1e-4)
    assert wide(above[1], 1) == pytest.approx(0, abs=1e-6)


def test_the_kl_is_that_of_the_end_of_training(tmp_path):
    study_of(tmp_path, {"base": [{"t": [1, 2]}], "grpo": [{"t": [2, 3]}]}, [0])
    log = [{"step": i, "kl_ref": float(i)} for i in range(10)] + [{"step": 10, "train_loss": 0.0}]
    (tmp_path / "grpo-s0" / "train").mkdir()
    (tmp_path / "grpo-s0" / "train" / "log.jsonl").write_text("\n".join(map(json.dumps, log)) + "\n")
    (run,) = read_runs(tmp_path, "t")
    assert run.kl == 8.5  # of the last fifth
    assert {k: float(v.mean()) for k, v in run.passes.items()} == pytest.approx({1: 5 / 16, 8: 1.0})
