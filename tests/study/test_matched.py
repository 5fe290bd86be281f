"""Points against the reference's frontier at the same pass@1, where the answer is known; and the figure of both."""

import re

import numpy as np
import pytest

from benchmarks.claims import Pair, pairs
from sage_rlvr.show.figures_study import draw_frontier
from sage_rlvr.stats.frontier import Point, frontiers
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.stats.matched import matched


def flat(variant, x, y, seeds=3, problems=8):
    return Point(variant, np.full((seeds, problems), x), np.full((seeds, problems), y))


FAMILIES = {
    "grpo": [flat("grpo+beta0.1", 0.1, 0.9), flat("grpo+beta0.4", 0.3, 0.5)],
    "sage": [flat("sage+beta0.1", 0.2, 0.8), flat("sage+beta0.4", 0.4, 0.6)],
    "alone": [flat("alone", 0.25, 0.5)],
}


def test_gains_at_the_same_pass_at_1():
    gains = {m.variant: m.gain for m in matched(FAMILIES, "grpo")}
    assert gains["sage+beta0.1"] == pytest.approx((0.1, 0.1, 0.1))  # the frontier has 0.7 at 0.2
    assert gains["alone"] == pytest.approx((-0.1, -0.1, -0.1))  # and 0.6 at 0.25
    assert gains["sage+beta0.4"] is None, "GRPO never reaches 0.4: there is nothing to hold it against"
    assert gains["grpo+beta0.1"] is None


def test_a_point_that_draws_put_outside_of_the_frontier_is_not_judged():
    """Inside by its mean, 0.01 from the frontier's end; seeds differ by ±0.1, so every second study would put it beyond."""
    seeds = np.array([-0.1, 0.1])[:, None] + np.zeros((2, 8))
    near, far = (
        Point(v, x + seeds * spread, np.full((2, 8), 0.6)) for v, x, spread in [("near", 0.29, 1), ("far", 0.29, 0)]
    )
    families = {"grpo": FAMILIES["grpo"], "near": [near], "far": [far]}
    gains = {m.family: m.gain for m in matched(families, "grpo")}
    assert gains["near"] is None
    assert gains["far"] == pytest.approx((0.6 - 0.52,) * 3)


def test_the_interval_is_over_seeds_and_problems():
    """Seeds that differ by ±0.1 in pass@n, 4 of them: their mean has an error of 0.1/√3, and Student's t for 3 is 3.182."""
    rng = np.random.default_rng(0)
    seeds = np.array([-0.1, -0.1, 0.1, 0.1])[:, None]
    point = Point("one", np.full((4, 50), 0.2), 0.7 + seeds + np.zeros((4, 50)))
    skill = 0.2 * rng.standard_normal(50)
    families = {"grpo": [flat("g1", 0.1, 0.9, problems=50), flat("g2", 0.3, 0.5, problems=50)], "one": [point]}
    found = matched(families, "grpo")[-1]
    assert found.gain.mean == pytest.approx(0, abs=1e-9)
    assert (found.gain.high - found.gain.low) / 2 == pytest.approx(3.18245 * 0.1 / 3**0.5, rel=1e-4)
    shared = {f: [Point(p.variant, p.x, p.y + skill) for p in points] for f, points in families.items()}
    again = matched(shared, "grpo")[-1]
    assert again.gain == pytest.approx(tuple(found.gain), abs=0.01), "what all share about a problem cancels"
    assert again.pass_n.high - again.pass_n.low > found.pass_n.high - found.pass_n.low


def test_arm_against_arm_at_the_same_setting():
    """Seeds that differ by ±0.1, 40 of them, on one side: the difference has an error of 0.1/√39; what problems share cancels.
    Two settings: 97.5% each, ±2.331 of it by Student's t for 39."""
    rng = np.random.default_rng(0)
    skill, seeds = 0.3 * rng.standard_normal(50), np.tile([-0.1, 0.1], 20)[:, None]
    still = np.zeros((40, 50)) + skill
    families = {
        "grpo": [Point("grpo+beta0.1", still + 0.1, still + 0.5), Point("grpo+beta0.2", still, still)],
        "sage": [Point("sage+beta0.1", still + 0.3, still + 0.6 + seeds), Point("sage+beta0.9", still, still)],
        "alone": [Point("alone", still, still)],
    }
    (pair,) = pairs(families, "grpo")
    assert (pair.variant, pair.against) == ("sage+beta0.1", "grpo+beta0.1")
    assert pair.pass_1 == pytest.approx((0.2, 0.2, 0.2))
    assert pair.pass_n.mean == pytest.approx(0.1)
    assert (pair.pass_n.high - pair.pass_n.low) / 2 == pytest.approx(2.3313 * 0.1 / 39**0.5, rel=1e-4)
    both = {lows: Pair("a", "b", Interval(1, lows[0], 2), Interval(1, lows[1], 2), 3).better_on_both
            for lows in [(0.1, 0.1), (0.1, 0.0), (-0.1, 0.1)]}  # fmt: skip
    assert list(both.values()) == [True, False, False]
    assert not Pair("a", "b", Interval(1, 0.1, 2), Interval(1, 0.1, 2), 2).better_on_both, "two seeds"


def test_the_figure_has_every_family_and_says_what_it_shows(tmp_path):
    points, found = matched(FAMILIES, "grpo"), frontiers(FAMILIES, "grpo")
    made = draw_frontier(tmp_path / "frontier", points, found, "grpo", 256, (0.05, 0.95))
    assert [f.name for f in made.files] == ["frontier.svg", "frontier.png"]
    assert all(f.stat().st_size > 1000 for f in made.files)
    assert re.search(r"sage \+0\.1\d\d \[", made.description)
    assert "pass@256 against pass@1" in (tmp_path / "frontier.txt").read_text()
    first = made.files[0].read_bytes()
    (tmp_path / "1.5b").mkdir()
    alone = draw_frontier(tmp_path / "1.5b" / "alone.svg", points, found, "grpo", 256, (0.05, 0.95))
    assert sorted(p.name for p in (tmp_path / "1.5b").iterdir()) == ["alone.svg", "alone.txt"], (
        "asked for by its suffix"
    )
    assert alone.files[0].read_bytes() == first, "and the same numbers give the same file"
    text = made.files[0].read_text()
    assert len(re.findall(r'id="axes_', text)) == 2, "one panel for sage, one for the arm alone"


def test_a_figure_of_the_reference_alone(tmp_path):
    only = {"grpo": FAMILIES["grpo"]}
    draw_frontier(tmp_path / "f", matched(only, "grpo"), frontiers(only, "grpo"), "grpo", 8)
    assert (tmp_path / "f.svg").is_file()
