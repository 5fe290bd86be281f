"""The τ×ρ grid of the branch guide (Table 6), from evaluations of runs whose guide_args differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sage_rlvr.analysis.records import read_record, training_of
from sage_rlvr.anchor import make_guide
from sage_rlvr.errors import UserError
from sage_rlvr.stats.counts import Counts, counts_of, shared
from sage_rlvr.stats.estimates import pass_table
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


def grid(runs: Sequence[str | Path], task: str | None = None) -> Grid:
    """Each run is an evaluation; its τ and ρ are those of the training run behind it. A run that lacks either is named."""
    places: dict[str, tuple[float, float]] = {}  # folder → (τ, ρ)
    counts: dict[str, Counts] = {}
    absent: dict[str, str] = {}
    for folder in map(str, runs):
        try:
            place, own = settings_of(folder), counts_of(folder)
        except (UserError, OSError) as e:
            absent[folder] = str(e)
            continue
        task = task or next(iter(own.tasks))
        if task in own.tasks and own.tasks[task].whole.any():
            places[folder], counts[folder] = place, own
        else:
            absent[folder] = f"no complete problem of {task}"
    if not counts or task is None:
        why = "; ".join(f"{folder}: {why}" for folder, why in absent.items())
        raise UserError(f"grid: no run with a guide's threshold and ratio and samples of {task or 'any task'} ({why}).")
    top = min(own.tasks[task].n for own in counts.values())
    common, _ = shared(list(counts.values()), task, top)
    if not common[0].problems:
        short = f"no problem of {task} with {top} samples"
        raise UserError(f"grid: the runs share {short}; evaluate them on the same ones.")
    values = {folder: pass_table(own, [1, top]).mean(0) for folder, own in zip(counts, common)}
    cells = []
    for place in sorted(set(places.values())):
        same = [folder for folder in values if places[folder] == place]
        means = np.mean([values[folder] for folder in same], axis=0).tolist()
        stds = np.std([values[folder] for folder in same], axis=0, ddof=1).tolist() if len(same) > 1 else (None, None)
        cells.append(GridCell(*place, means[0], means[1], stds[0], stds[1], same))
    notes = [
        f"{folder}, {task}: half finished, {len(gaps)} cells lack samples"
        for folder, own in counts.items()
        if (gaps := own.tasks[task].gaps())
    ]
    notes += [f"{folder}: {note}" for folder, own in counts.items() for note in own.notes]
    return Grid(task, top, len(common[0].problems), cells, absent, [*notes, *_other_differences(list(counts))])


def _other_differences(folders: Sequence[str]) -> list[str]:
    """A grid is about τ and ρ: whatever else its runs differ in is said."""
    records = {f: r["settings"] for f in folders if (home := training_of(f)) and (r := read_record(home))}
    out = []
    for other in list(records)[1:]:
        first = next(iter(records))
        more = [
            f"{name} {a!r} → {b!r}"
            for name, (a, b) in differences(records[first], records[other]).items()
            if not name.startswith(("guide_args", "seed", "data_seed"))
        ]
        if more:
            out.append(f"{other} differs from {first} in more than τ and ρ: {'; '.join(more[:3])}")
    return out


def settings_of(folder: str | Path) -> tuple[float, float]:
    """(τ, ρ) of the run behind an evaluation: from its run.json."""
    home = training_of(folder)
    record = read_record(home) if home else None
    if record:
        guide = record["settings"].get("guide")  # an SFT stage has none
        if guide != "branch":
            raise UserError(f"{home} was trained with guide {guide!r}, not 'branch'; name runs of the branch guide.")
        own = make_guide(guide, **(record["settings"].get("guide_args") or {})).settings()
        return float(own["threshold"]), float(own["ratio"])
    if not Path(folder).is_dir():
        raise UserError(f"there is no run {folder}: check the path.")
    raise UserError(f"{folder}: no run.json behind it says τ and ρ; keep the training folder beside it.")
