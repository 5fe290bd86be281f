"""The paper's tables and figures, each made again by one call from runs: ours, and beside it the paper's, marked as such.

make("table1", {"base": "runs/base", "grpo": "runs/grpo", "branch": "runs/branch"}, "report/")

A label is a row of the paper in any spelling ("branch", "GRPO + Branch"; paper.row_of), or a row of your own. Its folder is an
evaluation, a training run, or one that holds both; several folders (training seeds) are averaged. What is not there is "not run".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.analysis.dynamics import THIRDS
from sage_rlvr.analysis.grid import grid
from sage_rlvr.analysis.patterns import patterns
from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.results import Estimate, Results, results
from sage_rlvr.names import near
from sage_rlvr.show import paper, tables
from sage_rlvr.show.paper_figures import FIGURES
from sage_rlvr.show.paper_runs import Folders, Runs, model_name
from sage_rlvr.show.style import Figure
from sage_rlvr.show.tables import bracketed, digits
from sage_rlvr.stats.table import as_json

NOT_RUN = "not run"


@dataclass
class Cell:
    """Ours (None: not run) and the paper's (None: it has none). ``spread``: the std over runs or seeds."""

    ours: float | None = None
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    k: int | None = None  # where it is not the column's
    paper: float | None = None
    paper_std: float | None = None

    def own_text(self) -> str:
        if self.ours is None:
            return NOT_RUN
        text = bracketed(self.ours, self.low, self.high)
        if (self.low is None or self.high is None) and self.spread is not None:
            text += f" ± {digits(self.spread)}"
        return text + (f" at k={self.k}" if self.k else "")

    def paper_text(self) -> str:
        if self.paper is None:
            return "–"
        return digits(self.paper) + (f" ± {digits(self.paper_std)}" if self.paper_std is not None else "")


@dataclass
class Table:
    which: str
    title: str
    columns: list[str]
    rows: dict[str, list[Cell]]
    notes: list[str] = field(default_factory=list)


@dataclass
class Made:
    which: str
    files: list[Path]
    notes: list[str]
    description: str = ""  # a figure's alternative text
    table: Table | None = None


# ---- the tables --------------------------------------------------------------------------------------------------


def results_table(number: int, runs: Runs) -> Table:
    """Tables 1, 3, 4 and 9: pass@1 and pass@top on each task, and the mean of the tasks."""
    facts, about, columns = paper.results(number), paper.TABLES[number], paper.columns(number)
    names = [f"{paper.TASKS.get(g, g)} pass@{k}" for g, k in columns]
    table = Table(f"table{number}", f"Table {number}: {about['title']} (the paper's: {about['model']})", names, {})
    every = {r for n in paper.TABLES for r in paper.results(n)}  # rows of another table stay there
    for row in [*facts, *(r for r in runs.rows if r not in every)]:
        ours = runs.read_evaluations(row, results)
        for r in ours:
            named = runs.read([Path(r.folder)], model_name)
            sizes = [f"{name}: {t.problems} problems, {t.n} × {len(t.seeds)} samples" for name, t in r.tasks.items()]
            table.notes.append(f"{row} (ours) is {named[0] if named else 'unknown model'}, {', '.join(sizes)}")
            gaps = {name: len(t.incomplete) for name, t in r.tasks.items() if t.incomplete}
            table.notes += [f"{row} is half finished: {name} lacks {count} cells" for name, count in gaps.items()]
        table.rows[row] = [_result_cell(ours, g, k, facts.get(row, {}).get((g, k))) for g, k in columns]
    return table


