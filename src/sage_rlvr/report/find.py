"""Which folders under the given ones are runs, and what is wrong with those that cannot be shown."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sage_rlvr.analysis.records import read_record, read_steps
from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.stats.counts import MISSING, Counts, counts_of
from sage_rlvr.store.samples import SampleStore

INSIDE = {"samples", "trace", "damaged", "figures"}  # folders that belong to a run


@dataclass
class EvalRun:
    name: str
    folder: Path
    store: SampleStore
    counts: Counts
    status: str = "complete"  # or what is missing
    notes: list[str] = field(default_factory=list)

    @property
    def samples(self) -> int:
        return sum(int((t.state != MISSING).sum()) for t in self.counts.tasks.values())


@dataclass
class TrainRun:
    name: str
    folder: Path
    record: dict[str, Any]  # run.json
    log: list[dict[str, Any]]  # log.jsonl (or trainer_state.json), a step each
    status: str = "complete"
    notes: list[str] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """Of run.json; empty where it is not there or spoilt."""
        return self.record.get("settings", {})


@dataclass
class FoundRuns:
    evals: list[EvalRun] = field(default_factory=list)
    trains: list[TrainRun] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # name → why it is not shown


def find_runs(folders: Sequence[str | Path] | str | Path, base: str | None = None) -> FoundRuns:
    """Every run under the folders, by name. The first evaluation is what the others are held against: ``base``, else one called
    base, else one of the model that a training found here started from."""
    runs, folders = FoundRuns(), [folders] if isinstance(folders, str | Path) else folders
    for name, folder in _candidates(folders, runs.absent):
        sampled, trained = _is_evaluation(folder), _is_training(folder)
        if sampled:
            try:
                runs.evals.append(_eval_run(name, folder))
            except (UserError, OSError, RuntimeError, KeyError, TypeError, ValueError) as e:
                runs.absent[name] = str(e)
        if trained:
            runs.trains.append(_train_run(f"{name} (training)" if sampled else name, folder))
    if not runs.evals and not runs.trains:
        why = "; ".join(f"{name}: {why}" for name, why in runs.absent.items()) or "no store.json, no log.jsonl"
        raise UserError(f"there is no run to show under {', '.join(map(str, folders)) or 'no folder'} ({why}).")
    names = [run.name for run in runs.evals]
    if base is not None and base not in names:
        raise UserError(f"base={base!r} is not an evaluation that was found; there are {', '.join(names) or 'none'}.")
    called = [n for n in names if "base" in Path(n).name.lower().replace("-", "_").split("_")]
    starts = [train.settings.get("model_name_or_path") for train in runs.trains]
    first = base or next(iter([*called, *(run.name for run in runs.evals if run.counts.model in starts)]), None)
    runs.evals.sort(key=lambda run: run.name != first)  # stable: the others stay in order
    return runs


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
        for at, inside, _ in os.walk(root, followlinks=False):
            folder = Path(at)
            if (_is_evaluation(folder) or _is_training(folder)) and folder.resolve() not in seen:
                seen.add(folder.resolve())
                hits.append((root, folder))
            inside[:] = sorted(d for d in inside if d not in INSIDE and not d.startswith((".", "checkpoint-")))
        if len(hits) == here and root.resolve() not in seen:
            absent[str(root)] = "it holds no run (no store.json, no log.jsonl)"
    short = [str(folder.relative_to(root)) if folder != root else root.resolve().name for root, folder in hits]
    for (_, folder), name in zip(hits, short):
        yield (name if short.count(name) == 1 else str(folder)), folder


def _is_evaluation(folder: Path) -> bool:
    return (folder / "store.json").exists() or (folder / "samples").is_dir()


def _is_training(folder: Path) -> bool:
    if (folder / "log.jsonl").exists():
        return True
    try:
        record = read_json(folder / "run.json")
    except FileNotFoundError:  # another trainer's, with rewards: SFT is no run of ours
        return any("reward" in entry for entry in _steps(folder)[0])
    except UserError:
        return True  # named, with the reason
    return isinstance(record, dict) and "finished" in record


def _eval_run(name: str, folder: Path) -> EvalRun:
    store = SampleStore(folder, readonly=True)
    counts = counts_of(store)
    run = EvalRun(name, folder, store, counts, notes=list(counts.notes))
    whole = sum(int(t.whole.sum()) for t in counts.tasks.values())
    cells = sum(t.whole.size for t in counts.tasks.values())
    if whole < cells:
        run.status = f"half finished: {whole:,} of {cells:,} (problem, seed) cells have all their samples"
    for task in counts.tasks.values():
        if task.unverifiable:
            run.notes.append(f"{task.task}: {len(task.unverifiable)} problems with an unverifiable gold are left out")
    return run


def _train_run(name: str, folder: Path) -> TrainRun:
    record, notes = {}, []
    try:
        record = read_record(folder) or {}
        notes += [] if record else ["it has no run.json, so its settings are not known"]
    except UserError as e:
        notes.append(f"its settings are not known: {e}")
    log, bad, planned = _steps(folder)
    if bad:
        notes.append(f"{bad} lines of log.jsonl cannot be read and are left out")
    run = TrainRun(name, folder, record, log, notes=notes)
    last = max((r["step"] for r in log), default=0)
    if not record.get("finished") and last != planned:
        top = run.settings.get("max_steps", planned)
        run.status = f"half finished: step {last:g}" + (f" of {top}" if isinstance(top, int) and top > 0 else "")
    elif not log:
        run.status = "finished, but it has no log.jsonl"
    return run


def _steps(folder: Path) -> tuple[list[dict[str, Any]], int, int | None]:
    """(entries with a step, unreadable lines, planned steps where only transformers' own log says them)."""
    try:
        entries, bad, planned = read_steps(folder)
    except (UserError, OSError):
        return [], 0, None
    return entries, len(bad), planned
