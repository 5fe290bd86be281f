"""Metrics against brute force, exact integers and simulation."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from sage_rlvr import UserError, majority_at_k, mean_at_n, pass_at_k, support_metrics


def test_pass_at_k_is_brute_force_over_all_subsets():
    for n in range(1, 11):
        for c in range(n + 1):
            right = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(combinations(right, k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize("n", [256, 10_000])
def test_pass_at_k_is_exact_for_large_n(n):
    """Against Python's exact integers, relative, where the value is tiny and where it is nearly one."""
    for c in (0, 1, 2, n // 100 + 1, n // 2, n - 1, n):
        for k in (1, 2, 16, n // 2, n - 1, n):
            exact = 1 - comb(n - c, k) / comb(n, k) if c * k > n else (comb(n, k) - comb(n - c, k)) / comb(n, k)
            assert pass_at_k(n, c, k) == pytest.approx(exact, rel=1e-9, abs=1e-15)


def test_pass_at_k_broadcasts():
    c = np.array([[0, 3], [7, 16]])
    out = pass_at_k(16, c[..., None], np.array([1, 4, 16]))
    assert out.shape == (2, 2, 3)
    assert out[1, 0, 1] == pytest.approx(pass_at_k(16, 7, 4))
    mixed = pass_at_k(np.array([4, 8]), np.array([2, 2]), 4)
    assert mixed == pytest.approx([pass_at_k(4, 2, 4), pass_at_k(8, 2, 4)])
    assert isinstance(pass_at_k(4, 2, 1), float)


def test_pass_at_k_is_unbiased():
    rng = np.random.default_rng(0)
    p, n, k = 0.05, 64, 16
    estimates = pass_at_k(n, rng.binomial(n, p, 20_000), k)
    truth = 1 - (1 - p) ** k
    assert abs(estimates.mean() - truth) < 4 * estimates.std() / 20_000**0.5


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((4, 5, 1), "c, the number of right samples"),
        ((4, 1, 5), "k=5 with n=4 samples"),
        ((4, 1, 0), "k=0"),
        ((4.5, 1, 1), "whole"),
    ],
)
def test_pass_at_k_mistakes(args, sentence):
    with pytest.raises(UserError, match=sentence):
        pass_at_k(*args)


def test_mean_and_majority_against_enumeration():
    answers = ["7", "7", "8", "9", None, "8", "8"]
    correct = [a == "7" for a in answers]
    assert mean_at_n([correct, [True] * 7]) == pytest.approx((2 / 7 + 1) / 2)
    assert majority_at_k(answers, correct, 7) == 0.0
    for k in (1, 2, 3, 5):
        scores = []
        for subset in combinations(range(7), k):
            votes = [answers[i] for i in subset if answers[i] is not None]
            top = max((votes.count(v) for v in votes), default=0)
            tied = {v for v in votes if votes.count(v) == top}
            scores.append(("7" in tied) / len(tied) if tied else 0.0)
        assert majority_at_k(answers, correct, k, draws=20_000) == pytest.approx(np.mean(scores), abs=0.02)
    assert majority_at_k([None, None], [False, False], 2) == 0.0
    with pytest.raises(UserError, match="3 answers but 1 verdicts"):
        majority_at_k(["1", "2", "3"], [True], 1)


def test_support_by_hand():
    base = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    trained = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    s = support_metrics(base, trained)
    assert (s.P, s.E, s.S, s.O) == (3, 2, 1, 4)
    assert pytest.approx(3 / 4) == s.SRR
    assert pytest.approx(2 / 5) == s.NDR
    assert pytest.approx(2 * 0.75 * 0.4 / 1.15) == s.SDS
    assert pytest.approx(1 / 6) == s.NSCR
    assert np.isnan(support_metrics([0, 0], [0, 0]).SRR)
    with pytest.raises(UserError, match="the same problems in the same order"):
        support_metrics([1, 0], [1])
