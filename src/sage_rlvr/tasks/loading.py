"""Loading: rows from the Hub or from files of the same schema, made into problems, with nothing dropped in silence."""

import contextlib
import csv
import gzip
import io
import json
import logging
import os
import socket
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sage_rlvr.errors import UserError
from sage_rlvr.tasks.registry import Problem, Source, Task, get_task

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".parquet.gz")
Row = dict[str, Any]
_log = logging.getLogger(__name__)


@dataclass
class Loaded:
    """Problems, and what a reader should know of them."""

    problems: list[Problem]
    origin: list[str] = field(default_factory=list)  # file names or Hub ids
    skipped: list[str] = field(default_factory=list)  # ids of rows whose gold is empty or not verifiable
    notes: list[str] = field(default_factory=list)  # one sentence each


def some(ids: Sequence[str]) -> str:
    """The first five, and whether there are more."""
    return ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")


def load_task(
    name: str, data_dir: str | Path | None = None, limit: int | None = None, seed: int = 0, split: str | None = None
) -> list[Problem]:
    """The problems of a task, the first ``limit`` of them; what is missing or skipped is logged as a warning.

    ``split`` is "train" or "test" (default: the task's first). ``seed`` matters to generated tasks alone. ``data_dir``
    defaults to $SAGE_RLVR_DATA, then ./data; a task whose file is not there comes from the Hub.
    """
    loaded = read_task(name, data_dir, limit, seed, split)
    for note in loaded.notes:
        _log.warning(note)
    return loaded.problems


def read_task(
    name: str, data_dir: str | Path | None = None, limit: int | None = None, seed: int = 0, split: str | None = None
) -> Loaded:
    """As load_task, but returns where the problems came from and what was skipped instead of logging it."""
    task = get_task(name)
    if limit is not None and limit < 1:
        raise UserError(f"task {name!r}: limit={limit} must be at least 1; leave it out to load every problem.")
    if task.parts:
        return _union(task, [read_task(part, data_dir, None, seed, split) for part in task.parts], limit)
    split = split or task.default_split
    if split not in task.splits:
        raise UserError(f"task {name!r} has no split {split!r}: it has {' and '.join(task.splits)}.")
    if task.generate:
        return Loaded(task.generate(limit or task.size, seed, split), origin=["generated"])
    loaded = _from_sources(task, split, data_dir)
    loaded.problems = loaded.problems[:limit]
    return loaded


def _union(task: Task, parts: list[Loaded], limit: int | None) -> Loaded:
    problems = [Problem(p.id, task.name, p.question, p.answer, p.meta) for part in parts for p in part.problems]
    join = {f: [x for part in parts for x in getattr(part, f)] for f in ("origin", "skipped", "notes")}
    return Loaded(problems[:limit], **join)


def _data_dir(given: str | Path | None) -> Path | None:
    named = given or os.environ.get("SAGE_RLVR_DATA")
    if named and not Path(named).is_dir():
        field_name = "data_dir" if given else "SAGE_RLVR_DATA"
        raise UserError(
            f"{field_name}={str(named)!r} is not a folder: give one that holds the task's files, or leave it out."
        )
    return Path(named) if named else Path("data") if Path("data").is_dir() else None


def local_files(task: Task, data_dir: str | Path | None = None, split: str | None = None) -> dict[Source, Path]:
    """The files that are read in place of the Hub, where there are any."""
    folder, files = _data_dir(data_dir), dict[Source, Path]()
    if folder is None:
        return files
    for source in task.splits.get(split or task.default_split, ()):
        paths = (folder / f"{stem}{suffix}" for stem in source.files for suffix in SUFFIXES)
        if path := next((path for path in paths if path.is_file()), None):
            files[source] = path
    return files


def _from_sources(task: Task, split: str, data_dir: str | Path | None) -> Loaded:
    """Files if the folder has any of the task's, the Hub if it has none: never a mixture of the two."""
    sources, files = task.splits[split], local_files(task, data_dir, split)
    out = Loaded([])
    for source in files or sources:
        rows = (
            [row for _, row in numbered_rows(files[source])] if files else _hub_rows(task, source, _data_dir(data_dir))
        )
        out.origin.append(files[source].name if files else source.hub)
        _add_problems(out, task, split, source, rows)
    expected, count = task.count(split), len(out.problems) + len(out.skipped)
    if expected is not None and count != expected:
        missing = [s.files[0] + SUFFIXES[0] for s in sources if files and s not in files]
        why = f" ({', '.join(missing)} not in the data folder)" if missing else ""
        out.notes.append(
            f"{task.name}: {count:,} of {expected:,} problems in {' and '.join(dict.fromkeys(out.origin))}{why}."
        )
    if out.skipped:
        out.notes.append(f"{task.name}: skipped {len(out.skipped)} rows with no usable gold ({some(out.skipped)}).")
    if not out.problems:
        raise UserError(
            f"task {task.name!r} has no usable problem in {', '.join(out.origin)} ({len(out.skipped)} rows without a gold): "
            f"check the {task.answer!r} field, or give another data_dir."
        )
    return out


# ---- rows into problems ------------------------------------------------------------------------------------------


