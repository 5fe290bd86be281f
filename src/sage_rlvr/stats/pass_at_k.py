"""pass@k, majority and support: what is said about samples, on NumPy alone. Intervals: stats/intervals.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import UserError


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> Any:
    """Unbiased pass@k = 1 − C(n−c, k)/C(n, k): the chance that k of the n samples, drawn without replacement, hold a right one.

    n samples, c of them right; scalars or arrays that broadcast. Stable far beyond n = 10,000: the ratio is
    Π_{i=n−c+1..n} (1 − k/i), summed in logs.
    """
    n_, c_, k_ = np.broadcast_arrays(np.asarray(n), np.asarray(c), np.asarray(k))
    for field, values in (("n", n_), ("c", c_), ("k", k_)):
        if values.size and not np.issubdtype(values.dtype, np.integer):
            raise UserError(f"pass_at_k: {field} must hold whole numbers, not {values.dtype}.")
    if np.any((c_ < 0) | (c_ > n_)):
        raise UserError("pass_at_k: c, the number of right samples, must lie between 0 and n.")
    if np.any((k_ < 1) | (k_ > n_)):
        worst = (int(k_[(k_ < 1) | (k_ > n_)][0]), int(n_[(k_ < 1) | (k_ > n_)][0]))
        raise UserError(f"pass_at_k: k={worst[0]} with n={worst[1]} samples; k must lie in 1..n, so draw more samples.")
    out = np.ones(n_.shape)
    for budget in np.unique(k) if n_.size else ():  # a handful of budgets; every problem at once
        here = k_ == budget
        factors = np.arange(budget + 1, int(n_.max()) + 1)
        log_fail = np.concatenate([np.zeros(budget + 1), np.cumsum(np.log1p(-budget / factors))])  # by i, 0 up to k
        total, wrong = n_[here], n_[here] - c_[here]
        with_miss = -np.expm1(log_fail[total] - log_fail[wrong])
        out[here] = np.where(wrong >= budget, with_miss, 1.0)
    return out if out.ndim else float(out)


def mean_at_n(correct: ArrayLike) -> float:
    """mean@n: the share of right samples, averaged over problems ((problems, samples), or one problem's samples)."""
    return float(np.mean(np.asarray(correct, dtype=float)))


def majority_at_k(answers: Sequence[Any], correct: ArrayLike, k: int, draws: int = 1000, seed: int = 0) -> float:
    """majority@k of one problem: how often the commonest of k answers is right; a tie counts the share of tied answers that are.

    An answer of None (nothing extracted) never wins a vote. k = n is exact; below it, ``draws`` random subsets are averaged.
    """
    right = np.asarray(correct, dtype=bool)
    if len(answers) != right.size:
        raise UserError(
            f"majority_at_k: {len(answers)} answers but {right.size} verdicts; give one verdict per answer."
        )
    if not 1 <= k <= right.size:
        raise UserError(f"majority_at_k: k={k} with n={right.size} samples; k must lie in 1..n.")
    labels = list(dict.fromkeys(answers))
    codes = np.array([labels.index(a) for a in answers])
    counted = np.array([a is not None for a in labels])
    is_right = counted & np.array([right[codes == i].any() for i in range(len(labels))])
    if k == right.size:
        chosen = np.arange(k)[None]
    else:
        chosen = np.argsort(np.random.default_rng(seed).random((draws, right.size)), axis=1)[:, :k]
    return vote(codes[chosen], counted, is_right)


def vote(codes: np.ndarray, counted: np.ndarray, is_right: np.ndarray) -> float:
    """Share of the draws (draws, k) whose commonest label is right. ``counted`` (labels,): False for "no answer"."""
    draws, labels = len(codes), len(counted)
    flat = (codes + labels * np.arange(draws)[:, None]).reshape(-1)
    votes = np.bincount(flat, minlength=draws * labels).reshape(draws, labels) * counted
    winners = (votes == votes.max(1, keepdims=True)) & (votes > 0)
    share = (winners & is_right).sum(1) / np.maximum(winners.sum(1), 1)
    return float(share.mean())


@dataclass(frozen=True)
class Support:
    """Who solves what at one budget (unit: the problem), after "The invisible leash" (arXiv 2507.14843)."""

    P: int  # preserved: solved by both
    E: int  # expanded: by the trained model only
    S: int  # shrunk: by the base only
    O: int  # out of reach: by neither  # noqa: E741
    SRR: float  # support retention, P/(P+S)
    NDR: float  # net discovery, E/(P+E)
    SDS: float  # their harmonic mean
    NSCR: float  # net change, (E−S)/(P+E+S)


def support_metrics(base_solved: ArrayLike, trained_solved: ArrayLike) -> Support:
    """P, E, S, O and their ratios from two boolean arrays, one entry a problem. A ratio of nothing is nan."""
    base, trained = np.asarray(base_solved, dtype=bool), np.asarray(trained_solved, dtype=bool)
    if base.shape != trained.shape or base.ndim != 1:
        raise UserError(
            f"support_metrics: base_solved has shape {base.shape}, trained_solved {trained.shape}; "
            "give one entry per problem, the same problems in the same order."
        )
    p, e = int((base & trained).sum()), int((~base & trained).sum())
    s, o = int((base & ~trained).sum()), int((~base & ~trained).sum())
    srr, ndr = _ratio(p, p + s), _ratio(e, p + e)
    return Support(p, e, s, o, srr, ndr, _ratio(2 * srr * ndr, srr + ndr), _ratio(e - s, p + e + s))


def _ratio(a: float, b: float) -> float:
    return a / b if b else float("nan")
