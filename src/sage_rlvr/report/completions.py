"""Which completions go into the page, and what is said about those that do not."""

import json
import math
from collections.abc import Iterator, Sequence
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


@dataclass
class Chunk:
    """One run's completions, and what was left out of them."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    stored: int = 0
    problems: int = 0  # shown
    of: int = 0  # problems in the run
    traced: int = 0  # samples with a trace in the store
    traced_with: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def said(self) -> dict[str, Any]:
        shown = {"shown": len(self.samples), "stored": self.stored, "problems": self.problems, "of": self.of}
        cut = sum("cut" in s for s in self.samples)
        return shown | {
            "cut": cut,
            "traces": sum("trace" in s for s in self.samples),
            "notes": self.notes,
        }


def records(batch: pa.RecordBatch, most: int = TEXT) -> list[dict[str, Any]]:
    """Rows as the page has them: v is 1, 0 or null as evaluate counts it; texts are cut in Arrow, before Python sees them."""
    text = batch.column("completion")
    lengths = pc.utf8_length(text)
    batch = batch.set_column(
        batch.schema.get_field_index("completion"), "completion", pc.utf8_slice_codeunits(text, 0, most)
    )
    out = []
    for row, length in zip(batch.to_pylist(), lengths.to_pylist()):
        right = None if row["verdict"] is None else int(row["verdict"] >= 1)
        if right and row["finish"] == "length" and not row["answer"]:
            right = 0  # cut off before an answer
        record = {
            "t": row["task"],
            "p": row["problem"],
            "s": row["seed"],
            "i": row["index"],
            "v": right,
            "f": row["finish"],
        }
        record |= {
            "a": (row["answer"] or "")[:200] or None,
            "n": row["tokens"],
            "lp": row["logprob"],
            "c": row["completion"],
        }
        out.append(record | ({"cut": length} if length > most else {}))
    return out


def likelihood(record: dict[str, Any]) -> float:
    """log π(y), as low as can be where it is not stored."""
    value = record["lp"]
    return value if value is not None and math.isfinite(value) else -math.inf


def key_of(record: dict[str, Any]) -> Key:
    return record["t"], record["p"], record["s"], record["i"]


def choose(
    evals: Sequence[EvalRun], tasks: dict[str, Any], budget: int, trains: Sequence[TrainRun] = ()
) -> list[Chunk]:
    """Completions of every run within ``budget`` bytes, the same ones each time: the same problems in all runs, those first
    that have traces, then those that a run lost, then those on which the runs differ most; of each problem right and wrong
    ones by turns, of either the likeliest first. Each is told its advantage."""
    traces = [Traces(run.folder) for run in evals]
    order = ranked(tasks, {key[:2] for t in traces for key in t.groups})
    needs = [_trace_bytes(run, t) for run, t in zip(evals, traces)]
    fits = min(1.0, TRACE_SHARE * budget / max(1.0, sum(needs)))
    share = (budget - fits * sum(needs)) / max(1, len(evals))  # for the texts of one run
    room = min((share / _bytes(run) for run in evals), default=0.0)  # completions a run may show
    each = int(min(PER_PROBLEM, max(FEWEST, room // max(1, len(order)))))
    wanted = order[: max(1, int(room // each))]
    out, left = [], 0.0
    for run, trace, need in zip(evals, traces, needs):
        chunk, left = _chunk(run, trace, wanted, each, share + left, fits * need)
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
        gone = lost(list(t["first"].values()))
        at = sorted(
            range(len(t["problems"])),
            key=lambda j: ((task, t["problems"][j]) not in traced, not gone[j], -spread[j], j),
        )
        columns.append([(task, t["problems"][j]) for j in at])
    return [p for row in zip_longest(*columns) for p in row if p is not None]


def lost(first: Sequence[Sequence[int]]) -> list[bool]:
    """Problem by problem, from data.support's ``first``: solved by the first run, and never by some other."""
    base, *others = first or [[]]
    return [b > 0 and any(other[j] == 0 for other in others) for j, b in enumerate(base)]


def _bytes(run: EvalRun) -> float:
    """What a completion of this run takes in the page, about: 4 characters a token."""
    counts = run.counts.tasks.values()
    samples = sum(int((t.state != 0).sum()) for t in counts)
    return 120 + min(TEXT, 4 * sum(int(t.tokens.sum()) for t in counts) / max(1, samples))