def _result_cell(ours: Sequence[Results], group: str, k: int, fact: paper.Value | None) -> Cell:
    """Where a run has fewer than k samples, all of the row are shown at the largest k they share, and the cell says so."""
    cell = Cell(paper=fact.mean if fact else None, paper_std=fact.std if fact else None)
    curves = [curve for r in ours if (curve := _average(r) if group == paper.AVERAGE else _curve(r, group))]
    if not curves:
        return cell
    own = max(x for x in set.intersection(*map(set, curves)) if x <= k)  # 1 is in all
    cell.k = own if own != k else None
    values = [curve[own].value for curve in curves]
    cell.ours = float(np.mean(values))
    if len(values) == 1:
        one = curves[0][own]
        cell.low, cell.high, cell.spread = one.low, one.high, one.seed_std
    else:
        cell.spread = float(np.std(values, ddof=1))
    return cell


def _curve(r: Results, task: str) -> Mapping[int, Estimate]:
    return r.tasks[task].pass_at if task in r.tasks else {}


def _average(r: Results) -> Mapping[int, Estimate]:
    """Of the paper's three tasks, or of none; without an interval where the run has other tasks beside them."""
    if r.average and set(r.average.tasks) == set(paper.TASKS):
        return r.average.pass_at
    curves = [_curve(r, task) for task in paper.TASKS]
    shared = set.intersection(*map(set, curves))
    return {k: Estimate(float(np.mean([c[k].value for c in curves]))) for k in shared}


def patterns_table(runs: Runs, first: int = 16) -> Table:
    """Table 2: pattern frequency among right AIME solutions."""
    facts = paper.PATTERNS
    table = Table("table2", "Table 2: reasoning patterns among right AIME solutions", list(facts["Base"]), {})
    for row in [*facts, *(r for r in runs.rows if r not in facts)]:
        ours = runs.read_evaluations(row, lambda f: patterns(f, first=first).get("aime"), "AIME samples")
        cells = []
        for name in table.columns:
            cell = Cell(paper=facts.get(row, {}).get(name))
            own = [t.frequency[name] for t in ours]
            if own:
                cell.ours = float(np.mean([f.per_problem for f in own]))
                cell.low, cell.high = (own[0].low, own[0].high) if len(own) == 1 else (None, None)
            cells.append(cell)
        table.rows[row] = cells
        table.notes += [f"{row} (ours): {t.problems} problems, {t.solutions} right solutions" for t in ours]
    return table


def gradient_table(runs: Runs) -> Table:
    """Table 5: gradient norm by thirds of training."""
    table = Table("table5", "Table 5: gradient norm by thirds of training", list(THIRDS), {})
    for row in [*paper.GRADIENT_NORM, *(r for r in runs.rows if r not in paper.GRADIENT_NORM)]:
        ours, fact, cells = runs.read_trainings(row), paper.GRADIENT_NORM.get(row), []
        for i, third in enumerate(THIRDS):
            means = [mean for d in ours if (mean := d.grad_norm[third].mean) is not None]
            cell = Cell(float(np.mean(means)) if means else None, paper=fact[i] if fact else None)
            cell.spread = float(np.std(means, ddof=1)) if len(means) > 1 else None
            cells.append(cell)
        if ours or fact:
            table.rows[row] = cells
        table.notes += [note for d in ours for note in d.notes]
    return table


def grid_table(runs: Runs) -> Table:
    """Table 6: the τ×ρ grid on AMC23; every run whose guide has a threshold and a ratio."""
    title = "Table 6: branch guide on AMC23 over τ and ρ (the paper's: 3 seeds)"
    table = Table("table6", title, ["pass@1", f"pass@{paper.GRID_TOP}"], {})
    folders = runs.evaluations([f for own in runs.rows.values() for f in own])
    ours = {}
    for g in runs.read([Path("grid")], lambda _: grid(folders, paper.GRID_TASK)) if folders else []:  # one, or none
        ours = {(c.threshold, c.ratio): (c, g.top) for c in g.cells}
        table.notes += [*g.notes, *(f"not in the grid: {why}" for why in g.absent.values())]
    for place in sorted({*paper.GRID, *ours}):
        one, top = (Cell(paper=x) for x in paper.GRID.get(place, (None, None)))
        if place in ours:
            own, k = ours[place]
            one.ours, one.spread, top.ours, top.spread = own.pass_1, own.std_1, own.pass_top, own.std_top
            top.k = k if k != paper.GRID_TOP else None
        table.rows[f"τ = {place[0]:g}, ρ = {place[1]:g}"] = [one, top]
    return table


