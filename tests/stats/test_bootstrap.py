"""The bootstrap of one run, against plain resampling and simulated evaluations."""

import numpy as np
import pytest

from sage_rlvr import UserError, bootstrap_interval
from sage_rlvr.stats import intervals


def test_paired_bootstrap_covers_the_true_difference():
    """500 simulated studies of 40 problems: per-problem success rates differ between two runs that share difficulty."""
    rng = np.random.default_rng(0)
    covered, studies, gain = 0, 500, 0.03
    for i in range(studies):
        difficulty = rng.beta(1, 2, 40) * 0.9
        a = rng.binomial(64, difficulty + gain) / 64
        b = rng.binomial(64, difficulty) / 64
        _, low, high = bootstrap_interval(a, b, resamples=1000, seed=i)
        covered += low <= gain <= high
    assert 0.92 <= covered / studies <= 0.98


def test_unpaired_interval_covers_and_pairing_is_narrower():
    rng = np.random.default_rng(1)
    covered = 0
    for i in range(500):
        _, low, high = bootstrap_interval(rng.beta(1, 3, 60), resamples=1000, seed=i)
        covered += low <= 0.25 <= high
    assert 0.92 <= covered / 500 <= 0.98
    shared = rng.random(40)
    mean, low, high = bootstrap_interval(shared + 0.1, shared)
    assert mean == pytest.approx(0.1)
    assert high - low < 1e-9


def test_an_interval_ends_where_the_values_do():
    """Two of ten problems solved: a tenth of the resamples has none, and widened about the mean they would lie below 0."""
    solved = np.array([1.0, 1.0] + [0.0] * 8)
    rate, low, high = bootstrap_interval(solved, level=0.9)
    assert (rate, low) == (0.2, 0.0)
    assert 0.2 < high < 1
    assert bootstrap_interval(1 - solved, level=0.9).high == 1
    assert bootstrap_interval(solved, np.ones(10), level=0.9).low == -1


def test_kept_draws_are_those_of_plain_resampling(monkeypatch):
    x = np.random.default_rng(3).random(300)
    rng = np.random.default_rng(7)
    means = np.array([x[rng.integers(0, 300, 300)].mean() for _ in range(500)])
    ends = x.mean() + (np.quantile(means, [0.025, 0.975]) - x.mean()) * np.sqrt(300 / 299)
    monkeypatch.setattr(intervals, "KEPT", 500 * 300)
    assert bootstrap_interval(x, resamples=500, seed=7)[1:] == pytest.approx(tuple(ends), abs=1e-12)
    monkeypatch.setattr(intervals, "KEPT", 500 * 300 - 1)  # too many to keep: in blocks of 62
    assert bootstrap_interval(x, resamples=500, seed=7)[1:] == pytest.approx(tuple(ends), abs=1e-12)


def test_bootstrap_is_seeded_averages_seeds_and_refuses_nonsense():
    x = np.random.default_rng(2).random((30, 5))
    assert bootstrap_interval(x) == bootstrap_interval(x.mean(1))
    assert bootstrap_interval(x, seed=1) != bootstrap_interval(x, seed=2)
    wide, narrow = bootstrap_interval(x, level=0.99), bootstrap_interval(x, level=0.5)
    assert wide.high - wide.low > narrow.high - narrow.low
    assert np.isnan(bootstrap_interval([0.5]).low)
    for bad, sentence in (([], "empty"), ([np.nan, 1.0], "NaN"), (3.0, "single number")):
        with pytest.raises(UserError, match=sentence):
            bootstrap_interval(bad)
    with pytest.raises(UserError, match="3 problems against 2"):
        bootstrap_interval([1, 2, 3], [1, 2])
