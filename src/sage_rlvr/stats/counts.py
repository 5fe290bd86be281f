"""From a store to count arrays: 22 bytes a sample, whatever its text was.

Where a larger n was asked for later and is not there yet, a problem keeps the numbers it had: counts are of the largest n
that leaves out no problem which a smaller one has.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.store.keys import Keys, grown
from sage_rlvr.store.samples import FINISHES, Asked, SampleStore

MISSING, WRONG, RIGHT, UNVERIFIABLE = 0, 1, 2, 3
LENGTH = FINISHES.index("length")
ERROR = FINISHES.index("error")
NOT_ASKED = Asked(problems=[], n=0, seeds=[])
MOST = 10**9  # samples of a task: 22 GB of counts
COUNTS, VERSION = "counts.json", 1  # the file that ``compact`` writes, and its form
COLUMNS = ("task", "problem", "seed", "index", "verdict", "finish", "answer", "solution", "tokens", "run", "model")
# of a sample
ARRAYS = {"state": np.int8, "finish": np.int8, "answer": np.uint64, "solution": np.uint64, "tokens": np.int32}


@dataclass(frozen=True)
class Gap:
    """A (problem, seed) with fewer samples than were asked for."""

    problem: str
    seed: int
    have: int
    want: int


@dataclass(frozen=True)
class TaskCounts:
    """One task's samples. Arrays are (problems, seeds, n), and stay as they are: what is counted of them is counted once."""

    task: str
    problems: list[str]
    seeds: list[int]
    n: int
    state: np.ndarray  # int8: MISSING, WRONG, RIGHT, UNVERIFIABLE
    finish: np.ndarray | None  # int8: an index into FINISHES; None where only counts were kept
    answer: np.ndarray | None  # uint64: a hash, 0 where there is none; likewise
    solution: np.ndarray  # uint64: a hash, 0 where there is none
    tokens: np.ndarray  # (problems, seeds) int64: summed over the samples present
    unverifiable: list[str] = field(default_factory=list)  # dropped: not in ``problems``
    truncated: float | None = None  # share of the samples, where ``finish`` was not kept

    @cached_property
    def whole(self) -> np.ndarray:
        """(problems, seeds): every sample that was asked for is there."""
        return (self.state != MISSING).all(2)

    @cached_property
    def totals(self) -> np.ndarray:
        """(problems,): samples in whole cells."""
        return self.whole.sum(1) * self.n

    @cached_property
    def rights(self) -> np.ndarray:
        """(problems,): right samples in whole cells."""
        return ((self.state == RIGHT) & self.whole[..., None]).sum((1, 2))

    def gaps(self) -> list[Gap]:
        have = (self.state != MISSING).sum(2)
        lack = zip(*np.nonzero(have < self.n))
        return [Gap(self.problems[p], self.seeds[s], int(have[p, s]), self.n) for p, s in lack]

    def only(self, problems: Sequence[str]) -> "TaskCounts":
        """The same for some of the problems, in the order given."""
        if list(problems) == self.problems:
            return self
        at = {p: i for i, p in enumerate(self.problems)}
        rows = [at[p] for p in problems]
        arrays = {name: getattr(self, name) for name in ARRAYS}
        own: dict[str, Any] = {name: None if array is None else array[rows] for name, array in arrays.items()}
        truncated = self.truncated if set(problems) == set(self.problems) else None
        return replace(self, problems=list(problems), truncated=truncated, **own)

    def at_least(self, k: int) -> "TaskCounts":
        """The problems that have k samples or more in whole cells."""
        return self.only([p for p, m in zip(self.problems, self.totals) if m >= max(k, 1)])


@dataclass
class Counts:
    """What is counted of one run."""

    folder: str
    run: str
    model: str
    settings: dict[str, Any]
    tasks: dict[str, TaskCounts]
    notes: list[str] = field(default_factory=list)  # what a reader must know: damaged shards, a re-scoring cut short


def counts_of(source: "str | Path | SampleStore | Counts") -> Counts:
    """Reads a store once, a batch at a time; where there is none, the counts.json that stands for one."""
    if isinstance(source, Counts):
        return source
    if not isinstance(source, SampleStore) and _is_compact(source):
        return from_compact(read_json(Path(source, COUNTS)), source)
    store = source if isinstance(source, SampleStore) else SampleStore(source, readonly=True)
    tally = _Tally()
    for batch in store.scan(COLUMNS):
        tally.add(batch)
    asked = store.problems
    names = list(dict.fromkeys([*asked, *(cell[0] for cell in tally.keys.rows)]))
    if not names:
        raise UserError(f"{store.folder} holds no samples yet; run eval into it first.")
    notes = []
    if store.damaged:
        notes.append(f"{len(store.damaged)} unreadable shards left out: {', '.join(store.damaged)}")
    if left := store.rescoring:
        notes.append(f"re-scoring was cut short: {len(left)} of {len(store.shards())} shards have their old verdicts")
    tasks = {name: tally.task(name, asked.get(name, NOT_ASKED)) for name in names}
    notes += [
        f"{name}: n={asked[name].n:,} was asked for and is not there for every problem, so the numbers are of the first "
        f"{task.n:,} samples of each; the same eval with --n {asked[name].n} draws the rest"
        for name, task in tasks.items()
        if name in asked and task.n < asked[name].n
    ]
    return Counts(str(store.folder), tally.run, tally.model, dict(store.settings), tasks, notes)


