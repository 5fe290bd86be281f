"""The τ×ρ grid of the branch guide (Table 6), from evaluations of runs whose guide_args differ."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.analysis.records import read_record, training_of
from sage_rlvr.analysis.verdicts import read_verdicts
from sage_rlvr.anchor import make_guide
from sage_rlvr.errors import UserError
from sage_rlvr.store.settings import differences


@dataclass
class GridCell:
    threshold: float  # τ
    ratio: float  # ρ
    pass_1: float  # mean over runs
    pass_top: float
    std_1: float | None  # over runs (training seeds); None with one
    std_top: float | None
    runs: list[str]


@dataclass
class Grid:
    task: str
    top: int  # the k of the second number: the largest that all runs have
    problems: int
    cells: list[GridCell]  # by τ, then ρ
    absent: dict[str, str]  # folder → why it is not in the grid
    notes: list[str]


def grid(runs: Sequence[str | Path], task: str | None = None, top: int | None = None, guide: str = "branch") -> Grid:
    """Each run is an evaluation; its τ and ρ are those of the training run behind it. A run that lacks either is named."""
    found: list[tuple[float, float, str, Any]] = []
    absent: dict[str, str] = {}
    notes: list[str] = []
    for folder in runs:
        try:
            tau, rho = settings_of(folder, guide)
            read = read_verdicts(folder)
        except (UserError, OSError) as e:
            absent[str(folder)] = str(e)
            continue
        notes += read.notes
        found.append((tau, rho, str(folder), read))
    task = task or next((t for *_, read in found for t in read.tasks), None)
    here = [x for x in found if task in x[3].tasks and x[3].tasks[task].right]
    absent |= {f: f"no complete problem of {task}" for _, _, f, r in found if all(f != x[2] for x in here)}
    if not here or task is None:
        said = "; ".join(f"{f}: {why}" for f, why in absent.items())
        raise UserError(
            f"grid: no run with a guide's threshold and ratio and samples of {task or 'any task'} ({said})."
        )
    common = set.intersection(*(set(x[3].tasks[task].right) for x in here))
    most = min(min((x[3].tasks[task].right[p].size for p in common), default=0) for x in here)
    k = top or min(x[3].tasks[task].n for x in here)
    if not common or k > most:
        raise UserError(
            f"grid: the runs share {len(common)} complete problems of {task} with {most} samples; k={k} is too many."
        )
    cells = []
    for tau, rho in sorted({(x[0], x[1]) for x in here}):
        same = [x for x in here if x[:2] == (tau, rho)]
        values = []
        for x in same:
            own = x[3].tasks[task]
            own.right = {p: own.right[p] for p in own.right if p in common}
            values.append((own.pass_at(1), own.pass_at(k)))
        mean = np.mean(values, axis=0)
        std = np.std(values, axis=0, ddof=1) if len(values) > 1 else (None, None)
        spread = [None if s is None else float(s) for s in std]
        cells.append(GridCell(tau, rho, float(mean[0]), float(mean[1]), spread[0], spread[1], [x[2] for x in same]))
    return Grid(task, k, len(common), cells, absent, [*notes, *_other_differences([x[2] for x in here])])


def _other_differences(folders: Sequence[str]) -> list[str]:
    """A grid is about τ and ρ: whatever else its runs differ in is said."""
    records = {f: r["settings"] for f in folders if (home := training_of(f)) and (r := read_record(home))}
    if not records:
        return []
    first, *others = records
    out = []
    for other in others:
        differs = differences(records[first], records[other])
        said = [
            f"{k} {a!r} → {b!r}"
            for k, (a, b) in differs.items()
            if not k.startswith(("guide_args", "seed", "data_seed"))
        ]
        if said:
            out.append(f"{other} differs from {first} in more than τ and ρ: {'; '.join(said[:3])}")
    return out


def settings_of(folder: str | Path, guide: str = "branch") -> tuple[float, float]:
    """(τ, ρ) of the run behind an evaluation: from its run.json, else from a folder name such as grid_tau0.8_rho0.1."""
    home = training_of(folder)
    record = read_record(home) if home else None
    if record:
        name = record["settings"].get("guide")  # an SFT stage has none
        if name != guide:
            raise UserError(f"{home} was trained with guide {name!r}, not {guide!r}; name runs of one guide.")
        own = make_guide(name, **(record["settings"].get("guide_args") or {})).settings()
        if "threshold" not in own or "ratio" not in own:
            raise UserError(f"{home}: its guide {name!r} has no threshold and ratio; name runs of the branch guide.")
        return float(own["threshold"]), float(own["ratio"])
    for part in (Path(folder).name, Path(folder).parent.name):
        if said := re.search(r"tau[_=]?(\d+(?:\.\d+)?).*?rho[_=]?(\d*\.?\d+)", part):
            return float(said[1]), float(said[2])
    if not Path(folder).is_dir():
        raise UserError(f"there is no run {folder}: check the path.")
    raise UserError(
        f"{folder}: no run.json behind it says τ and ρ; keep the training folder, or name it tau0.8_rho0.1."
    )
