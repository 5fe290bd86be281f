"""What a run scored: pass@k, majority@k, each with its interval; support against a base.

Point estimates pool a problem's samples over seeds: n·seeds of them stand behind pass@k, k = 1, 2, 4, … n. Intervals resample
problems: they say how far the mean would move with another draw of problems like these (docs/reference/numbers.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.stats import estimates
from sage_rlvr.stats.counts import Counts, Gap, TaskCounts, counts_of, shared
from sage_rlvr.stats.intervals import RESAMPLES, Bands, bands
from sage_rlvr.stats.pass_at_k import Support, support_metrics
from sage_rlvr.stats.table import as_json
from sage_rlvr.store.samples import SampleStore

Source = str | Path | SampleStore | Counts


@dataclass
class Estimate:
    """A mean over problems and its interval; beside it the mean and standard deviation of the seeds' own estimates."""

    value: float
    low: float | None = None  # None: one problem has no interval
    high: float | None = None
    seed_mean: float | None = None
    seed_std: float | None = None  # n−1 in the denominator; None with one seed


@dataclass
class TaskResult:
    """One task. With no whole problem there are no estimates, and ``incomplete`` says why."""

    task: str
    problems: int  # that stand behind the numbers
    n: int
    seeds: list[int]
    pass_at: dict[int, Estimate] = field(default_factory=dict)
    majority_at: dict[int, Estimate] = field(default_factory=dict)
    distinct_answers: Estimate | None = None  # right and different, in n samples of a problem
    distinct_solutions: Estimate | None = None
    rates: dict[str, float] = field(default_factory=dict)
    unverifiable: list[str] = field(default_factory=list)  # dropped
    incomplete: list[Gap] = field(default_factory=list)  # cells not used
    left_out: list[str] = field(default_factory=list)  # problems with too few whole cells


@dataclass
class Average:
    """The mean of the tasks' means: each task weighs the same, however many problems it has, as in the paper."""

    tasks: list[str]
    pass_at: dict[int, Estimate]
    majority_at: dict[int, Estimate]


@dataclass
class SupportTask:
    """Solved = a right one among the first ``budget`` samples, by seed and then by index: no randomness, no estimate."""

    budget: int
    metrics: Support
    P: list[str]
    E: list[str]
    S: list[str]
    O: list[str]  # noqa: E741
    left_out: list[str]


@dataclass
class Results:
    run: str
    model: str
    folder: str
    level: float
    settings: dict[str, Any]
    tasks: dict[str, TaskResult]
    average: Average | None
    notes: list[str]
    support: dict[str, SupportTask] | None = None  # against a base

    def to_json(self) -> str:
        return as_json(self)

    def save(self, path: str | Path) -> Path:
        Path(path).write_text(self.to_json())
        return Path(path)


def results(
    source: Source,
    ks: Sequence[int] | None = None,
    level: float = 0.95,
    base: Source | None = None,
    resamples: int = RESAMPLES,
) -> Results:
    """Everything about one run; with ``base``, also the support at the smaller n."""
    counts = counts_of(source)
    kept = {name: _kept(task, ks, counts.folder) for name, task in counts.tasks.items()}
    tables = {name: _table(whole, ks) for name, whole in kept.items() if whole.problems}
    if not tables:
        raise UserError(f"{counts.folder} has no problem with all its samples yet; let eval go on, then look again.")
    tasks = {
        name: _task_result(counts.tasks[name], whole, tables.get(name), level, resamples)
        for name, whole in kept.items()
    }
    average = _average(kept, tables, level, resamples)
    notes = counts.notes + [
        f"{name}: no problem is complete; not in the average" for name in kept if name not in tables
    ]
    compared = None if base is None else support(base, counts)
    return Results(counts.run, counts.model, counts.folder, level, counts.settings, tasks, average, notes, compared)


def _kept(task: TaskCounts, ks: Sequence[int] | None, folder: str) -> TaskCounts:
    """The problems with enough whole samples for every k."""
    most = task.n * len(task.seeds)
    if ks is not None and (not ks or min(ks) < 1 or max(ks) > most):
        raise UserError(
            f"ks={list(ks)} with {most} samples per problem of {task.task} in {folder}; every k must lie in 1..{most}."
        )
    return task.at_least(max(ks) if ks else 1)


