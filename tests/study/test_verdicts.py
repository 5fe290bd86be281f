"""Verdicts of a study, against simulated studies in which nothing is better."""

import numpy as np
import pytest

from benchmarks.claims import pairs
from sage_rlvr.stats.frontier import Point, frontiers
from tests.slow import but_few
from tests.stats.test_intervals import PROBLEMS, arms


@pytest.mark.parametrize("seeds", but_few([3, 5], fast=[0]))
def test_better_on_both_is_wrong_once_in_twenty_families_at_most(seeds):
    """Six settings, all of them better in pass@1 and equal in pass@n, binary with a seed sd of .04, where the bootstrap called
    one of them better on both in 12 to 24% of families. By the one side it is 2.5%."""
    rng, studies, wrong = np.random.default_rng(seeds), 200, 0
    for _ in range(studies):
        grids = arms(rng, 12, seeds, 0.04, binary=True)
        families = {
            name: [Point(f"{name}+beta{i}", grids[j + i] * 0 + better, grids[j + i]) for i in range(6)]
            for name, j, better in (("grpo", 0, 0.0), ("sage", 6, 0.5))
        }
        wrong += any(p.better_on_both for p in pairs(families, "grpo"))
    assert wrong / studies <= 0.05 + 0.01


def test_two_seeds_are_never_better():
    grids = np.stack([np.full((2, 30), 0.9), np.full((2, 30), 0.1)])
    families = {n: [Point(f"{n}+beta1", g, g)] for n, g in zip(("sage", "grpo"), grids)}
    (pair,) = pairs(families, "grpo")
    assert pair.pass_1.low > 0
    assert not pair.better_on_both


@pytest.mark.parametrize(("own", "theirs"), but_few([(6, 6), (12, 4)], fast=[0]))
@pytest.mark.parametrize("seeds", but_few([3, 5], fast=[0]))
def test_more_arms_on_the_same_line_gain_nothing(own, theirs, seeds):
    """Both families on one line, true gain 0. A line through the best of twelve arms called 11% of such studies a gain."""
    rng, studies, held, gained = np.random.default_rng([own, seeds]), 200, 0, 0

    def family(name, count, ease, hard):
        points = []
        for t in np.linspace(0, 1, count):
            luck = rng.standard_normal((2, seeds, 1)) * [[[0.004]], [[0.02]]]
            x = (0.13 + 0.04 * t + luck[0]) * ease + 0.03 * rng.standard_normal((seeds, PROBLEMS))
            y = rng.random((seeds, PROBLEMS)) < 0.8 - 0.12 * t + hard + luck[1]
            points.append(Point(f"{name}+beta{t:.3f}", x, y.astype(float)))
        return points

    for _ in range(studies):
        ease, hard = np.exp(0.6 * rng.standard_normal(PROBLEMS) - 0.18), rng.uniform(-0.15, 0.15, PROBLEMS)
        families = {"b": family("b", theirs, ease, hard), "a": family("a", own, ease, hard)}
        gain = frontiers(families, "b")[1].gain
        held += gain.low <= 0 <= gain.high
        gained += gain.low > 0
    assert 0.93 - 0.032 <= held / studies <= 0.97 + 0.022
    assert gained / studies <= 0.025 + 0.02
