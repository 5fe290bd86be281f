"""What a training run leaves on disk: its log, its record (run.json) and its checkpoints."""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json


@dataclass
class TrainLog:
    """One dict per logged step, in order; entries of one step are merged."""

    folder: str
    entries: list[dict[str, Any]]
    planned: int | None  # steps the run set out to take
    finished: bool | None  # None: nobody recorded it
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        return int(self.entries[-1]["step"]) if self.entries else 0

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) where the name was logged as a number that is not nan."""
        logged = ((int(e["step"]), e.get(name)) for e in self.entries)
        return [(step, float(v)) for step, v in logged if isinstance(v, int | float) and v == v]


def read_log(folder: str | Path) -> TrainLog:
    """From log.jsonl, else from the newest trainer_state.json in the folder or in its checkpoints."""
    folder = Path(folder)
    log = TrainLog(str(folder), [], None, None)
    record = read_record(folder)
    if record:
        log.settings, log.finished = record["settings"], bool(record.get("finished"))
    entries, bad, log.planned = read_steps(folder)
    if bad:
        log.notes.append(f"{folder}/log.jsonl: {len(bad)} unreadable lines left out (the first is line {bad[0]})")
    log.entries = _merged(entries)
    steps = log.settings.get("max_steps")
    log.planned = int(steps) if isinstance(steps, int) and steps > 0 else log.planned
    if not log.entries:
        raise UserError(f"{folder}: its log has no step yet; let training go on, then look again.")
    if log.finished is False:
        of = f" of {log.planned}" if log.planned else ""
        log.notes.append(f"{folder}: half finished, {log.last_step}{of} steps are logged")
    return log


def read_steps(folder: Path) -> tuple[list[dict[str, Any]], list[int], int | None]:
    """Every entry with a step, the numbers of unreadable lines, and the planned steps where trainer_state.json had to be read."""
    if (folder / "log.jsonl").is_file():
        lines = (folder / "log.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        raw = [(i, _line(line)) for i, line in enumerate(lines, start=1) if line.strip()]
        return [e for _, e in raw if e is not None], [i for i, e in raw if e is None], None
    state = trainer_state(folder)
    return [e for e in state["log_history"] if _has_step(e)], [], state.get("max_steps")


def read_record(folder: str | Path) -> dict[str, Any] | None:
    """run.json, or None where there is none; an unreadable one is named."""
    try:
        return read_json(Path(folder, "run.json"), "restore it, or train again", settings=dict)
    except FileNotFoundError:
        return None


def _line(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None  # the line a kill cut short
    return entry if _has_step(entry) else None


def _has_step(entry: Any) -> bool:
    step = entry.get("step") if isinstance(entry, dict) else None
    return isinstance(step, int | float) and math.isfinite(step)


def trainer_state(folder: str | Path) -> dict[str, Any]:
    """The newest trainer_state.json in a training folder or in its checkpoints."""
    folder = Path(folder)
    for place in (folder, *reversed(checkpoints(folder))):
        try:
            return read_json(place / "trainer_state.json", log_history=list)
        except (OSError, UserError):
            continue
    raise UserError(f"{folder} has no training log (log.jsonl or trainer_state.json); name a folder that train wrote.")


def _merged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_step: dict[int, dict[str, Any]] = {}
    for entry in entries:
        if "train_runtime" not in entry:  # the summary at the end repeats names with other meanings
            by_step.setdefault(int(entry["step"]), {}).update(entry)
    return [by_step[s] for s in sorted(by_step)]


def checkpoints(folder: str | Path) -> list[Path]:
    """checkpoint-N folders, by N."""
    inside = [p for p in Path(folder).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(inside, key=lambda p: int(p.name[11:]))


def training_of(folder: str | Path) -> Path | None:
    """The training folder behind an evaluation: itself, its parent, or where the weights it sampled from lie."""
    folder = Path(folder)
    near = [folder, folder / "train", *_around(folder)]
    try:
        settings = json.loads((folder / "store.json").read_text(encoding="utf-8"))["settings"]
        named = [Path(settings[f]) for f in ("adapter", "model") if settings.get(f) and Path(settings[f]).is_dir()]
        near = [folder, *(x for p in named for x in (p, *_around(p))), *near[1:]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return next((p for p in near if (p / "run.json").is_file() or (p / "log.jsonl").is_file()), None)


def _around(folder: Path) -> list[Path]:
    """Where a folder's training run lies by its name: runs/x/checkpoint-50 in runs/x, runs/x/eval… in runs/x or runs/x/train."""
    if re.fullmatch(r"checkpoint-\d+", folder.name):
        return [folder.parent]
    return [folder.parent, folder.parent / "train"] if folder.name.startswith("eval") else []
