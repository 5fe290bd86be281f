"""A run's counts without its samples: which right solutions each problem got and how often, some 100 bytes a problem.

A store keeps every completion; a study of hundreds of runs cannot. FOLDER/counts.json says as much as pass@k, distinct
solutions, lost and gained problems and their intervals need, and ``counts_of`` reads it where a folder has no store. What it
leaves out: the texts, the wrong answers (so no majority vote), which samples were truncated (their number is kept), and the
order in which samples were drawn.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from sage_rlvr.files import read_json
from sage_rlvr.stats.counts import COUNTS, LENGTH, MISSING, RIGHT, VERSION, WRONG, TaskCounts, counts_of, hash_of
from sage_rlvr.store.samples import SampleStore


def compact(folder: str | Path) -> dict[str, Any]:
    """The record of a run's folder, as JSON: task → problem → seed by seed [wrong, {right solution: times}, tokens]."""
    if not Path(folder, "store.json").is_file() and Path(folder, COUNTS).is_file():
        return read_json(Path(folder, COUNTS))
    counts, texts = counts_of(folder), _solutions(folder)
    tasks = {name: _task(task, texts) for name, task in counts.tasks.items()}
    about = {"run": counts.run, "model": counts.model, "settings": counts.settings, "notes": counts.notes}
    return {"version": VERSION, **about, "tasks": tasks}


def _solutions(folder: str | Path) -> dict[int, str]:
    """hash → the solution it stands for."""
    found: set[str] = set()
    for batch in SampleStore(folder, readonly=True).scan(("solution",)):
        found.update(batch.column("solution").unique().drop_null().to_pylist())
    return {hash_of(text): text.strip() for text in found}


def _task(task: TaskCounts, texts: dict[int, str]) -> dict[str, Any]:
    def cell(p: int, s: int) -> list[Any]:
        right = task.state[p, s] == RIGHT
        times = Counter(texts.get(int(h), "") for h in task.solution[p, s][right])
        return [int((task.state[p, s] == WRONG).sum()), dict(sorted(times.items())), int(task.tokens[p, s])]

    cells = {name: [cell(p, s) for s in range(len(task.seeds))] for p, name in enumerate(task.problems)}
    assert task.finish is not None, "a store has every sample's"
    cut = int(((task.finish == LENGTH) & (task.state != MISSING)).sum())
    return {"n": task.n, "seeds": task.seeds, "unverifiable": task.unverifiable, "truncated": cut, "problems": cells}