_Table = tuple[list[int], np.ndarray]  # the ks, and (problems, 1 or 2, K): pass@k, then majority@k where it is known


def _table(whole: TaskCounts, ks: Sequence[int] | None) -> _Table:
    own = sorted(set(ks)) if ks else estimates.default_ks(whole.n)
    tables = (estimates.pass_table(whole, own), estimates.majority_table(whole, own))
    return own, np.stack([table for table in tables if table is not None], axis=1)


def _task_result(task: TaskCounts, whole: TaskCounts, table: _Table | None, level: float, resamples: int) -> TaskResult:
    out = TaskResult(task.task, len(whole.problems), task.n, task.seeds, unverifiable=task.unverifiable)
    out.incomplete, out.left_out = task.gaps(), [p for p in task.problems if p not in set(whole.problems)]
    if table is None:
        return out
    own, each = table
    distinct = {c: estimates.distinct_table(whole, c) for c in ("answer", "solution")}
    extra = {c: x for c, x in distinct.items() if x is not None}
    at = each.reshape(len(each), -1)
    (band,), _ = bands([np.column_stack([at, *extra.values()])], level, resamples)
    found = _estimates(band)
    _add_seeds(found, estimates.seed_curves(whole, own))
    out.pass_at, out.majority_at = dict(zip(own, found)), dict(zip(own, found[len(own) : at.shape[1]]))
    rest = dict(zip(extra, found[at.shape[1] :]))
    out.distinct_answers, out.distinct_solutions = rest.get("answer"), rest.get("solution")
    out.rates = estimates.rates(whole)
    return out


def _average(kept: dict[str, TaskCounts], tables: dict[str, _Table], level: float, resamples: int) -> Average:
    own = sorted(set.intersection(*(set(ks) for ks, _ in tables.values())))
    at = [each[..., [ks.index(k) for k in own]].reshape(len(each), -1) for ks, each in tables.values()]
    found = _estimates(bands(at, level, resamples)[1])
    curves = [estimates.seed_curves(kept[name], own) for name in tables]
    if len({tuple(kept[name].seeds) for name in tables}) == 1 and all(c is not None for c in curves):
        _add_seeds(found, np.mean([c for c in curves if c is not None], axis=0))
    return Average(list(tables), dict(zip(own, found)), dict(zip(own, found[len(own) :])))


def _estimates(band: Bands) -> list[Estimate]:
    return [Estimate(float(m), _number(a), _number(b)) for m, a, b in zip(band.mean, band.low, band.high)]


def _number(x: float) -> float | None:
    return None if math.isnan(x) else float(x)


def _add_seeds(found: list[Estimate], curves: np.ndarray | None) -> None:
    """curves: (seeds, K), for the first K estimates."""
    if curves is not None:
        for i, column in enumerate(curves.T):
            found[i].seed_mean = float(column.mean())
            found[i].seed_std = float(column.std(ddof=1)) if len(column) > 1 else None


# ---- two runs ----------------------------------------------------------------------------------------------------


def support(base: Source, trained: Source, budget: int | None = None) -> dict[str, SupportTask]:
    """Who solves what in ``budget`` samples (default: the smaller n), task by task."""
    a, b = counts_of(base), counts_of(trained)
    out = {}
    names = [t for t in a.tasks if t in b.tasks]
    if not names:
        raise UserError(f"{a.folder} and {b.folder} share no task; evaluate both on the same tasks.")
    for name in names:
        k = budget or min(a.tasks[name].n, b.tasks[name].n)
        (one, two), left_out = shared([a, b], name, k)
        if not one.problems:
            raise UserError(f"support: no problem of {name} has {k} samples in both runs; choose a smaller budget.")
        x, y = estimates.solved_in(one, k), estimates.solved_in(two, k)
        preserved, gained, lost, neither = (
            [p for p, is_in in zip(one.problems, group) if is_in] for group in (x & y, ~x & y, x & ~y, ~x & ~y)
        )
        out[name] = SupportTask(k, support_metrics(x, y), preserved, gained, lost, neither, left_out)
    return out
