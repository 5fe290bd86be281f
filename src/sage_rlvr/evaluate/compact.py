"""A run's counts without its samples: which right solutions each problem got and how often, some 100 bytes a problem.

A store keeps every completion; a study of hundreds of runs cannot. FOLDER/counts.json says as much as pass@k, distinct
solutions, lost and gained problems and their intervals need, and ``counts_of`` reads it where a folder has no store. What it
leaves out: the texts, the wrong answers (so no majority vote), which samples were truncated (their number is kept), and the
order in which samples were drawn.
"""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.counts import LENGTH, MISSING, RIGHT, WRONG, Counts, TaskCounts, counts_of, hash_of
from sage_rlvr.files import read_json
from sage_rlvr.store.samples import SampleStore

COUNTS = "counts.json"
VERSION = 1


def compact(folder: str | Path) -> dict[str, Any]:
    """The record of a run's folder, as JSON: task → problem → seed by seed [wrong, {right solution: times}, tokens]."""
    if not Path(folder, "store.json").is_file() and Path(folder, COUNTS).is_file():
        return _record(folder)
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


# ---- and back ------------------------------------------------------------------------------------------------------


def from_compact(record: dict[str, Any], folder: str | Path = "") -> Counts:
    """Counts as ``counts_of`` gives them; a problem's right samples stand first."""
    where = folder or "the record"
    if not isinstance(record, dict) or record.get("version") != VERSION:
        version = record.get("version") if isinstance(record, dict) else None
        raise UserError(f"{where} is of version {version} and this release reads {VERSION}.")
    try:
        tasks = {name: _arrays(name, task) for name, task in record["tasks"].items()}
        notes = [*record["notes"], "counts without samples: majority votes and texts are not here"]
        return Counts(str(folder), record["run"], record["model"], dict(record["settings"]), tasks, notes)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        raise UserError(f"{where}: counts.json lacks what such a record has; restore it from a copy.") from e


def _arrays(name: str, task: dict[str, Any]) -> TaskCounts:
    shape = (len(task["problems"]), len(task["seeds"]), task["n"])
    hashes: list[int] = []
    repeats: list[int] = []
    cells: list[tuple[int, int, int]] = []  # right, wrong, tokens
    for wrong, times, total in chain.from_iterable(task["problems"].values()):
        hashes += [hash_of(text) if text else 0 for text in times]
        repeats += times.values()
        cells.append((sum(times.values()), wrong, total))
    right, wrong, tokens = np.array(cells, np.int64).reshape(*shape[:2], 3).transpose(2, 0, 1)
    place, solution = np.arange(task["n"]), np.zeros(shape, np.uint64)
    state = np.where(place < (right + wrong)[..., None], np.int8(WRONG), np.int8(MISSING))
    first = place < right[..., None]
    state[first], solution[first] = RIGHT, np.repeat(np.array(hashes, np.uint64), repeats)
    return TaskCounts(
        name,
        list(task["problems"]),
        task["seeds"],
        task["n"],
        state=state,
        finish=None,
        answer=None,
        solution=solution,
        tokens=tokens.copy(),
        unverifiable=task["unverifiable"],
        truncated=task["truncated"] / max(1, int((right + wrong).sum())),
    )


def read_compact(folder: str | Path) -> Counts | None:
    """What counts_of asks first; None where the folder has a store, or nothing of ours."""
    if Path(folder, "store.json").is_file() or not Path(folder, COUNTS).is_file():
        return None
    return from_compact(_record(folder), folder)


def _record(folder: str | Path) -> dict[str, Any]:
    return read_json(Path(folder, COUNTS))