def _add_problems(out: Loaded, task: Task, split: str, source: Source, rows: list[Row]) -> None:
    for name in (task.question, task.answer, *task.needs):
        if rows and name not in rows[0]:
            raise UserError(
                f"task {task.name!r}: {out.origin[-1]} has no field {name!r}; its fields are {', '.join(map(str, rows[0]))}, "
                f"so rename one or register a task for this file."
            )
    seen = {p.id for p in out.problems} | set(out.skipped)
    stem = source.files[0] if source.files else task.name
    for i, row in enumerate(rows):
        if task.keep and not task.keep(row):
            continue
        problem_id = _id_of(row, stem, i)
        if problem_id in seen:
            problem_id = f"{problem_id}-row{i}"
        seen.add(problem_id)
        question, gold = str(row.get(task.question) or "").strip(), gold_text(row.get(task.answer))
        if gold and task.gold:
            gold = gold_text(task.gold(row[task.answer], row))
        if question and gold:
            meta = {key: row[key] for key in task.meta if key in row} | {"split": split}
            out.problems.append(Problem(problem_id, task.name, question, gold, meta))
        else:
            out.skipped.append(problem_id)


def _id_of(row: Row, stem: str, i: int) -> str:
    """The row's own id where it has one that says something; a bare number, or none, is put behind the file's name."""
    own = row.get("unique_id", row.get("id"))
    if own is None or str(own).strip() == "":
        return f"{stem}-{i}"
    return f"{stem}-{own}" if str(own).isdigit() else str(own)


def gold_text(value: Any) -> str | None:
    """A gold as text, 27.0 as 27; None where there is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if value is None else str(value).strip()
    return text if text.lower() not in ("", "nan", "none", "null") else None


# ---- where rows come from ----------------------------------------------------------------------------------------


def numbered_rows(path: Path) -> list[tuple[int, Row]]:
    """Every row of a JSONL, JSON, CSV or Parquet file, plain or gzipped, with its number, of JSONL that of its line."""
    name = path.name
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if ".parquet" in path.suffixes:
            import pyarrow as pa
            import pyarrow.parquet as pq

            return list(enumerate(pq.read_table(pa.BufferReader(content)).to_pylist(), 1))
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, ValueError, zlib.error) as e:  # unicode and Arrow errors are ValueErrors
        raise UserError(f"{name} cannot be read ({reason(e)}): fetch it again, or remove it.") from e
    if ".csv" in path.suffixes:
        return list(enumerate(_csv(text, name), 1))
    if ".json" in path.suffixes and text.lstrip().startswith("["):
        rows = _json(text, name, "a list of objects")
        return [(i, _row(row, f"{name}, row {i},")) for i, row in enumerate(rows, 1)]
    lines = [(i, f"{name}, line {i},", line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [(i, _row(_json(line, place, "one object per line"), place)) for i, place, line in lines]


def _json(text: str, place: str, wanted: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise UserError(f"{place} is not JSON ({e}): write {wanted}.") from e


def _row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise UserError(f"{place} holds a {type(value).__name__}: write a list of objects, or one object per line.")
    return value


def _csv(text: str, name: str) -> list[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    rows = []
    try:
        for row in reader:
            if None in row or None in row.values():
                header = ", ".join(reader.fieldnames or [])
                raise UserError(
                    f"{name}, line {reader.line_num}, has more or fewer fields than the header ({header}): put quotes around "
                    "a field that holds a comma."
                )
            rows.append(dict(row))
    except csv.Error as e:
        raise UserError(f"{name}, line {reader.line_num}, is not CSV ({e}).") from e
    return rows


def _hub_rows(task: Task, source: Source, folder: Path | None) -> list[Row]:
    from datasets import load_dataset

    where = folder or "a data folder (data_dir, $SAGE_RLVR_DATA or ./data)"
    fix = f"put {source.files[0]}{SUFFIXES[0]} into {where}" if source.files else "check the task's hub id"
    try:
        with no_waiting():
            sets = [load_dataset(source.hub, config, split=source.split) for config in source.configs]
            return [dict(row) for rows in sets for row in rows]
    except Exception as e:  # the Hub fails in many types: offline, gated, moved, no such split
        raise UserError(
            f"task {task.name!r} could not be loaded from the Hub ({source.hub}: {reason(e)}): go online, or {fix}."
        ) from e


def reason(error: Exception) -> str:
    """Its message in one short line, without a full stop."""
    return " ".join(str(error).split())[:160].rstrip(".") or type(error).__name__


def no_waiting() -> contextlib.AbstractContextManager[None]:
    """With no route to the Hub its client retries for half a minute; offline mode looks into the cache and gives up at once."""
    import huggingface_hub.constants as hub

    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    online = any(map(os.environ.get, proxies)) or _resolves(hub.ENDPOINT)
    return contextlib.nullcontext() if online else offline()


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """The cache alone: nothing is fetched."""
    import datasets
    import huggingface_hub.constants as hub

    before = hub.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _resolves(endpoint: str) -> bool:
    host = urlsplit(endpoint)
    try:
        socket.getaddrinfo(host.hostname, host.port or 443)
    except OSError:
        return False
    return True
