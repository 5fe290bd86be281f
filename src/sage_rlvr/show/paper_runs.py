"""Runs under the paper's labels: which folders belong to a row, and what can be read in them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sage_rlvr.analysis.dynamics import Dynamics, dynamics
from sage_rlvr.analysis.records import read_record, training_of
from sage_rlvr.errors import UserError
from sage_rlvr.show import paper

Folders = str | Path | Sequence[str | Path]


class Runs:
    """Row → folders, and what is found in them. A run that cannot be read is named in ``notes``."""

    def __init__(self, runs: Mapping[str, Folders]):
        self.rows: dict[str, list[Path]] = {}  # the paper's row (or an own one) → folders
        for label, given in runs.items():
            folders = [given] if isinstance(given, str | Path) else given
            self.rows.setdefault(paper.row_of(label), []).extend(map(Path, folders))
        self.notes: list[str] = []

    def evaluations(self, folders: Sequence[Path]) -> list[Path]:
        """Those of the folders (or their sub-folders) that hold samples."""
        out = []
        for folder in folders:
            inside = sorted(p.parent for p in folder.glob("*/store.json")) if folder.is_dir() else []
            out += [folder] if (folder / "store.json").is_file() else inside
        return out

    def read(self, folders: Sequence[Path], look: Callable[[Path], Any]) -> list[Any]:
        """What ``look`` gives for each folder that can be read, where it gives anything."""
        out = []
        for folder in folders:
            try:
                out.append(look(folder))
            except (UserError, OSError) as e:
                self.note(str(e) if str(folder) in str(e) else f"{folder}: {e}")
        return [x for x in out if x is not None]

    def read_evaluations(self, row: str, look: Callable[[Path], Any], what: str = "evaluation") -> list[Any]:
        folders = self.evaluations(self.rows.get(row, []))
        return self._or_note(row, self.read(folders, look), what)

    def read_trainings(self, row: str) -> list[Dynamics]:
        folders = [home for folder in self.rows.get(row, []) if (home := training_of(folder))]
        return self._or_note(row, self.read(folders, dynamics), "training log")

    def _or_note(self, row: str, out: list[Any], what: str) -> list[Any]:
        if row in self.rows and not out:
            self.note(f"{row}: no {what} in {', '.join(map(str, self.rows[row]))}")
        return out

    def note(self, *texts: str) -> None:
        self.notes += [text for text in texts if text not in self.notes]


def model_name(folder: Path) -> str:
    """What the run started from, by its training record, else what was sampled; the last part of the name."""
    home = training_of(folder)
    record = read_record(home) if home else None
    named = (record or {}).get("settings", {}).get("model_name_or_path")
    if not named and (folder / "store.json").is_file():
        named = json.loads((folder / "store.json").read_text(encoding="utf-8"))["settings"].get("model")
    return Path(str(named)).name if named else "unknown model"
