"""Frontiers against shapes whose area is known, and intervals against studies drawn again and again."""

from dataclasses import replace

import numpy as np
import pytest

from sage_rlvr import UserError
from sage_rlvr.stats.frontier import Point, best, frontiers, height_at, in_order, mean_height


def flat(variant, x, y, seeds=3, problems=8):
    """A point that every problem and seed has alike."""
    return Point(variant, np.full((seeds, problems), x), np.full((seeds, problems), y))


def test_best_is_what_nothing_beats():
    x, y = np.array([0.1, 0.2, 0.3, 0.15, 0.3]), np.array([0.9, 0.8, 0.5, 0.7, 0.4])
    assert best(x, y).tolist() == [True, True, True, False, False]
    assert best(np.array([0.2, 0.2]), np.array([0.5, 0.5])).all()  # twins do not beat each other


@pytest.mark.parametrize("turn", [1, -1])
def test_the_frontier_is_straight_between_its_points(turn):
    """β upwards or downwards: the same line."""
    x, y = np.array([0.1, 0.2, 0.3])[::turn], np.array([0.9, 0.8, 0.5])[::turn]
    assert height_at(x, y, np.array([0.1, 0.15, 0.25, 0.3])) == pytest.approx([0.9, 0.85, 0.65, 0.5])
    assert np.isnan(height_at(x, y, np.array([0.05, 0.35]))).all()
    assert mean_height(x, y, 0.15, 0.3) == pytest.approx((0.05 * 0.825 + 0.1 * 0.65) / 0.15)


def test_a_fold_takes_away_what_it_added():
    """To 0.3, back to 0.2 on a lower line, and on to 0.4: by hand, forth minus back plus forth."""
    x, y = np.array([0.1, 0.3, 0.2, 0.4]), np.array([0.9, 0.7, 0.6, 0.4])
    assert height_at(x, y, 0.25) == pytest.approx(0.75 - 0.65 + 0.55)
    area = 0.2 * 0.8 - 0.1 * 0.65 + 0.2 * 0.5
    assert mean_height(x, y, 0.1, 0.4) == pytest.approx(area / 0.3)
    steps = np.linspace(0.1, 0.4, 30_001)
    assert mean_height(x, y, 0.1, 0.4) == pytest.approx(height_at(x, y, steps).mean(), abs=1e-4)


def test_arms_are_joined_in_the_order_of_their_setting():
    names = ["a+beta0.4", "a+beta0.003", "a+beta1e-4", "a+beta0.05"]
    points = [flat(name, 0.1, 0.1) for name in names]
    assert [p.variant for p in in_order(points)] == ["a+beta1e-4", "a+beta0.003", "a+beta0.05", "a+beta0.4"]
    several = [flat(name, 0.1, 0.1) for name in ("a+w2+beta1", "a+w1+beta1")]
    assert in_order(several) == several


def test_the_area_of_a_trapezium():
    families = {
        "grpo": [flat("g1", 0.1, 0.9), flat("g2", 0.3, 0.5)],
        "sage": [flat("s1", 0.2, 0.8), flat("s2", 0.4, 0.6)],
    }
    grpo, sage = frontiers(families, "grpo")
    assert grpo.height.mean == pytest.approx(0.7)
    assert sage.height.mean == pytest.approx((0.8 + 0.7) / 2)  # over 0.2 … 0.3, where both are
    assert sage.gain == pytest.approx((0.75 - 0.6,) * 3)  # no spread: nothing differs between problems or seeds
    assert grpo.gain is None
    assert sage.on_it == ["s1", "s2"]
    assert frontiers(families, "grpo", heights=False)[1] == replace(sage, height=None)


def test_no_shared_range_is_said_not_guessed():
    families = {"a": [flat("a1", 0.1, 0.9), flat("a2", 0.2, 0.8)], "b": [flat("b1", 0.3, 0.9), flat("b2", 0.4, 0.8)]}
    assert frontiers(families, "a")[1].gain is None
    with pytest.raises(UserError, match="--reference c is no family"):
        frontiers(families, "c")