TABLES: dict[str, Callable[[Runs], Table]] = {
    "table1": lambda r: results_table(1, r),
    "table2": patterns_table,
    "table3": lambda r: results_table(3, r),
    "table4": lambda r: results_table(4, r),
    "table5": gradient_table,
    "table6": grid_table,
    "table9": lambda r: results_table(9, r),
}


# ---- writing -----------------------------------------------------------------------------------------------------

MARK = f"Rows marked † are the paper's ({paper.SOURCE}; mean ± std over its seeds); the others are ours."
BRACKETS = "Brackets: 95% bootstrap intervals over problems; ±: standard deviation over runs."


def _written(t: Table) -> tables.Table:
    """Each row, and below it the paper's where it has one."""
    out = tables.Table(t.title, ["run", *t.columns], [], [f"{MARK} {BRACKETS}", *t.notes])
    for row, cells in t.rows.items():
        out.rows.append([row, *(c.own_text() for c in cells)])
        if any(c.paper is not None for c in cells):
            out.rows.append([f"{row} †", *(c.paper_text() for c in cells)])
    return out


def make(which: str, runs: Mapping[str, Folders], out: str | Path) -> Made:
    """Writes one table (.md, .tex, .json) or figure (.svg, .png, .txt, .json) into ``out``."""
    folder, own = Path(out), Runs(runs)
    if which not in TABLES and which not in FIGURES:
        raise UserError(f"there is no {which!r} in the paper: {near(which, [*TABLES, *FIGURES, 'all'])}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if which in FIGURES:
            return _write_figure(which, own, folder, *FIGURES[which](own, folder / which))
        table = TABLES[which](own)
        table.notes = list(dict.fromkeys([*table.notes, *own.notes]))
        written, record = _written(table), as_json({"source": paper.SOURCE, **asdict(table)})
        texts = {".md": f"**{table.title}**\n\n{written.markdown()}", ".tex": written.latex(), ".json": record}
        for suffix, text in texts.items():
            (folder / f"{which}{suffix}").write_text(text, encoding="utf-8")
    except OSError as e:
        raise UserError(f"--out {out}: cannot write there ({e.strerror}); name a folder you can write to.") from e
    return Made(which, [folder / f"{which}{s}" for s in texts], table.notes, table=table)


def _write_figure(which: str, runs: Runs, folder: Path, figure: Figure | None, data: dict[str, Any]) -> Made:
    if not figure:
        runs.note(f"{which}: {NOT_RUN}")
        figure = Figure([], "")
    words = figure.description
    record = {"which": which, "source": paper.SOURCE, "description": words, "data": data, "notes": runs.notes}
    (folder / f"{which}.json").write_text(as_json(record), encoding="utf-8")
    return Made(which, [*figure.files, folder / f"{which}.json"], runs.notes, words)


def parse_runs(given: Sequence[str]) -> dict[str, list[str]]:
    """["base=runs/x", "runs/grpo"] → {"base": ["runs/x"], "grpo": ["runs/grpo"]}; a label given twice has both folders."""
    out: dict[str, list[str]] = {}
    for text in given:
        label, equals, folder = text.partition("=")
        if not equals:
            label, folder = Path(text).resolve().name, text
        if not (label and folder):
            raise UserError(f"run {text!r} is not of the form label=folder: write branch=runs/branch.")
        out.setdefault(label, []).append(folder)
    return out


def make_all(runs: Mapping[str, Folders], out: str | Path) -> list[Made]:
    """Every table and figure that these runs, or the paper's values, can fill."""
    return [make(which, runs, out) for which in (*TABLES, *FIGURES)]
