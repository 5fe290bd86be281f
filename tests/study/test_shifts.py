"""benchmarks/shifts.py on runs whose shifts are known."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import shifts
from sage_rlvr.stats.counts import RIGHT, WRONG, TaskCounts

ROOT = Path(__file__).parents[2]


def sampled(rng, log_odds, n=256, seeds=2):
    """Counts of a model that is right with these log-odds."""
    p = 1 / (1 + np.exp(-log_odds))
    state = np.where(rng.random((len(p), seeds, n)) < p[:, None, None], RIGHT, WRONG).astype(np.int8)
    none = np.zeros((len(p), seeds), np.int64)
    return TaskCounts("t", [str(i) for i in range(len(p))], [*range(seeds)], n, state, None, None, state * 0, none)


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 0.2), (0.6, 1.0), (-0.5, 1.6)])
def test_it_finds_the_shift_that_was_made(mean, spread):
    rng = np.random.default_rng(3)
    start = rng.normal(-4.5, 1.2, 500)
    own = mean + spread * rng.standard_normal(500)  # of each problem, whatever the seed
    runs = [sampled(rng, start + own) for _ in range(3)]
    found = shifts.shift(shifts.before(sampled(rng, start)), runs, np.arange(500))
    assert found.mean == pytest.approx(mean, abs=0.2)
    assert found.spread == pytest.approx(spread, abs=0.2)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_it_finds_how_much_of_the_spread_another_seed_repeats(share):
    """Also where the start is known badly, which is the same start for both seeds."""
    rng = np.random.default_rng(4)
    start, common = rng.normal(-5, 1, 600), share**0.5 * rng.standard_normal(600)
    runs = [sampled(rng, start + common + (1 - share) ** 0.5 * rng.standard_normal(600)) for _ in range(4)]
    found = shifts.shift(shifts.before(sampled(rng, start, 128, 1)), runs, np.arange(600))
    assert found.again == pytest.approx(share, abs=0.2)
    assert shifts.shift(shifts.before(sampled(rng, start)), runs[:1], np.arange(600)).again is None


def test_pairs_of_seeds_are_taken_on_unlike_draws(monkeypatch):
    """Where all runs answer an evaluation with the same draws, two that did not change repeat each other's luck."""
    rng, asked = np.random.default_rng(6), []
    runs = [sampled(rng, rng.normal(-3, 1, 20)) for _ in range(2)]
    made = shifts.chances
    monkeypatch.setattr(shifts, "chances", lambda counts, seed=None: asked.append(seed) or made(counts, seed))
    shifts.shift(shifts.before(runs[0]), runs, np.arange(20))
    assert [seed for seed in asked if seed is not None] == [0, 1]


def test_an_even_shift_by_the_formula():
    """Two strata of one problem each, whose log-odds are known: the mean of both, at each shift."""
    at = [30, 80]
    posterior = np.zeros((2, shifts.GRID.size))
    posterior[[0, 1], at] = 1.0
    found = shifts.even(posterior, [np.array([0]), np.array([1])], np.array([0.0, 0.7]), 16)
    for (one, many), shift in zip(found, (0.0, 0.7)):
        p = 1 / (1 + np.exp(-shifts.GRID[at] - shift))
        assert one == pytest.approx(p.mean())
        assert many == pytest.approx((1 - (1 - p) ** 16).mean())


def test_the_distribution_before_training_has_the_means_of_what_made_it():
    rng = np.random.default_rng(5)
    start = np.where(rng.random(3000) < 0.3, -2.0, -5.0)
    weights = shifts.before(sampled(rng, start, 128, 1)).mean(0)
    p = 1 / (1 + np.exp(-shifts.GRID))
    truth = 1 / (1 + np.exp(-start))
    for k in (1, 64):
        assert (1 - (1 - p) ** k) @ weights == pytest.approx((1 - (1 - truth) ** k).mean(), abs=0.01)


def test_cells_of_the_gate_stand_beside_grpos_line(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import why

    cell = {"base": "b", "steps": 300, "pool": "once", "rate": 2e-5, "pass@1": 0.035, "pass@64": 0.6}
    cells = [cell, cell | {"steps": 400}, cell | {"base": "c"}, cell | {"pool": "again", "pass@1": 0.06}]
    table = why.gate_table(
        {"n": 64, "line": [(0.04, 0.5), (0.03, 0.58)], "best": {"maxrl+beta0.012": (0.03, 0.59)}},
        {"cell": cell, "cells": cells},
    )
    rows = [[x.strip() for x in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert rows == [
        ["38,400, each seen once", "2e-05", "0.035", "0.600", "0.540", "+0.060"],
        ["6,000, each seen again and again", "2e-05", "0.060", "0.600", "–", "–"],
        ["the search's `maxrl`, β .012", "1.5e-4", "0.030", "0.590", "0.580", "+0.010"],
    ]


def test_the_probe_says_where_problems_began(monkeypatch):
    """Not the base's own evaluation: here that lies 1 above the probe, and a run 2 above it."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import why

    rng = np.random.default_rng(7)
    start, arm = rng.normal(-3, 0.8, 400), "grpo_k3+beta0.012"
    point = SimpleNamespace(variant=arm, mean=(0.1, 0.3))
    halves = (np.arange(200), np.arange(200, 400))
    runs = {"grpo_k3": {arm: [sampled(rng, start + 2) for _ in range(2)]}}
    planes = SimpleNamespace(
        strata=halves, k=4, start=(0.05, 0.2), runs=runs, families=lambda k=None: {"grpo_k3": [point]}
    )
    rows = {row.arm: row for row in why.facts(planes, sampled(rng, start), sampled(rng, start + 1))["shifts"]}
    assert [rows[name].passes for name in ("base", arm)] == [planes.start, point.mean]
    assert [rows[name].room.mean for name in ("base", arm)] == pytest.approx([1, 2], abs=0.2)
    assert [*rows["base"].strata, *rows[arm].strata] == pytest.approx([1, 1, 2, 2], abs=0.3)
