"""Which folders under the given ones are runs, and what is wrong with those that cannot be shown."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sage_rlvr.analysis.records import read_steps
from sage_rlvr.errors import UserError
from sage_rlvr.stats.counts import Counts, counts_of
from sage_rlvr.store.samples import SampleStore

INSIDE = {"samples", "trace", "damaged", "figures"}  # folders that belong to a run
RECORD_VERSION = 1  # run.json may carry a version; one without is of this one


@dataclass
class EvalRun:
    name: str
    folder: Path
    store: SampleStore
    counts: Counts
    status: str = "complete"  # or what is missing
    notes: list[str] = field(default_factory=list)


@dataclass
class TrainRun:
    name: str
    folder: Path
    record: dict[str, Any]  # run.json
    log: list[dict[str, Any]]  # log.jsonl (or trainer_state.json), a step each
    status: str = "complete"
    notes: list[str] = field(default_factory=list)


@dataclass
class Found:
    evals: list[EvalRun] = field(default_factory=list)
    trains: list[TrainRun] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # name → why it is not shown


def find_runs(folders: Sequence[str | Path] | str | Path, base: str | None = None) -> Found:
    """Every run under the folders, by name. The first evaluation is what the others are held against: ``base``, else one called
    base, else one of the model that a training found here started from."""
    found, folders = Found(), [folders] if isinstance(folders, str | Path) else folders
    for name, folder in _candidates(folders, found.absent):
        store, log = (folder / "store.json").exists() or (folder / "samples").is_dir(), _is_training(folder)
        if store:
            _add_eval(found, name, folder)
        if log:
            _add_train(found, f"{name} (training)" if store else name, folder)
    if not found.evals and not found.trains:
        said = "; ".join(f"{name}: {why}" for name, why in found.absent.items()) or "no store.json, no log.jsonl"
        raise UserError(f"there is no run to show under {', '.join(map(str, folders)) or 'no folder'} ({said}).")
    names = [run.name for run in found.evals]
    if base is not None and base not in names:
        raise UserError(f"base={base!r} is not an evaluation that was found; there are {', '.join(names) or 'none'}.")
    called = [n for n in names if "base" in Path(n).name.lower().replace("-", "_").split("_")]
    starts = [train.record.get("settings", {}).get("model_name_or_path") for train in found.trains]
    first = base or next(iter([*called, *(run.name for run in found.evals if run.counts.model in starts)]), None)
    found.evals.sort(key=lambda run: run.name != first)  # stable: the others stay in order
    return found


def state_of(folders: Sequence[str | Path] | str | Path) -> str:
    """A word that is another one as soon as a run's file under the folders is new, longer, changed or gone."""
    seen = []
    for root in [folders] if isinstance(folders, str | Path) else folders:
        for at, inside, files in os.walk(root):
            inside[:] = sorted(d for d in inside if not d.startswith("."))
            for name in sorted(f for f in files if f.endswith((".json", ".jsonl", ".parquet"))):
                with suppress(OSError):  # gone since it was listed
                    stat = os.stat(os.path.join(at, name))
                    seen.append((at, name, stat.st_mtime_ns, stat.st_size))
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def _candidates(folders: Sequence[str | Path], absent: dict[str, str]) -> Iterator[tuple[str, Path]]:
    """(name, folder) of everything that looks like a run: the path below its root, unless two roots share it."""
    seen: set[Path] = set()
    hits: list[tuple[Path, Path]] = []
    for given in folders:
        root = Path(given)
        if not root.is_dir():
            absent[str(root)] = "there is no such folder"
            continue
        here = len(hits)
        for at, inside, files in os.walk(root, followlinks=False):
            folder = Path(at)
            looks_like = "store.json" in files or "samples" in inside or _is_training(folder)
            if looks_like and folder.resolve() not in seen:
                seen.add(folder.resolve())
                hits.append((root, folder))
            inside[:] = sorted(d for d in inside if not _not_ours(d))
        if len(hits) == here and root.resolve() not in seen:
            absent[str(root)] = "it holds no run (no store.json, no log.jsonl)"
    short = [str(folder.relative_to(root)) if folder != root else root.resolve().name for root, folder in hits]
    for (_, folder), name in zip(hits, short):
        yield (name if short.count(name) == 1 else str(folder)), folder


def _not_ours(name: str) -> bool:
    return name in INSIDE or name.startswith((".", "checkpoint-"))


def _is_training(folder: Path) -> bool:
    if (folder / "log.jsonl").exists():
        return True
    if not (folder / "run.json").is_file():  # another trainer's, with rewards: SFT is no run of ours
        return any("reward" in entry for entry in _steps(folder)[0])
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # named, with the reason
    return isinstance(record, dict) and "finished" in record


def _add_eval(found: Found, name: str, folder: Path) -> None:
    try:
        store = SampleStore(folder, readonly=True)
        counts = counts_of(store)
    except (UserError, OSError, RuntimeError, KeyError, TypeError, ValueError) as e:
        found.absent[name] = str(e)
        return
    run = EvalRun(name, folder, store, counts, notes=list(counts.notes))
    whole = sum(int(t.whole.sum()) for t in counts.tasks.values())
    cells = sum(t.whole.size for t in counts.tasks.values())
    if whole < cells:
        run.status = f"half finished: {whole:,} of {cells:,} (problem, seed) cells have all their samples"
    for task in counts.tasks.values():
        if task.unverifiable:
            run.notes.append(f"{task.task}: {len(task.unverifiable)} problems with an unverifiable gold are left out")
    found.evals.append(run)


def _add_train(found: Found, name: str, folder: Path) -> None:
    record: dict[str, Any] = {}
    notes = []
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append("it has no run.json, so its settings are not known")
    except (OSError, ValueError) as e:
        notes.append(f"run.json cannot be read ({e})")
    if not isinstance(record, dict) or not isinstance(record.get("settings", {}), dict):
        notes.append("run.json is not of the form that train writes, so its settings are not known")
        record = {k: v for k, v in record.items() if k != "settings"} if isinstance(record, dict) else {}
    version = record.get("version", RECORD_VERSION)
    if (
        isinstance(version, int) and version != RECORD_VERSION
    ):  # a string is the release that wrote it: shown, not judged
        found.absent[name] = f"run.json is of version {version} and this release reads {RECORD_VERSION}"
        return
    log, bad, planned = _steps(folder)
    if bad:
        notes.append(f"{bad} lines of log.jsonl cannot be read and are left out")
    run = TrainRun(name, folder, record, log, notes=notes)
    last = max((r["step"] for r in log), default=0)
    if not record.get("finished") and last != planned:
        top = record.get("settings", {}).get("max_steps", planned)
        run.status = f"half finished: step {last:g}" + (f" of {top}" if isinstance(top, int) and top > 0 else "")
    elif not log:
        run.status = "finished, but it has no log.jsonl"
    found.trains.append(run)


def _steps(folder: Path) -> tuple[list[dict[str, Any]], int, int | None]:
    """(entries with a step, unreadable lines, planned steps where only transformers' own log says them)."""
    try:
        entries, bad, planned = read_steps(folder)
    except (UserError, OSError):
        return [], 0, None
    return entries, len(bad), planned
