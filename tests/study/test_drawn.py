"""What a draw consists of: seeds as well as problems, each as often as it was drawn; and the settings and logs that are met."""

import json

import numpy as np
import pytest

from sage_rlvr.study.distance import excesses, read_runs
from sage_rlvr.study.frontier import Point, frontiers
from sage_rlvr.study.matched import pairs

from .test_against import study_of
from .test_distance import on_the_curve

SEEDS = 40
LUCK = np.tile([-0.1, 0.1], SEEDS // 2)  # of each seed: its mean has a spread of 0.1/√40
SPREAD = 0.1 / SEEDS**0.5


def wide(interval):
    """The spread that a normal's 95% interval of this width has."""
    return (interval.high - interval.low) / (2 * 1.96)


def point(variant, x, y, luck=0.0):
    return Point(variant, np.full((SEEDS, 6), x), y + luck * LUCK[:, None] + np.zeros((SEEDS, 6)))


def test_an_interval_is_over_seeds_too():
    """All problems alike. A height is the mean of its two ends, drawn each by itself: the spread of one, over √2."""
    families = {
        "a": [point("a1", 0.1, 0.8), point("a2", 0.4, 0.5)],
        "b": [point("b1", 0.1, 0.9, luck=1), point("b2", 0.4, 0.6, luck=1)],
    }
    gain = frontiers(families, "a", draws=4000)[1].gain
    assert gain.mean == pytest.approx(0.1)
    assert wide(gain) == pytest.approx(SPREAD / 2**0.5, rel=0.08)


def test_arms_are_met_by_their_setting_not_by_their_place():
    families = {
        "grpo": [point("grpo+beta0.2", 0.5, 0.1), point("grpo+beta0.1", 0.1, 0.6)],
        "sage": [point("sage+beta0.1", 0.3, 0.7), point("sage+beta0.2", 0.8, 0.4)],
    }
    found = {pair.variant: pair for pair in pairs(families, "grpo", draws=20)}
    assert {pair.against for pair in found.values()} == {"grpo+beta0.1", "grpo+beta0.2"}
    assert found["sage+beta0.1"].pass_1 == pytest.approx((0.2,) * 3)
    assert found["sage+beta0.1"].pass_n == pytest.approx((0.1,) * 3)
    assert found["sage+beta0.2"].pass_1 == pytest.approx((0.3,) * 3)
    assert found["sage+beta0.2"].pass_n == pytest.approx((0.3,) * 3)


def test_a_run_weighs_as_often_as_it_was_drawn():
    """References on a known curve, one arm whose seeds lie above it and below."""
    arm = on_the_curve("sage", (0.05,), seeds=SEEDS)
    for run, luck in zip(arm, LUCK):
        run.passes[8] += luck
    runs = [*on_the_curve("ref", (0.01, 0.03, 0.06, 0.1, 0.2)), *arm]
    above = excesses(runs, ["ref"], draws=4000)[1].above
    assert above[8].mean == pytest.approx(0, abs=1e-9)
    assert wide(above[8]) == pytest.approx(SPREAD, rel=0.08)
    assert wide(above[1]) == pytest.approx(0, abs=1e-9)


def test_the_kl_is_that_of_the_end_of_training(tmp_path):
    study_of(tmp_path, {"base": [{"t": [1, 2]}], "grpo": [{"t": [2, 3]}]}, [0])
    log = [{"step": i, "kl_ref": float(i)} for i in range(10)] + [{"step": 10, "train_loss": 0.0}]
    (tmp_path / "grpo-s0" / "train").mkdir()
    (tmp_path / "grpo-s0" / "train" / "log.jsonl").write_text("\n".join(map(json.dumps, log)) + "\n")
    (run,) = read_runs(tmp_path, "t")
    assert run.kl == 8.5  # of the last fifth
    assert {k: float(v.mean()) for k, v in run.passes.items()} == pytest.approx({1: 5 / 16, 8: 1.0})
