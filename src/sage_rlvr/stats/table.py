"""A study's table: each variant over its seeds, against the base. Intervals over problems and seeds; one seed: problems alone."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np

from sage_rlvr.stats.counts import RIGHT, TaskCounts
from sage_rlvr.stats.estimates import pass_grid, rates
from sage_rlvr.stats.intervals import Interval, crossed


@dataclass(frozen=True)
class Row:
    """One variant on one task. Values are means over problems of means over seeds; ``std`` is over seeds."""

    task: str
    variant: str
    seeds: int
    problems: int
    pass_at: dict[int, Interval]
    std: dict[int, float]
    solutions: Interval | None  # distinct right solutions a problem, in n samples
    lost: float  # problems the base solves in n samples and this does not, mean over seeds
    gained: float
    tokens: float  # a sample
    truncated: float | None  # share of the samples


def common_problems(runs: list[TaskCounts]) -> list[str]:
    """Problems that every run has whole, in the first run's order."""
    if not runs:
        return []
    shared = set.intersection(*({r.problems[i] for i in np.flatnonzero(r.whole.all(1))} for r in runs))
    return [p for p in runs[0].problems if p in shared]


def variant_row(task: str, variant: str, runs: list[TaskCounts], base: TaskCounts | None) -> Row:
    n = runs[0].n * len(runs[0].seeds)
    ks = sorted({1, *(k for k in (16, 64, 256) if k < n), n})
    per_seed = {k: pass_grid(runs, k) for k in ks}  # (seeds, problems)
    distinct = np.stack([_solutions(r) for r in runs])
    solved = np.stack([r.rights > 0 for r in runs])
    before = base.rights > 0 if base is not None else solved[0]
    kept = [rates(r) for r in runs]
    cut = [r["truncated"] for r in kept if "truncated" in r]
    return Row(
        task=task,
        variant=variant,
        seeds=len(runs),
        problems=len(runs[0].problems),
        pass_at={k: crossed([v]).interval(within=(0, 1)) for k, v in per_seed.items()},
        std={k: float(v.mean(1).std(ddof=1)) if len(runs) > 1 else float("nan") for k, v in per_seed.items()},
        solutions=crossed([distinct]).interval(within=(0, n)) if distinct.any() else None,
        lost=float((before & ~solved).sum(1).mean()),
        gained=float((~before & solved).sum(1).mean()),
        tokens=float(np.mean([r["tokens"] for r in kept])),
        truncated=float(np.mean(cut)) if len(cut) == len(runs) else None,
    )


def _solutions(run: TaskCounts) -> np.ndarray:
    """(problems,) distinct right solutions."""
    found = np.where(run.state == RIGHT, run.solution, 0).reshape(-1, run.state[0].size)
    found.sort(axis=1)
    return np.count_nonzero(np.diff(found, axis=1, prepend=np.uint64(0)), axis=1).astype(float)  # 0, none, comes first


def as_markdown(rows: list[Row]) -> str:
    ks = sorted({k for r in rows for k in r.pass_at})
    return markdown(columns(ks), [cells(r, ks) for r in rows])


def columns(ks: list[int]) -> list[str]:
    passes = [f"pass@{k}" for k in ks]
    return ["task", "variant", "seeds", *passes, "distinct right", "lost", "gained", "tokens", "truncated"]


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in body]) + "\n"


def shown(x: Interval | None, digits: int = 3, sign: str = "") -> str:
    """``sign``: "+" for a difference. One problem has no interval."""
    if x is None:
        return "–"
    mean, low, high = (f"{value:{sign}.{digits}f}" for value in x)
    return mean if x.low != x.low else f"{mean} [{low}, {high}]"


def cells(row: Row, ks: list[int]) -> list[str]:
    passes = [shown(row.pass_at.get(k)) for k in ks]
    lost = ["–", "–"] if row.variant == "base" else [f"{row.lost:.1f}", f"{row.gained:.1f}"]
    cut = "–" if row.truncated is None else f"{row.truncated:.1%}"
    return [row.task, row.variant, str(row.seeds), *passes, shown(row.solutions, 2), *lost, f"{row.tokens:.0f}", cut]


def plain(x: Any) -> Any:
    """As JSON has it: dataclasses as objects, null for nan."""
    if is_dataclass(x) and not isinstance(x, type):
        return plain(asdict(x))
    if isinstance(x, Mapping):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [plain(v) for v in x]
    if isinstance(x, np.generic | np.ndarray):
        return plain(x.tolist())
    return None if isinstance(x, float) and not math.isfinite(x) else x


def as_json(x: Any) -> str:
    return json.dumps(plain(x), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
