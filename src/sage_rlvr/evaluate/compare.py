"""Several runs side by side, in the layout of the paper's Table 1: pass@1 and pass@n of each task, and their average.

Every run is judged on the problems that all of them have, with a verifiable gold in all of them. A number is bold only where
its paired interval against every other run excludes 0 (each at the stated level; not corrected for how many there are).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.stats import estimates
from sage_rlvr.stats.counts import Counts, counts_of, shared
from sage_rlvr.stats.intervals import RESAMPLES, bands
from sage_rlvr.stats.table import as_json
from sage_rlvr.store.settings import INPUTS, WEIGHTS, differences
from sage_rlvr.tasks.loading import some

AVERAGE = "average"
ROUNDING = 1e-9  # equal rates from other numbers of samples differ in the last bit
# runs may differ in these unremarked; the last three have notes of their own
OWN = (
    "run", "name", *WEIGHTS, *WEIGHTS.values(), INPUTS, "revision", "out", "backend", "batch_size", "n", "seeds", "tasks",
)  # fmt: skip


@dataclass
class Cell:
    """A mean over the common problems, its interval, and the paired difference from the first run (None for the first)."""

    value: float
    low: float
    high: float
    bold: bool
    minus_first: tuple[float, float, float] | None  # value, low, high


@dataclass
class Row:
    name: str
    folder: str
    model: str
    cells: dict[str, dict[int, Cell]]  # [task or AVERAGE][k], for k = 1, 2, 4, … top


@dataclass
class Comparison:
    level: float
    top: int  # the k of the right-hand columns: the largest that every run has
    problems: dict[str, int]  # common ones, by task
    averaged: list[str]  # tasks behind AVERAGE: those of every run
    rows: list[Row]
    notes: list[str]
    absent: dict[str, str]  # folder → why it is not in the table

    @property
    def columns(self) -> list[tuple[str, int]]:
        """(task, k), in the order of the table."""
        groups = [*self.problems, *([AVERAGE] if len(self.averaged) > 1 else [])]
        return [(g, k) for g in groups for k in dict.fromkeys((1, self.top))]

    def to_json(self) -> str:
        return as_json(self)


def compare(
    folders: Sequence[str | Path | Counts], level: float = 0.95, partial: bool = False, resamples: int = RESAMPLES
) -> Comparison:
    """A run that is missing, half finished (unless ``partial``) or of another version is named, and the rest is compared."""
    runs, absent = _open(folders, partial)
    if not runs:
        said = "; ".join(f"{f}: {why}" for f, why in absent.items()) or "none was named"
        raise UserError(f"compare: there is no run to show ({said}).")
    top = min(t.n for run in runs for t in run.tasks.values())
    ks = estimates.default_ks(top)
    rows = [Row(name, run.folder, run.model, {}) for name, run in zip(names([run.folder for run in runs]), runs)]
    notes = [f"{row.name}: {note}" for row, run in zip(rows, runs) for note in run.notes]
    problems: dict[str, int] = {}
    everywhere: dict[str, np.ndarray] = {}  # (runs, problems, K)
    for task in dict.fromkeys(t for run in runs for t in run.tasks):
        have = [i for i, run in enumerate(runs) if task in run.tasks]
        found, left_out = shared([runs[i] for i in have], task, top)
        notes += _task_notes(task, [rows[i].name for i in have], len(runs), found, left_out)
        if not found[0].problems:
            continue
        table = np.stack([estimates.pass_table(t, ks) for t in found])
        problems[task] = len(found[0].problems)
        _fill([rows[i] for i in have], task, ks, [table], level, resamples)
        if len(have) == len(runs):
            everywhere[task] = table
    if not problems:
        raise UserError("compare: these runs share no complete problem; evaluate them on the same tasks.")
    if everywhere:
        _fill(rows, AVERAGE, ks, list(everywhere.values()), level, resamples)
    notes += _settings_notes(rows, runs, top)
    return Comparison(level, top, problems, list(everywhere), rows, notes, absent)


def _open(folders: Sequence[str | Path | Counts], partial: bool) -> tuple[list[Counts], dict[str, str]]:
    runs, absent = [], {}
    for folder in folders:
        try:
            run = counts_of(folder)
        except (UserError, OSError) as e:
            absent[str(folder)] = str(e)
            continue
        cells = [t.whole for t in run.tasks.values()]
        whole, asked = sum(int(w.sum()) for w in cells), sum(w.size for w in cells)
        if whole < asked and not partial:
            absent[run.folder] = f"half finished: {whole} of {asked} (problem, seed) cells are complete"
        elif not asked:
            absent[run.folder] = "no problem of it has a verifiable gold"
        else:
            runs.append(run)
    return runs, absent


def _fill(rows: list[Row], group: str, ks: list[int], tables: list[np.ndarray], level: float, resamples: int) -> None:
    """Cells of one group of columns. ``tables``: (runs, problems, K) a task; several are averaged, each with equal weight."""
    mean = np.mean([t.mean(1) for t in tables], axis=0)  # (runs, K)
    best = mean.argmax(0)
    wide = []
    for t in tables:
        leader = np.stack([t[best[j], :, j] for j in range(len(ks))], axis=1)  # (problems, K)
        stack = np.stack([t, t - t[:1], leader - t])  # (3, runs, problems, K): itself, from the first, to the best
        wide.append(stack.transpose(2, 0, 1, 3).reshape(t.shape[1], -1))
    band = bands(wide, level, resamples)[1]
    value, low, high = (x.reshape(3, len(rows), len(ks)) for x in (band.mean, band.low, band.high))
    for i, row in enumerate(rows):
        row.cells[group] = {}
        for j, k in enumerate(ks):
            others = np.delete(low[2, :, j], i)
            bold = bool(i == best[j] and others.size and (others > ROUNDING).all())
            own, first = ([float(x[what, i, j]) for x in (value, low, high)] for what in (0, 1))
            row.cells[group][k] = Cell(own[0], own[1], own[2], bold, (first[0], first[1], first[2]) if i else None)


def names(folders: Sequence[str | Path]) -> list[str]:
    """Folder names; whole paths where two are the same."""
    short = [Path(folder).resolve().name for folder in folders]
    return [name if short.count(name) == 1 else str(folder) for name, folder in zip(short, folders)]


# ---- what a reader must know ---------------------------------------------------------------------------------------


def _task_notes(task: str, names: list[str], runs: int, found: list[Any], left_out: list[str]) -> list[str]:
    out = []
    if len(names) < runs:
        out.append(f"{task}: only in {', '.join(names)}, so not in the average")
    barred = sorted({p for t in found for p in t.unverifiable})
    if barred:
        out.append(f"{task}: {len(barred)} problems with an unverifiable gold dropped from every run ({some(barred)})")
    other = [p for p in left_out if p not in set(barred)]
    if other:
        shown = f"compared on the {len(found[0].problems)} common problems; "
        out.append(f"{task}: {shown}{len(other)} are not complete in every run ({some(other)})")
    return out


def _settings_notes(rows: list[Row], runs: list[Counts], top: int) -> list[str]:
    out = []
    sizes = {row.name: sorted({(t.n, len(t.seeds)) for t in run.tasks.values()}) for row, run in zip(rows, runs)}
    if len({s for size in sizes.values() for s in size}) > 1:
        said = "; ".join(f"{name} {', '.join(f'{n}×{s}' for n, s in size)}" for name, size in sizes.items())
        out.append(f"samples × seeds differ ({said}): pass@{top} is the largest k that all have")
    for row, run in zip(rows[1:], runs[1:]):
        differs = {k: v for k, v in differences(runs[0].settings, run.settings).items() if k.split(".")[0] not in OWN}
        if differs:
            said = "; ".join(f"{k} {a!r} → {b!r}" for k, (a, b) in list(differs.items())[:4])
            out.append(f"{row.name} was sampled otherwise than {rows[0].name}: {said}")
        one, other = (x.settings.get(INPUTS, {}) for x in (runs[0], run))
        known = [name for name in ("chat template", "prompt format") if name in one and name in other]
        asked = [name for name in known if one[name] != other[name]]
        if asked:
            out.append(f"{row.name} was asked otherwise than {rows[0].name}: another {' and '.join(asked)}")
    return out
