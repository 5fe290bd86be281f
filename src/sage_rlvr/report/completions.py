"""Which completions go into the page, and how many do not."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sage_rlvr.report.advantages import advantages
from sage_rlvr.report.find import EvalRun, TrainRun
from sage_rlvr.report.traces import Key, Traces, belongs

TEXT = 20_000  # characters shown of one completion
PER_PROBLEM = 16
TRACE_SHARE = 0.5  # of the budget, at most
FEWEST = 2  # one right, one wrong: below this, problems are left out instead
COLUMNS = ["task", "problem", "seed", "index", "verdict", "finish", "answer", "tokens", "logprob", "completion"]
Problem = tuple[str, str]  # (task, id)
Record = dict[str, Any]  # a completion as the page has it: see records()


@dataclass
class Chunk:
    """One run's completions, and what there is besides."""

    samples: list[Record]  # by problem as chosen, then by seed and index
    stored: int
    of: int  # problems in the run
    traces: Traces
    notes: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, Any]:
        return {
            "shown": len(self.samples),
            "stored": self.stored,
            "problems": len({problem_of(r) for r in self.samples}),
            "of": self.of,
            "cut": sum("cut" in s for s in self.samples),
            "traces": sum("trace" in s for s in self.samples),
            "notes": self.notes,
        }


def records(batch: pa.RecordBatch, most: int = TEXT) -> list[Record]:
    """Rows as the page has them: t(ask), p(roblem), s(eed), i(ndex), v(erdict: 1, 0 or null, as evaluate counts it), f(inish),
    a(nswer), n (tokens), lp (log-prob), c(ompletion). Texts are cut in Arrow, before Python sees them."""
    text = batch.column("completion")
    lengths = pc.utf8_length(text).to_pylist()
    at = batch.schema.get_field_index("completion")
    batch = batch.set_column(at, "completion", pc.utf8_slice_codeunits(text, 0, most))
    out = []
    for row, length in zip(batch.to_pylist(), lengths):
        right = None if row["verdict"] is None else int(row["verdict"] >= 1)
        if right and row["finish"] == "length" and not row["answer"]:
            right = 0  # cut off before an answer
        record = {"t": row["task"], "p": row["problem"], "s": row["seed"], "i": row["index"], "v": right}
        record |= {"f": row["finish"], "a": (row["answer"] or "")[:200] or None, "n": row["tokens"]}
        record |= {"lp": row["logprob"], "c": row["completion"]}
        out.append(record | ({"cut": length} if length > most else {}))
    return out


def key_of(record: Record) -> Key:
    return record["t"], record["p"], record["s"], record["i"]


def problem_of(record: Record) -> Problem:
    return record["t"], record["p"]