class _Tally:
    """Rows are cells (task, problem, seed), columns are sample indices, in the order in which Keys met them."""

    def __init__(self) -> None:
        self.keys, self.run, self.model = Keys(), "", ""
        self.arrays: dict[str, np.ndarray] = {name: np.zeros((64, 64), dtype) for name, dtype in ARRAYS.items()}

    def add(self, batch: pa.RecordBatch) -> None:
        rows, columns = self.keys.locate(batch), batch.column("index").to_numpy()
        verdict = batch.column("verdict").to_numpy(zero_copy_only=False).astype(float)  # a null becomes nan
        finish = pc.index_in(batch.column("finish"), pa.array(FINISHES)).to_numpy()
        answer = _hashes(batch.column("answer"))
        right = (verdict >= 1) & ~((finish == LENGTH) & (answer == 0))  # cut off before an answer: wrong
        state = np.where(np.isnan(verdict), UNVERIFIABLE, np.where(right, RIGHT, WRONG))
        solution, tokens = _hashes(batch.column("solution")), batch.column("tokens").to_numpy()
        for name, values in zip(ARRAYS, (state, finish, answer, solution, tokens)):
            self.arrays[name] = grown(self.arrays[name], *self.keys.bits.shape)
            self.arrays[name][rows, columns] = values
        self.run, self.model = batch.column("run")[0].as_py(), batch.column("model")[0].as_py()

    def task(self, name: str, asked: Asked) -> TaskCounts:
        cells = {cell[1:]: row for cell, row in self.keys.rows.items() if cell[0] == name}
        seeds = sorted({s for _, s in cells} | set(asked.seeds))
        problems = list(dict.fromkeys([*asked.problems, *(p for p, _ in cells)]))
        doubtful = {p for (p, _), row in cells.items() if (self.arrays["state"][row] == UNVERIFIABLE).any()}
        unsampled = [p for p in asked.unverifiable if p not in set(problems)]  # the others were judged after all
        dropped = [*unsampled, *(p for p in problems if p in doubtful)]
        problems = [p for p in problems if p not in set(dropped)]
        at = np.array([[cells.get((p, s), -1) for s in seeds] for p in problems], dtype=int).reshape(-1, len(seeds))
        n = self._size(name, at, asked)

        def pick(table: np.ndarray) -> np.ndarray:
            out = grown(table, 1, n)[at, :n]  # (problems, seeds, n)
            out[at < 0] = 0  # a cell that never began
            return out

        arrays: dict[str, Any] = {array: pick(table) for array, table in self.arrays.items()}
        arrays["tokens"] = arrays["tokens"].sum(2, dtype=np.int64)
        return TaskCounts(name, problems, seeds, n, unverifiable=list(dict.fromkeys(dropped)), **arrays)

    def _size(self, name: str, at: np.ndarray, asked: Asked) -> int:
        """How many samples of each cell are counted. ``at``: (problems, seeds), the row of each, −1 where there is none."""
        there = np.where(at[..., None] < 0, False, self.arrays["state"][at] != MISSING)
        seen = int(np.flatnonzero(there.any((0, 1))).max(initial=-1)) + 1
        # (problems,): how many samples their fullest cell has without a gap
        leading = np.logical_and.accumulate(there, axis=2).sum(2).max(1, initial=0)
        most = max(seen, asked.n)
        sizes = sorted(s for s in {*asked.sizes, most} if s <= most)
        if asked.n and not asked.sizes and leading.size and not (leading >= most).any():
            sizes = sorted({int(leading.min()) or most, most})  # what was asked before was not written down then
        n = max(s for s in sizes if (leading >= s).sum() == (leading >= sizes[0]).sum())
        if n * at.size > MOST:
            raise UserError(
                f"{name}: n={n:,} was asked for, which is {n * at.size:,} samples in all and more than can be counted "
                f"({MOST:,}); lower that n in store.json, task by task, to what is there."
            )
        return n


