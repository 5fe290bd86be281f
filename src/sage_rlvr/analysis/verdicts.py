"""Right or wrong, sample by sample: what support, the grid and the pattern counts start from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.store import SampleStore

KEY = ("task", "problem", "seed", "index")


def is_right(row: dict[str, Any]) -> bool:
    """A verdict of 1; one that was cut off before it gave an answer is wrong whatever its scorer said."""
    cut = row["finish"] == "length" and row["answer"] is None
    return row["verdict"] is not None and row["verdict"] >= 1 and not cut


def rows(store: SampleStore, columns: Sequence[str], task: str | None = None) -> Iterator[dict[str, Any]]:
    """Samples as dicts, with their keys, ``right``, and the columns asked for; those with an unverifiable gold are left out."""
    wanted = list(dict.fromkeys([*KEY, "verdict", "finish", "answer", *columns]))
    for batch in store.scan(wanted, task):
        for row in batch.to_pylist():
            if row["verdict"] is not None:
                yield row | {"right": is_right(row)}


@dataclass
class TaskVerdicts:
    """``right[problem]`` = (m,) bool, the samples of its whole (problem, seed) cells by seed and then by index."""

    task: str
    n: int  # asked for, each seed
    seeds: list[int]
    right: dict[str, np.ndarray]
    left_out: list[str] = field(default_factory=list)  # unverifiable, or with no whole cell

    def pass_at(self, k: int) -> float:
        """Unbiased, over the problems that have k samples; nan if none has."""
        use = [r for r in self.right.values() if r.size >= k]
        if not use:
            return float("nan")
        return float(np.mean(pass_at_k(np.array([r.size for r in use]), np.array([int(r.sum()) for r in use]), k)))


@dataclass
class RunVerdicts:
    folder: str
    settings: dict[str, Any]
    tasks: dict[str, TaskVerdicts]
    notes: list[str]


def read_verdicts(folder: str | Path) -> RunVerdicts:
    store = SampleStore(folder, readonly=True)
    found: dict[str, dict[str, dict[int, dict[int, bool | None]]]] = {}
    for batch in store.scan([*KEY, "verdict", "finish", "answer"]):
        for row in batch.to_pylist():
            cells = found.setdefault(row["task"], {}).setdefault(row["problem"], {})
            cells.setdefault(row["seed"], {})[row["index"]] = None if row["verdict"] is None else is_right(row)
    tasks, notes = {}, []
    for task in dict.fromkeys([*store.problems, *found]):
        tasks[task] = _task(task, store, found.get(task, {}))
        short = sum(len(c) < tasks[task].n for cells in found.get(task, {}).values() for c in cells.values())
        never = len(set(tasks[task].left_out) - set(found.get(task, {})))
        if short or never:
            notes.append(f"{folder}, {task}: half finished, {short} cells lack samples and {never} problems have none")
    if store.damaged:
        notes.append(f"{folder}: {len(store.damaged)} unreadable shards left out")
    return RunVerdicts(str(folder), dict(store.settings), tasks, notes)


def _task(task: str, store: SampleStore, found: dict[str, dict[int, dict[int, bool | None]]]) -> TaskVerdicts:
    asked = store.problems.get(task)
    n = max([asked.n if asked else 0, *(max(c) + 1 for cells in found.values() for c in cells.values())])
    out = TaskVerdicts(task, n, sorted({*(asked.seeds if asked else ()), *(s for c in found.values() for s in c)}), {})
    for problem in dict.fromkeys([*(asked.problems if asked else ()), *found]):
        cells = found.get(problem, {})
        whole = [cells[s] for s in sorted(cells) if len(cells[s]) == n]
        doubtful = any(v is None for cell in cells.values() for v in cell.values())
        if whole and not doubtful:
            out.right[problem] = np.array([cell[i] for cell in whole for i in range(n)], dtype=bool)
        else:
            out.left_out.append(problem)
    out.left_out += [p for p in (asked.unverifiable if asked else ()) if p not in out.left_out]
    return out
