"""Frontiers against shapes whose area is known, and intervals against studies drawn again and again."""

import numpy as np
import pytest

from sage_rlvr import UserError
from sage_rlvr.study.frontier import Point, best, frontier_at, frontiers


def flat(variant, x, y, seeds=3, problems=8):
    """A point that every problem and seed has alike."""
    return Point(variant, np.full((seeds, problems), x), np.full((seeds, problems), y))


def test_best_is_what_nothing_beats():
    x, y = np.array([0.1, 0.2, 0.3, 0.15, 0.3]), np.array([0.9, 0.8, 0.5, 0.7, 0.4])
    assert best(x, y).tolist() == [True, True, True, False, False]
    assert best(np.array([0.2, 0.2]), np.array([0.5, 0.5])).all()  # twins do not beat each other


def test_the_frontier_is_straight_between_its_points():
    x, y = np.array([0.3, 0.1, 0.2, 0.15]), np.array([0.5, 0.9, 0.8, 0.1])
    assert frontier_at(x, y, np.array([0.1, 0.15, 0.25, 0.3])) == pytest.approx([0.9, 0.85, 0.65, 0.5])
    assert np.isnan(frontier_at(x, y, np.array([0.05, 0.35]))).all()


def test_the_area_of_a_trapezium():
    families = {
        "grpo": [flat("g1", 0.1, 0.9), flat("g2", 0.3, 0.5)],
        "sage": [flat("s1", 0.2, 0.8), flat("s2", 0.4, 0.6), flat("s3", 0.15, 0.2)],
    }
    grpo, sage = frontiers(families, "grpo", draws=20)
    assert grpo.height.mean == pytest.approx(0.7)
    assert sage.height.mean == pytest.approx((0.8 + 0.7) / 2)  # over 0.2 … 0.3, where both are
    assert sage.gain == pytest.approx((0.75 - 0.6,) * 3)  # no spread: nothing differs between problems or seeds
    assert grpo.gain is None
    assert sage.on_it == ["s1", "s2"]


def test_no_shared_range_is_said_not_guessed():
    families = {"a": [flat("a1", 0.1, 0.9), flat("a2", 0.2, 0.8)], "b": [flat("b1", 0.3, 0.9), flat("b2", 0.4, 0.8)]}
    assert frontiers(families, "a", draws=5)[1].gain is None
    with pytest.raises(UserError, match="--reference c is no family"):
        frontiers(families, "c")


def test_the_interval_of_the_gain_covers_the_truth():
    """100 studies of 50 problems and 4 seeds; the true gain is 0.05 at every pass@1."""
    rng = np.random.default_rng(0)

    def drawn(variant, x, y, skill):
        noise = 0.05 * rng.standard_normal((2, 4, 1)) + 0.1 * rng.standard_normal(
            (2, 4, 50)
        )  # seed, then problem × seed
        return Point(variant, x + 0.05 * skill + 0 * noise[0], y + 0.2 * skill + noise[1] * 0.2)

    covered = 0
    for _ in range(100):
        skill = rng.standard_normal(50)
        families = {
            "a": [drawn("a1", 0.1, 0.8, skill), drawn("a2", 0.4, 0.5, skill)],
            "b": [drawn("b1", 0.1, 0.85, skill), drawn("b2", 0.4, 0.55, skill)],
        }
        gain = frontiers(families, "a", draws=100, seed=1)[1].gain
        covered += gain.low <= 0.05 <= gain.high
    assert 0.82 <= covered / 100 <= 0.99  # 4 seeds: a bootstrap over so few is a little short of 95%


def test_the_interval_is_no_wider_than_it_must_be():
    """40 studies of one family against itself, on a frontier as steep as the miniature world's. Problems differ tenfold in
    difficulty, so that a draw of them moves both frontiers by half of their width; the difference between them stays."""
    rng = np.random.default_rng(0)
    xs, ys = np.array([0.131, 0.150, 0.165, 0.167, 0.170]), np.array([0.98, 0.965, 0.915, 0.87, 0.79])

    def family(name, ease):
        points = []
        for i, (x, y) in enumerate(zip(xs, ys)):
            one = (x + 0.004 * rng.standard_normal((5, 1))) * ease + 0.05 * rng.standard_normal((5, 200))
            all_of_them = rng.random((5, 200)) < y ** (1 / ease.clip(0.5, 2))
            points.append(Point(f"{name}{i}", one, all_of_them.astype(float)))
        return points

    gains = []
    for _ in range(40):
        ease = np.exp(0.8 * rng.standard_normal(200) - 0.32)
        gains.append(frontiers({"a": family("a", ease), "b": family("b", ease)}, "a", draws=100)[1].gain)
    covered = np.mean([g.low <= 0 <= g.high for g in gains])
    needed = 2 * 1.96 * np.std([g.mean for g in gains])
    assert covered >= 0.9
    assert np.mean([g.high - g.low for g in gains]) < 1.7 * needed