def _trace_bytes(run: EvalRun, traces: Traces) -> float:
    """What all traces of this run would take, about: a token with its mark, and five numbers at every checkpoint."""
    tokens = (_bytes(run) - 120) / 4
    return len(traces.groups) * 1.5 * tokens * (8 + 25 * len(traces.checkpoints))


def _chunk(
    run: EvalRun, traces: Traces, wanted: Sequence[Problem], each: int, room: float, trace_room: float
) -> tuple[Chunk, float]:
    """One run's completions in ``room`` bytes, their traces in ``trace_room`` more; and the room that was not needed."""
    picked = _picked(run, traces, wanted, each)
    chunk = Chunk(stored=sum(int((t.state != 0).sum()) for t in run.counts.tasks.values()), notes=list(traces.notes))
    chunk.of, chunk.traced = sum(len(t.problems) for t in run.counts.tasks.values()), len(traces.groups)
    chunk.traced_with = traces.settings
    texts = {key_of(r): r["c"] for p in wanted for r in picked.get(p, ()) if key_of(r) in traces}
    found = {}
    for key, trace in traces.read(list(texts)):
        if not belongs(trace, texts[key]):
            place = f"{key[1]}, seed {key[2]}, sample {key[3]}"
            chunk.notes.append(f"the trace of {place} is of another completion: trace it again")
        elif (cost := _size(trace)) <= trace_room:
            found[key], trace_room = trace, trace_room - cost
    room += trace_room
    for record in (r for p in wanted for r in picked.get(p, ())):
        cost = _size(record)
        if cost <= room:
            room -= cost
            if key_of(record) in found:  # its tokens are its text
                record = {k: v for k, v in record.items() if k not in ("c", "cut")} | {"trace": found[key_of(record)]}
            chunk.samples.append(record)
    chunk.problems = len({(r["t"], r["p"]) for r in chunk.samples})
    return chunk, room


def _picked(run: EvalRun, traces: Traces, wanted: Sequence[Problem], each: int) -> dict[Problem, list[dict[str, Any]]]:
    """Problem → ``each`` records, or all traced ones and the likeliest if those are more; whatever the order of the shards.
    Of every verdict the likeliest comes first: side by side, the page shows that one."""
    names = pa.array(sorted({p for _, p in wanted}), pa.string())
    asked, kept = set(wanted), dict[Problem, dict[Any, list[dict[str, Any]]]]()

    def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Of one verdict."""
        best = min(rows, key=lambda r: (-likelihood(r), r["s"], r["i"]))
        return sorted(rows, key=lambda r: (r is not best, key_of(r) not in traces, r["s"], r["i"]))

    def most(rows: list[dict[str, Any]]) -> int:
        return max(each, min(PER_PROBLEM, 2 + sum(key_of(r) in traces for r in rows)))

    for batch in run.store.scan(COLUMNS):
        batch = batch.filter(pc.is_in(batch.column("problem"), value_set=names))
        for r in records(batch) if batch.num_rows else ():
            if (r["t"], r["p"]) in asked:
                rows = kept.setdefault((r["t"], r["p"]), {}).setdefault(r["v"], [])
                rows.append(r)
                if len(rows) > 4 * PER_PROBLEM:
                    rows[:] = in_order(rows)[: most(rows)]
    out = {}
    for problem, by in kept.items():
        ranked_by = [in_order(by[v]) for v in sorted(by, key=lambda v: -1 if v is None else v, reverse=True)]
        first = [rows[0] for rows in ranked_by]
        rest = [r for row in zip_longest(*(rows[1:] for rows in ranked_by)) for r in row if r is not None]
        rows = [*first, *sorted(rest, key=lambda r: key_of(r) not in traces)]
        out[problem] = rows[: most(rows)]
    return out


def _size(x: Any) -> int:
    """Bytes in the page; a character that is escaped there counts as six."""
    text = json.dumps(x, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode(errors="replace")) + 5 * sum(text.count(c) for c in "<>&")


def in_reading_order(chunk: Chunk) -> Iterator[dict[str, Any]]:
    """By problem as chosen, then by seed and index."""
    first: dict[Problem, int] = {}
    for r in chunk.samples:
        first.setdefault((r["t"], r["p"]), len(first))
    yield from sorted(chunk.samples, key=lambda r: (first[r["t"], r["p"]], r["s"], r["i"]))
