"""Per-problem numbers from count arrays; everything reported is a mean of these over problems."""

from collections.abc import Sequence

import numpy as np

from sage_rlvr.stats.counts import ERROR, LENGTH, RIGHT, TaskCounts
from sage_rlvr.stats.pass_at_k import pass_at_k, vote

DRAWS = 200  # random subsets behind majority@k for 1 < k < all: at most 0.035/√problems of noise in the mean


def default_ks(n: int) -> list[int]:
    """1, 2, 4, … and n itself."""
    return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | ({n} if n else set()))


def pass_table(task: TaskCounts, ks: Sequence[int]) -> np.ndarray:
    """(problems, K): unbiased pass@k from all samples in whole cells, whatever their seed."""
    return pass_at_k(task.totals[:, None], task.rights[:, None], np.asarray(ks, dtype=int)[None])


def pass_grid(runs: Sequence[TaskCounts], k: int) -> np.ndarray:
    """(runs, problems): unbiased pass@k of several runs of the same problems."""
    return pass_at_k(np.stack([r.totals for r in runs]), np.stack([r.rights for r in runs]), k)


def seed_curves(task: TaskCounts, ks: Sequence[int]) -> np.ndarray | None:
    """(seeds, K): each seed's own unbiased pass@k, averaged over the problems that are whole in every seed."""
    whole = task.whole.all(1)
    if not whole.any() or max(ks) > task.n:
        return None
    right = (task.state[whole] == RIGHT).sum(2)  # (problems, seeds)
    return pass_at_k(task.n, right[..., None], np.asarray(ks, dtype=int)).mean(0)


def majority_table(task: TaskCounts, ks: Sequence[int], draws: int = DRAWS) -> np.ndarray | None:
    """(problems, K): chance that the commonest of k answers is right; None where answers were not kept. Answers are equal when
    their text is.

    As majority_at_k: ties count the share of tied answers that are right, and no answer never wins. k = 1 and
    k = all are exact.
    """
    if task.answer is None:
        return None
    out = np.zeros((len(task.problems), len(ks)))
    orders: dict[int, np.ndarray] = {}  # samples are exchangeable: the same subsets serve every problem
    for p, whole in enumerate(task.whole):
        labels, codes = np.unique(task.answer[p][whole].reshape(-1), return_inverse=True)
        hit = (task.state[p][whole] == RIGHT).reshape(-1)
        is_right = (np.bincount(codes, hit, len(labels)) > 0) & (labels != 0)
        size = codes.size
        if size not in orders:
            orders[size] = np.argsort(np.random.default_rng(0).random((draws, size)), axis=1)
        for j, k in enumerate(ks):
            if k == 1:
                out[p, j] = is_right[codes].mean()
            else:
                out[p, j] = vote(codes[np.arange(k)[None] if k == size else orders[size][:, :k]], labels != 0, is_right)
    return out


def distinct_table(task: TaskCounts, column: str) -> np.ndarray | None:
    """(problems,): different right answers, or solutions, in a seed's n samples, mean over seeds; None if none is stored."""
    hashes = getattr(task, column)
    if hashes is None or (column == "solution" and not hashes.any()):
        return None
    found = np.where((task.state == RIGHT) & (hashes != 0), hashes, 0)
    found.sort(axis=2)
    new = (found != 0) & (np.diff(found, axis=2, prepend=np.uint64(0)) != 0)  # the first of each run of equals
    return (new.sum(2) * task.whole).sum(1) / np.maximum(task.whole.sum(1), 1)


def rates(task: TaskCounts) -> dict[str, float]:
    """Shares of the samples in whole cells, and their mean length; of counts alone, what they know."""
    whole = task.whole
    tokens = float(task.tokens[whole].sum() / max(1, whole.sum() * task.n))
    if task.finish is None or task.answer is None:
        return {"tokens": tokens} | ({} if task.truncated is None else {"truncated": task.truncated})
    finish, answered = task.finish[whole], task.answer[whole] != 0
    return {
        "truncated": float((finish == LENGTH).mean()),
        "answered": float(answered.mean()),
        "truncated_without_answer": float(((finish == LENGTH) & ~answered).mean()),
        "errors": float((finish == ERROR).mean()),
        "tokens": tokens,
    }


def solved_in(task: TaskCounts, budget: int) -> np.ndarray:
    """(problems,) bool: a right one among the first ``budget`` samples of the whole cells, by seed and then by index."""
    first = first_right(task)
    return (first > 0) & (first <= budget)


def first_right(task: TaskCounts) -> np.ndarray:
    """(problems,): 1-based place of the first right sample among those in whole cells; 0 where there is none."""
    out = np.zeros(len(task.problems), dtype=int)
    for p, whole in enumerate(task.whole):
        hit = (task.state[p][whole].reshape(-1) == RIGHT).nonzero()[0]
        out[p] = hit[0] + 1 if hit.size else 0
    return out
