"""The sample store: one row per sample, in append-only Parquet shards that appear whole or not at all.

FOLDER/store.json       version, settings, and what was asked of each task
FOLDER/samples/*.parquet  the shards: pandas.read_parquet("FOLDER/samples") reads them all
FOLDER/.part/           files being written; what a killed writer left there is swept by the next one
FOLDER/writer.lock      who writes
FOLDER/rescore.json     there while a re-scoring is under way, with the shards that still have the old verdicts
"""

import errno
import json
import logging
import os
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sage_rlvr import lock
from sage_rlvr.errors import Failed, UserError
from sage_rlvr.files import read_json
from sage_rlvr.store.keys import Keys
from sage_rlvr.store.settings import learned, plain, refuse_other

VERSION = 1
FINISHES = ("stop", "length", "error")
KEYS = ("task", "problem", "seed", "index")
JUDGED = ("answer", "verdict", "reason", "solution")  # what re-scoring may change
BATCH = 1024  # rows read at a time, and rows of a row group
SHARD_BYTES = 64 << 20  # of uncompressed Arrow memory
_log = logging.getLogger(__name__)


class StoreError(Failed):
    """The store could not be written. What was written before stays, and stays readable."""


@dataclass
class Sample:
    """One row."""

    run: str
    model: str
    task: str
    problem: str
    seed: int
    index: int  # 0..n−1 within its (task, problem, seed)
    completion: str
    tokens: int
    finish: str  # one of FINISHES
    answer: str | None
    verdict: float | None  # None: the gold cannot be verified
    reason: str | None  # why the verdict is what it is: "timeout", "no answer", …
    token_ids: list[int]
    logprob: float | None  # summed over the completion, under the distribution that was sampled from
    solution: str | None = None  # canonical form of a right solution, where the task defines one


_TYPES = {
    "seed": pa.int64(), "index": pa.int32(), "tokens": pa.int32(), "verdict": pa.float64(), "logprob": pa.float64(),
    "token_ids": pa.list_(pa.int32()),
}  # fmt: skip
SCHEMA = pa.schema([(f.name, _TYPES.get(f.name, pa.string())) for f in fields(Sample)])


@dataclass
class Asked:
    """What a run set out to sample for one task, so that a half-finished one can be named."""

    problems: list[str]
    n: int
    seeds: list[int]
    unverifiable: list[str] = field(default_factory=list)  # known before sampling, so never sampled
    sizes: list[int] = field(default_factory=list)  # every n that was ever asked for