def shared(runs: Sequence[Counts], task: str, k: int) -> tuple[list[TaskCounts], list[str]]:
    """One task of several runs, cut to the problems that all have verifiable and with k whole samples; the ids left out."""
    found = [run.tasks[task] for run in runs]
    asked = list(dict.fromkeys(p for t in found for p in [*t.problems, *t.unverifiable]))
    # a gold unverifiable in one run is missing here, so dropped from all
    ready = [set(t.at_least(k).problems) for t in found]
    both = [p for p in asked if all(p in r for r in ready)]
    return [t.only(both) for t in found], [p for p in asked if p not in set(both)]


def _hashes(column: pa.Array) -> np.ndarray:
    """8 bytes for each string, 0 for None: equal strings and only they (but for 1 in 10^19) are equal."""
    encoded = column.dictionary_encode()
    words = [hash_of(s) for s in encoded.dictionary.to_pylist()]
    table = np.array([*words, 0], dtype=np.uint64)
    return table[encoded.indices.fill_null(len(words)).to_numpy()]


@lru_cache(maxsize=1 << 16)
def hash_of(text: str) -> int:
    """8 bytes, never 0. Runs on the same problems say the same things: records of 1,000 are read in two thirds of the time."""
    return int.from_bytes(blake2b(text.strip().encode(), digest_size=8).digest()) or 1


# ---- counts.json ---------------------------------------------------------------------------------------------------
#
# A run's counts without its samples, some 100 bytes per problem: a store keeps every completion; a study of hundreds of runs
# cannot. It says as much as pass@k, distinct solutions, lost and gained problems and their intervals need. What it leaves out:
# the texts, the wrong answers (so no majority vote), which samples were truncated (their number is kept), and the order in
# which samples were drawn.


def _is_compact(folder: str | Path) -> bool:
    return Path(folder, COUNTS).is_file() and not Path(folder, "store.json").is_file()


def compact(folder: str | Path) -> dict[str, Any]:
    """The record of a run's folder, as JSON: task → problem → seed by seed [wrong, {right solution: times}, tokens]."""
    if _is_compact(folder):
        return read_json(Path(folder, COUNTS))
    counts, texts = counts_of(folder), _solutions(folder)
    tasks = {name: _cells(task, texts) for name, task in counts.tasks.items()}
    about = {"run": counts.run, "model": counts.model, "settings": counts.settings, "notes": counts.notes}
    return {"version": VERSION, **about, "tasks": tasks}


def _solutions(folder: str | Path) -> dict[int, str]:
    """hash → the solution it stands for."""
    found: set[str] = set()
    for batch in SampleStore(folder, readonly=True).scan(("solution",)):
        found.update(batch.column("solution").unique().drop_null().to_pylist())
    return {hash_of(text): text.strip() for text in found}


def _cells(task: TaskCounts, texts: dict[int, str]) -> dict[str, Any]:
    def cell(p: int, s: int) -> list[Any]:
        right = task.state[p, s] == RIGHT
        times = Counter(texts.get(int(h), "") for h in task.solution[p, s][right])
        return [int((task.state[p, s] == WRONG).sum()), dict(sorted(times.items())), int(task.tokens[p, s])]

    cells = {name: [cell(p, s) for s in range(len(task.seeds))] for p, name in enumerate(task.problems)}
    assert task.finish is not None, "a store has every sample's"
    cut = int(((task.finish == LENGTH) & (task.state != MISSING)).sum())
    return {"n": task.n, "seeds": task.seeds, "unverifiable": task.unverifiable, "truncated": cut, "problems": cells}


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
    cells = [*chain.from_iterable(task["problems"].values())]
    found = [times for _, times, _ in cells if times]  # where any was right
    hashes = [hash_of(text) if text else 0 for times in found for text in times]
    repeats = [count for times in found for count in times.values()]
    right = np.array([sum(times.values()) if times else 0 for _, times, _ in cells], np.int64).reshape(shape[:2])
    drawn = right + np.array([wrong for wrong, _, _ in cells], np.int64).reshape(shape[:2])
    tokens = np.array([total for _, _, total in cells], np.int64).reshape(shape[:2])
    place, solution, state = np.arange(task["n"]), np.zeros(shape, np.uint64), np.full(shape, WRONG, np.int8)
    first = place < right[..., None]
    solution[first] = np.repeat(np.array(hashes, np.uint64), np.array(repeats, np.int64))
    state[first] = RIGHT
    state[place >= drawn[..., None]] = MISSING
    return TaskCounts(
        name,
        list(task["problems"]),
        task["seeds"],
        task["n"],
        state=state,
        finish=None,
        answer=None,
        solution=solution,
        tokens=tokens,
        unverifiable=task["unverifiable"],
        truncated=task["truncated"] / max(1, int(drawn.sum())),
    )
