"""Bootstrap over problems for many numbers at once, and for the mean of several tasks' means."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sage_rlvr.errors import UserError

RESAMPLES = 10_000


@dataclass(frozen=True)
class Bands:
    """For each of K numbers: the mean over problems, and its interval (nan where there is one problem)."""

    mean: np.ndarray  # (K,)
    low: np.ndarray
    high: np.ndarray


def bands(
    tables: Sequence[np.ndarray], level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[list[Bands], Bands]:
    """``tables``: (problems, K) a task. Gives each task's bands, and those of the mean of the tasks' means.

    As metrics.bootstrap_interval does, problems are resampled within their task, samples within a problem are not, and the
    spread is widened by √(P/(P−1)), within the values' range. The K numbers of a task share each resample, so this is one
    matrix product.
    """
    if not 0 < level < 1:
        raise UserError(f"level={level} must lie between 0 and 1: 0.95 for a 95% interval.")
    draws = [_means(x, resamples, np.random.default_rng([seed, i])) for i, x in enumerate(tables)]  # (R, K) each
    centre = [x.mean(0) for x in tables]
    mean, spread = np.mean(centre, axis=0), np.mean([d - c for d, c in zip(draws, centre)], axis=0)
    each = [_band(c, d - c, level) for c, d in zip(centre, draws)]
    return each, _band(mean, spread, level)


def _means(x: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Means of resampled problems (R, K), already widened about the mean, as far as the values reach."""
    size = x.shape[0]
    if size == 1:
        return np.full((resamples, x.shape[1]), np.nan)
    out = np.empty((resamples, x.shape[1]))
    block = max(1, 2_000_000 // size)
    for i in range(0, resamples, block):
        rows = min(block, resamples - i)
        picks = rng.integers(0, size, (rows, size)) + size * np.arange(rows)[:, None]
        weights = np.bincount(picks.reshape(-1), minlength=rows * size).reshape(rows, size)  # how often each was drawn
        out[i : i + rows] = weights @ x / size
    centre = x.mean(0)
    return np.clip(centre + (out - centre) * np.sqrt(size / (size - 1)), x.min(0), x.max(0))


def _band(mean: np.ndarray, spread: np.ndarray, level: float) -> Bands:
    low, high = np.quantile(spread, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Bands(mean, mean + low, mean + high)