class SampleStore:
    """Use it in a ``with``. One writer at a time; readers (``readonly=True``) come and go as they like.

    A shard is written when ``shard_rows`` samples wait, when the oldest has waited ``shard_seconds``, or at 64 MB.
    """

    def __init__(
        self,
        folder: str | Path,
        settings: Mapping[str, Any] | None = None,
        readonly: bool = False,
        shard_rows: int = 4096,
        shard_seconds: float = 60.0,
    ):
        self.folder, self.readonly = Path(folder), readonly
        self.shard_rows, self.shard_seconds = shard_rows, shard_seconds
        self.samples, self._parts = self.folder / "samples", self.folder / ".part"
        self.problems: dict[str, Asked] = {}
        self.settings: dict[str, Any] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._since = 0.0
        if readonly:
            self._read_header(settings)
        else:
            self._open_writer(settings)
        self.damaged: list[str] = []  # shards that something which is not us has spoilt
        self._leave_out([p for p in self.shards() if not _whole(p)])

    # ---- opening ----------------------------------------------------------------------------------------------------

    def _open_writer(self, settings: Mapping[str, Any] | None) -> None:
        try:
            for path in (self.samples, self._parts):
                path.mkdir(parents=True, exist_ok=True)
            lock.acquire(self.folder / "writer.lock")
        except OSError as e:
            raise UserError(f"{self.folder} cannot be written ({e.strerror}); name a folder you can write to.") from e
        self._unlock = weakref.finalize(self, lock.release, self.folder / "writer.lock")
        try:
            if (self.folder / "store.json").exists() or self.shards():
                self._read_header(settings)
                known = learned(self.settings, plain(settings or {}))
            else:
                known = plain(settings or {})
            if known != self.settings or not (self.folder / "store.json").exists():
                self.settings = known
                self._write_header()
        except BaseException:
            self._unlock()
            raise
        for left in self._parts.iterdir():
            left.unlink(missing_ok=True)
        self._writer = uuid.uuid4().hex[:8]  # no two writers share a shard's name, whatever happens to the lock
        self._next = 1 + max((int(p.name[:6]) for p in self.shards() if p.name[:6].isdigit()), default=-1)

    def _read_header(self, settings: Mapping[str, Any] | None) -> None:
        path, fix = self.folder / "store.json", "restore it from a copy, or evaluate into a new folder"
        try:
            header = read_json(path, fix)
            if header["version"] != VERSION:
                raise UserError(
                    f"{path} is of version {header['version']} and this release reads {VERSION}; use the release that wrote "
                    "it, or evaluate again."
                )
            self.settings = dict(header["settings"])
            sizes = header.get("sizes", {})
            self.problems = {task: _asked(sizes.get(task, ()), **asked) for task, asked in header["tasks"].items()}
        except FileNotFoundError as e:
            raise UserError(
                f"{self.folder} holds no sample store (no store.json); name a folder that eval wrote."
            ) from e
        except UserError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            why = e if isinstance(e, ValueError) else "it lacks what a store's header has"
            raise UserError(f"{path} cannot be read ({why}); {fix}.") from e
        if settings is not None:
            refuse_other(self.folder, self.settings, plain(settings), begun=bool(self.shards()))

    def _write_header(self) -> None:
        header = {
            "version": VERSION,
            "settings": self.settings,
            "tasks": {t: {k: v for k, v in asdict(a).items() if k != "sizes"} for t, a in self.problems.items()},
            "sizes": {t: a.sizes for t, a in self.problems.items()},
        }
        self._put_json("store.json", header)

    def ask(
        self, task: str, problems: Iterable[str], n: int, seeds: Iterable[int], unverifiable: Iterable[str] = ()
    ) -> None:
        """Records what will be sampled. Asking again adds: more problems, more seeds, a larger n. A problem that is asked
        after all is no longer unverifiable."""
        self._refuse_readonly("ask")
        old = self.problems.get(task, Asked([], 0, []))
        asked = list(dict.fromkeys([*old.problems, *problems]))
        self.problems[task] = Asked(
            asked,
            max(n, old.n),
            sorted({*old.seeds, *map(int, seeds)}),
            sorted({*old.unverifiable, *unverifiable} - {*asked}),
            sorted({*old.sizes, n, old.n} - {0}),
        )
        if self.problems[task] != old:
            self._write_header()

    # ---- writing ----------------------------------------------------------------------------------------------------

    def append(self, samples: Sequence[Sample]) -> None:
        """Buffers the samples, as Arrow memory, until a shard is worth writing."""
        self._refuse_readonly("append")
        if not samples:
            return
        for s in samples:
            if s.finish not in FINISHES or s.index < 0:
                raise UserError(
                    f"sample {s.task}/{s.problem}: finish={s.finish!r}, index={s.index}; finish must be one of "
                    f"{', '.join(FINISHES)} and index 0 or more."
                )
        self._since = self._since if self._waiting else time.monotonic()
        self._waiting.append(_to_batch(samples))
        if self.waiting >= self.shard_rows or sum(b.nbytes for b in self._waiting) >= SHARD_BYTES:
            self.flush()
        self.flush_late()

    @property
    def waiting(self) -> int:
        """Samples that a kill would lose now."""
        return sum(b.num_rows for b in self._waiting)

    def flush_late(self) -> None:
        """Writes what waits if the oldest of it has waited ``shard_seconds``; for a writer to whom nothing comes for long."""
        if self._waiting and time.monotonic() - self._since >= self.shard_seconds:
            self.flush()

    def flush(self) -> None:
        """Writes what waits as one shard. If that fails it keeps waiting, and a later flush tries again."""
        if self._waiting:
            self._write_shard(pa.Table.from_batches(self._waiting, SCHEMA), f"{self._next:06d}-{self._writer}.parquet")
            self._waiting, self._next = [], self._next + 1

    def _write_shard(self, table: pa.Table, name: str) -> None:
        self._put(self.samples / name, lambda f: pq.write_table(table, f, compression="zstd", row_group_size=BATCH))

    def _put_json(self, name: str, content: Any) -> None:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        self._put(self.folder / name, lambda file: file.write(text.encode()))

    def _put(self, path: Path, write: Callable[[Any], Any]) -> None:
        """The file is there whole, on the disk, or it is not there: temp, fsync, rename, fsync of the folder."""
        part = self._parts / path.name
        try:
            with open(part, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as e:
            part.unlink(missing_ok=True)
            full = e.errno in (errno.ENOSPC, errno.EDQUOT)
            why, fix = ("the disk is full", "free some space") if full else (e.strerror or e, "fix the disk")
            raise StoreError(
                f"{path} could not be written ({why}); what was sampled before is safe: {fix} and run the same command again, "
                "it goes on from there."
            ) from e

    def close(self) -> None:
        """Writes what waits and lets go of the lock."""
        if not self.readonly:
            try:
                self.flush()
            finally:
                self._unlock()

    def __enter__(self) -> "SampleStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self.close()
        except StoreError:
            if kind is None:
                raise  # else the first error is the one to see

    # ---- reading ----------------------------------------------------------------------------------------------------

    def shards(self) -> list[Path]:
        return sorted(self.samples.glob("*.parquet"))

    def done(self) -> Keys:
        """(task, problem, seed) → the indices present. Reads the key columns alone."""
        keys = Keys()
        for batch in self._batches(list(KEYS)):
            keys.add(batch)
        return keys

    def scan(self, columns: Sequence[str] | None = None, task: str | None = None) -> Iterator[pa.RecordBatch]:
        """Every sample once, at most 1,024 rows at a time; of a doubled one the first is kept."""
        wanted = list(columns) if columns is not None else SCHEMA.names
        if unknown := [c for c in wanted if c not in SCHEMA.names]:
            raise UserError(f"scan: there is no column {', '.join(unknown)}; there are {', '.join(SCHEMA.names)}.")
        seen = Keys()
        for batch in self._batches(list(dict.fromkeys([*KEYS, *wanted]))):
            keep = seen.add(batch)
            if task is not None:
                keep &= np.asarray(pc.equal(batch.column("task"), task))
            batch = (batch if keep.all() else batch.filter(pa.array(keep))).select(wanted)
            if batch.num_rows:
                yield batch

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if not self.readonly:
            self.flush()
        for path in self.shards():
            if path.name not in self.damaged:
                try:
                    with pq.ParquetFile(path) as file:
                        # all of it first: half a shard would be neither there nor missing
                        batches = list(file.iter_batches(BATCH, columns=columns))
                except (OSError, pa.ArrowException):
                    self._leave_out([path])
                else:
                    yield from batches

    def _leave_out(self, shards: list[Path]) -> None:
        """Names unreadable shards. A writer moves them to FOLDER/damaged, so that the others read in one line; their samples
        count as not drawn."""
        if not shards:
            return
        names = [p.name for p in shards]
        self.damaged += names
        _log.warning("%s: left out %d unreadable shards (%s).", self.folder, len(names), ", ".join(names))
        if not self.readonly:
            (self.folder / "damaged").mkdir(exist_ok=True)
            for path in shards:
                os.replace(path, self.folder / "damaged" / path.name)

    # ---- re-scoring -------------------------------------------------------------------------------------------------

    @property
    def rescoring(self) -> list[str]:
        """Shards that an interrupted re-scoring has left with their old verdicts."""
        mark = self._rescore_mark()
        return [p.name for p in self.shards() if p.name in set(mark["left"])] if mark else []

    def rescore(self, judge: Callable[[list[dict[str, Any]]], Sequence[Any]], label: str | None = None) -> int:
        """New verdicts for stored completions, shard by shard; gives the number of rows judged.

        ``judge`` gets up to 1,024 rows (without token_ids) and returns, for each, a verdict or a dict with any of answer,
        verdict, reason, solution. Each shard is replaced whole. After an interruption the same ``label`` goes on with the
        shards that are left; another one, or none, starts over.
        """
        self._refuse_readonly("rescore")
        self.flush()
        mark = self._rescore_mark()
        again = mark is not None and label is not None and mark["label"] == label
        left = self.rescoring if again else [p.name for p in self.shards()]
        judged = 0
        while left:
            self._put_json("rescore.json", {"label": label, "left": left})
            try:
                table = _judged(self.samples / left[0], judge)
                self._write_shard(table, left[0])
            except BaseException as e:
                state = f"{self.folder}: re-scoring stopped, {len(left)} of {len(self.shards())} shards have their old verdicts"
                if isinstance(e, UserError) or not isinstance(e, Exception):
                    _log.warning("%s; run it again.", state)
                    raise
                raise StoreError(f"{state} ({type(e).__name__}: {e}); fix that and run it again.") from e
            judged, left = judged + table.num_rows, left[1:]
        (self.folder / "rescore.json").unlink(missing_ok=True)
        return judged

    def _rescore_mark(self) -> dict[str, Any] | None:
        """One that cannot be read stands for a re-scoring of which nothing is done."""
        path = self.folder / "rescore.json"
        try:
            mark = read_json(path)
            return {"label": mark["label"], "left": [str(name) for name in mark["left"]]}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            _log.warning("%s cannot be read, so all shards count as having their old verdicts: re-score again.", path)
            return {"label": None, "left": [p.name for p in self.shards()]}

    def _refuse_readonly(self, what: str) -> None:
        if self.readonly:
            raise UserError(f"{what}: {self.folder} was opened with readonly=True; open it without.")


def _asked(sizes: Any, problems: Any, n: Any, seeds: Any, unverifiable: Any = ()) -> Asked:
    """As a header has it; another shape is a TypeError or a ValueError here, not later."""
    return Asked(list(problems), int(n), [int(s) for s in seeds], list(unverifiable), [int(s) for s in sizes])


def _to_batch(samples: Sequence[Sample]) -> pa.RecordBatch:
    columns = {name: [getattr(s, name) for s in samples] for name in SCHEMA.names}
    try:
        return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
    except UnicodeEncodeError:  # half a surrogate pair has no UTF-8: it is kept as "?"
        clean = {
            c: [x.encode(errors="replace").decode() if isinstance(x, str) else x for x in v] for c, v in columns.items()
        }
        return pa.RecordBatch.from_pydict(clean, schema=SCHEMA)


def _judged(path: Path, judge: Callable[[list[dict[str, Any]]], Sequence[Any]]) -> pa.Table:
    """One shard with its judged columns replaced."""
    out = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH):
            rows = batch.drop_columns(["token_ids"]).to_pylist()
            new = list(judge([dict(r) for r in rows]))
            if len(new) != len(rows):
                raise UserError(
                    f"rescore: the judge gave {len(new)} verdicts for {len(rows)} rows; it must give one per row."
                )
            for row, answer in zip(rows, new):
                verdict = answer if isinstance(answer, Mapping) else {"verdict": answer}
                row.update({k: verdict[k] for k in JUDGED if k in verdict})
            for name in JUDGED:
                at = SCHEMA.get_field_index(name)
                batch = batch.set_column(at, SCHEMA.field(at), pa.array([r[name] for r in rows], SCHEMA.field(at).type))
            out.append(batch)
    return pa.Table.from_batches(out, SCHEMA)


def _whole(path: Path) -> bool:
    try:
        return pq.read_schema(path).names == SCHEMA.names
    except (OSError, pa.ArrowException):
        return False