def choose(
    evals: Sequence[EvalRun], tasks: dict[str, Any], budget: int, trains: Sequence[TrainRun] = ()
) -> list[Chunk]:
    """Completions of every run within ``budget`` bytes, the same ones each time: the same problems in all runs, those first
    that have traces, then those that a run lost, then those on which the runs differ most; of each problem right and wrong
    ones by turns, of either the likeliest first. Each is told its advantage."""
    traces = [Traces(run.folder) for run in evals]
    order = ranked(tasks, {key[:2] for t in traces for key in t.places})
    needs = [_trace_bytes(run, t) for run, t in zip(evals, traces)]
    fits = min(1.0, TRACE_SHARE * budget / max(1.0, sum(needs)))
    share = (budget - fits * sum(needs)) / max(1, len(evals))  # for the texts of one run
    room = min((share / _bytes(run) for run in evals), default=0.0)  # completions a run may show
    each = int(min(PER_PROBLEM, max(FEWEST, room // max(1, len(order)))))
    problems = order[: max(1, int(room // each))]
    out, left = [], 0.0
    for run, own, need in zip(evals, traces, needs):
        chunk, left = _chunk(run, own, problems, each, share + left, fits * need)
        advantage = advantages(run, trains)
        for record in chunk.samples:
            if (value := advantage(record)) is not None:
                record["A"] = value
        out.append(chunk)
    return out


def ranked(tasks: dict[str, Any], traced: set[Problem]) -> list[Problem]:
    """Problems of all tasks by turns."""
    columns = []
    for task, t in tasks.items():
        rates = np.array([[np.nan if r is None else r for r in rate] for rate in t["rate"].values()], dtype=float)
        rates = np.where(np.isnan(rates), np.nanmean(rates) if np.isfinite(rates).any() else 0, rates)
        spread = rates.var(0).round(9) if rates.size else np.zeros(len(t["problems"]))
        base, *others = list(t["first"].values()) or [[]]
        lost = [b > 0 and any(other[j] == 0 for other in others) for j, b in enumerate(base)]
        rank = [((task, p) not in traced, not lost[j], -spread[j], j) for j, p in enumerate(t["problems"])]
        columns.append([(task, t["problems"][j]) for *_, j in sorted(rank)])
    return [p for row in zip_longest(*columns) for p in row if p is not None]


def _bytes(run: EvalRun) -> float:
    """What a completion of this run takes in the page, about: 4 characters per token."""
    tokens = sum(int(t.tokens.sum()) for t in run.counts.tasks.values())
    return 120 + min(TEXT, 4 * tokens / max(1, run.samples))


def _trace_bytes(run: EvalRun, traces: Traces) -> float:
    """What all traces of this run would take, about: a token with its mark, and five numbers at every checkpoint."""
    tokens = (_bytes(run) - 120) / 4
    return len(traces.places) * 1.5 * tokens * (8 + 25 * len(traces.checkpoints))


def _chunk(
    run: EvalRun, traces: Traces, problems: Sequence[Problem], each: int, room: float, trace_room: float
) -> tuple[Chunk, float]:
    """One run's completions in ``room`` bytes, their traces in ``trace_room`` more; and the room that was not needed."""
    rows = _picked(run, traces, problems, each)
    chunk = Chunk([], run.samples, sum(len(t.problems) for t in run.counts.tasks.values()), traces, list(traces.notes))
    texts = {key_of(r): r["c"] for r in rows if key_of(r) in traces}
    fitting = {}
    for key, trace in traces.read(list(texts)):
        if not belongs(trace, texts[key]):
            place = f"{key[1]}, seed {key[2]}, sample {key[3]}"
            chunk.notes.append(f"the trace of {place} is of another completion: trace it again")
        elif (cost := _size(trace)) <= trace_room:
            fitting[key], trace_room = trace, trace_room - cost
    room += trace_room
    for record in rows:
        if (cost := _size(record)) <= room:
            room -= cost
            if key_of(record) in fitting:  # its tokens are its text
                record = {k: v for k, v in record.items() if k not in ("c", "cut")} | {"trace": fitting[key_of(record)]}
            chunk.samples.append(record)
    rank = {p: i for i, p in enumerate(problems)}
    chunk.samples.sort(key=lambda r: (rank[problem_of(r)], r["s"], r["i"]))
    return chunk, room


def _picked(run: EvalRun, traces: Traces, problems: Sequence[Problem], each: int) -> list[Record]:
    """Of every problem ``each`` records, or all traced ones and the likeliest if those are more; whatever the order of the
    shards. Of every verdict the likeliest comes first: side by side, the page shows that one."""
    names = pa.array(sorted({p for _, p in problems}), pa.string())
    by_problem: dict[Problem, dict[Any, list[Record]]] = {p: {} for p in problems}  # problem → verdict → records

    def likelihood(r: Record) -> float:
        """log π(y), as low as can be where it is not stored."""
        return r["lp"] if r["lp"] is not None and math.isfinite(r["lp"]) else -math.inf

    def in_order(rows: list[Record]) -> list[Record]:
        """Of one verdict."""
        best = min(rows, key=lambda r: (-likelihood(r), r["s"], r["i"]))
        return sorted(rows, key=lambda r: (r is not best, key_of(r) not in traces, r["s"], r["i"]))

    def most(rows: list[Record]) -> int:
        return max(each, min(PER_PROBLEM, 2 + sum(key_of(r) in traces for r in rows)))

    for batch in run.store.scan(COLUMNS):
        for r in records(batch.filter(pc.is_in(batch.column("problem"), value_set=names))):
            if problem_of(r) in by_problem:
                rows = by_problem[problem_of(r)].setdefault(r["v"], [])
                rows.append(r)
                if len(rows) > 4 * PER_PROBLEM:
                    rows[:] = in_order(rows)[: most(rows)]
    out: list[Record] = []
    for by in by_problem.values():
        columns = [in_order(by[v]) for v in sorted(by, key=lambda v: -1 if v is None else v, reverse=True)]
        first = [rows[0] for rows in columns]
        rest = [r for row in zip_longest(*(rows[1:] for rows in columns)) for r in row if r is not None]
        rows = [*first, *sorted(rest, key=lambda r: key_of(r) not in traces)]
        out += rows[: most(rows)]
    return out


def _size(x: Any) -> int:
    """Bytes in the page; a character that is escaped there counts as six."""
    text = json.dumps(x, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode(errors="replace")) + 5 * sum(text.count(c) for c in "<>&")
