"""What ``sage-rlvr analyze`` and ``sage-rlvr trace`` print and write. A run that cannot be read is named, the rest is shown."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from sage_rlvr.analysis.dynamics import THIRDS, dynamics
from sage_rlvr.analysis.grid import grid
from sage_rlvr.analysis.patterns import chosen_patterns, patterns
from sage_rlvr.analysis.perplexity import perplexity, tails
from sage_rlvr.analysis.perplexity import thresholds as marks_of
from sage_rlvr.analysis.records import training_of
from sage_rlvr.analysis.scoring import source_of
from sage_rlvr.analysis.trace import Traced, trace
from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.compare import names
from sage_rlvr.evaluate.results import support
from sage_rlvr.names import near
from sage_rlvr.show import figures_analysis as figures
from sage_rlvr.show.console_eval import print_notes, support_table
from sage_rlvr.show.style import Figure
from sage_rlvr.show.tables import Table, digits
from sage_rlvr.stats.counts import counts_of
from sage_rlvr.stats.table import as_json, plain
from sage_rlvr.store import SampleStore

LAST = {"reward": "reward", "entropy": "entropy", "KL shaped": "kl", "KL plain": "kl_ref", "mean q": "sage/q_mean"}


class Page:
    """Collects what an analysis says: tables, notes and absent runs to print; a record and a figure to write."""

    def __init__(self, kind: str, runs: Sequence[str | Path], base: str | Path | None):
        self.kind, self.base = kind, base
        self.runs = dict(zip(names(runs), runs))
        self.tables: list[Table] = []
        self.notes: list[str] = []
        self.absent: dict[str, str] = {}  # folder → why
        self.record: dict[str, Any] = {}
        self.draw: Callable[[Path], Figure]

    def each(self, read: Callable[[str | Path], Any], of_samples: bool = True) -> dict[str, Any]:
        """Run → what ``read`` gives for its folder. One that cannot be read is absent; samples that are missing are noted."""
        out = {}
        for name, folder in self.runs.items():
            try:
                out[name] = read(folder)
                self.notes += unfinished(folder) if of_samples else []
            except (UserError, OSError) as e:
                self.absent[str(folder)] = str(e)
        if not out:
            raise UserError(f"analyze {self.kind}: no run to show ({'; '.join(self.absent.values())}).")
        return out

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object] | None]) -> None:
        """None among the rows is a line between the others. Numbers are told by ``digits``, unless they are whole."""
        cells: list[Sequence[str] | None] = [
            None if row is None else [digits(x) if x is None or isinstance(x, float) else str(x) for x in row]
            for row in rows
        ]
        self.tables.append(Table(title, columns, cells))

    def base_or_fail(self, what: str) -> str | Path:
        if self.base is None:
            raise UserError(f"analyze {self.kind} needs base: {what}.")
        return self.base


def unfinished(folder: str | Path) -> list[str]:
    """A sentence for each task of which fewer samples are there than were asked for."""
    store = SampleStore(folder, readonly=True)
    done, out = store.done(), []
    for task, asked in store.problems.items():
        want = len(asked.problems) * asked.n * len(asked.seeds)
        have = sum(len(done[c]) for c in done if c[0] == task)
        if have < want:
            out.append(f"{folder}, {task}: half finished, {have:,} of {want:,} samples are there")
    return out


def analyze(
    kind: str,
    runs: Sequence[str | Path],
    base: str | Path | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
    **opts: Any,
) -> dict[str, Any]:
    """Prints one analysis of the runs and, with ``out``, writes OUT/KIND.json, KIND.svg, KIND.png and KIND.txt; gives the record.
    ``base``: the base's evaluation, for perplexity and support (for perplexity also a model). ``opts``: see KINDS.
    """
    if kind not in KINDS:
        raise UserError(f"analyze {kind!r} is unknown: {near(kind, KINDS)}.")
    make, allowed = KINDS[kind]
    if strange := [o for o in opts if o not in allowed]:
        owners = [k for k, (_, names) in KINDS.items() if strange[0] in names]
        fix = f"only {', '.join(owners)} has it" if owners else f"it has {', '.join(allowed) or 'none'}"
        raise UserError(f"analyze {kind} has no option {strange[0]!r}; {fix}.")
    page, console = Page(kind, list(dict.fromkeys(map(str, runs))), base), console or Console()
    make(page, **opts)
    about = {"kind": kind, "base": str(base) if base else None}
    record = plain({**about, **page.record, "notes": page.notes, "absent": page.absent})
    for table in page.tables:
        table.show(console)
    absent = [why if folder in why else f"{folder}: {why}" for folder, why in page.absent.items()]
    print_notes(console, page.notes, [f"not shown: {text}" for text in absent])
    if out is not None:
        files = _write(Path(out), kind, record, page.draw)
        console.print(Text("written: " + ", ".join(map(str, files))), soft_wrap=True)
    return record


def _write(folder: Path, kind: str, record: dict[str, Any], draw: Callable[[Path], Figure]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figure = draw(folder / kind)
        record["figure"] = {"files": [f.name for f in figure.files], "description": figure.description}
        path = folder / f"{kind}.json"
        path.write_text(as_json(record), encoding="utf-8")
    except OSError as e:
        raise UserError(f"--out {folder}: cannot write there ({e.strerror}); name a folder you can write to.") from e
    return [path, *figure.files]


# ---- the five ----------------------------------------------------------------------------------------------------


def _patterns(
    page: Page,
    pattern_file: str | None = None,
    pattern: Sequence[str] = (),
    first: int | None = None,
    level: float = 0.95,
) -> None:
    if bad := [text for text in pattern if not text.partition("=")[2]]:
        raise UserError(f"pattern {bad[0]!r} is not of the form name=regex: write induction='by induction'.")
    own = {name: regex for name, _, regex in (text.partition("=") for text in pattern)}
    detectors = chosen_patterns(own, pattern_file)
    by_run = page.each(lambda folder: patterns(folder, detectors, level, first))
    rows: list[Sequence[object] | None] = []
    for run, by_task in by_run.items():
        for task, t in by_task.items():
            for name, f in t.frequency.items():
                share = f"{digits(f.per_problem)} [{digits(f.low)}, {digits(f.high)}]"
                rows.append((run, task, t.problems, t.solutions, name, share, f.pooled, f.count))
            rows.append(None)
    columns = ("run", "task", "N", "right", "pattern", "F(p)", "pooled", "count")
    page.table("patterns among the right solutions of N problems", columns, rows)
    page.record = {"level": level, "detectors": {n: p.pattern for n, p in detectors.items()}, "runs": by_run}
    page.draw = lambda path: figures.patterns_figure(by_run, path)


def _perplexity(page: Page, thresholds: Sequence[float] = (), **how: Any) -> None:
    base = page.base_or_fail("the base's evaluation folder, or the base model")
    scorer = source_of(base)
    if is_run := Path(base, "store.json").is_file():
        named = next((n for n, f in page.runs.items() if str(f) == str(base)), names([base])[0])
        page.runs = page.runs if named in page.runs else {named: base, **page.runs}
    load = cache(scorer.load)
    values = page.each(lambda folder: perplexity(folder, scorer, load=load, **how))
    pooled = {run: np.concatenate([x for by in tasks.values() for x in by.values()]) for run, tasks in values.items()}
    marks = marks_of(pooled.get(named) if is_run else None, thresholds)
    by_run = {run: tails(x, marks) for run, x in pooled.items()}
    columns = ("run", "samples", "median", "mean", *(f"{name}\n({mark:.3g})" for name, mark in marks.items()))
    rows = [
        (run, f"{t['samples']:,}", f"{t['quantiles'][0.5]:.3f}", f"{t['mean']:.3f}", *t["above"].values())
        for run, t in by_run.items()
    ]
    page.table(f"perplexity under {scorer.name}; share of samples above", columns, rows)
    page.record = {"scorer": scorer.name, "thresholds": marks, "runs": by_run, "values": values}
    page.draw = lambda path: figures.perplexity_figure(pooled, marks, path)


def _support(page: Page, budget: int | None = None) -> None:
    base = counts_of(page.base_or_fail("the base's evaluation folder"))
    if budget is not None and budget < 1:
        raise UserError(f"budget={budget} must be at least 1 sample per problem.")
    page.notes += [*base.notes, *unfinished(base.folder)]
    by_run = page.each(lambda folder: support(base, folder, budget))
    for run, by_task in by_run.items():
        for task, s in by_task.items():
            for word, ids in (("gained", s.E), ("lost", s.S)):
                if ids:
                    page.notes.append(f"{run}, {task}: {word} {', '.join(ids[:12])}{', …' if len(ids) > 12 else ''}")
    page.tables.append(support_table(by_run, str(page.base)))
    page.record = {"runs": by_run}
    page.draw = lambda path: figures.support_figure(by_run, path)


def _dynamics(page: Page) -> None:
    by_run = page.each(lambda folder: dynamics(training_of(folder) or folder), of_samples=False)
    norms, last, held = [], [], []
    for run, d in by_run.items():
        page.notes += d.notes
        steps = f"{d.steps} of {d.planned}" if d.planned else str(d.steps)
        norms.append((run, steps, *(t.mean for t in d.grad_norm.values())))
        last.append((run, *(f"{d.curves[n][-1][1]:.4g}" if n in d.curves else "–" for n in LAST.values())))
        if o := d.overfit:
            ends = [(f"{digits(at['held_out'])} (step {at['step']})", at["reward"]) for at in (o["peak"], o["end"])]
            held.append((run, *ends[0], *ends[1], o["lost"]))
    page.table("gradient norm by thirds of training", ("run", "steps", *THIRDS), norms)
    page.table("at the last step", ("run", *LAST), last)
    if held:
        title = "reward overfitting: held-out pass@1 and training reward"
        page.table(title, ("run", "peak", "reward", "end", "reward", "lost"), held)
    page.record = {"runs": by_run}
    page.draw = lambda path: figures.dynamics_figure(by_run, path)


def _grid(page: Page, task: str | None = None) -> None:
    cells = grid(list(page.runs.values()), task)
    page.absent |= cells.absent
    page.notes += cells.notes

    def with_std(mean: float, std: float | None) -> str:
        return digits(mean) + (f" ± {digits(std)}" if std is not None else "")

    rows = [
        (f"{c.threshold:g}", f"{c.ratio:g}", with_std(c.pass_1, c.std_1), with_std(c.pass_top, c.std_top), len(c.runs))
        for c in cells.cells
    ]
    title = f"branch guide on {cells.task} ({cells.problems} problems)"
    page.table(title, ("τ", "ρ", "pass@1", f"pass@{cells.top}", "runs"), rows)
    page.record = {"grid": cells}
    page.draw = lambda path: figures.grid_figure(cells, path)


KINDS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "patterns": (_patterns, ("pattern_file", "pattern", "first", "level")),
    "perplexity": (_perplexity, ("thresholds", "limit", "data_dir", "batch_tokens")),
    "support": (_support, ("budget",)),
    "dynamics": (_dynamics, ()),
    "grid": (_grid, ("task",)),
}


# ---- trace -------------------------------------------------------------------------------------------------------


def trace_page(
    run: str | Path, checkpoints: Sequence[str | Path] | None = None, console: Console | None = None, **opts: Any
) -> Traced:
    """Traces and says what was written; ``opts`` are those of trace.trace, guide_args as a dict or as JSON text."""
    console = console or Console()
    if isinstance(given := opts.get("guide_args"), str):
        try:
            opts["guide_args"] = dict(json.loads(given))
        except (ValueError, TypeError) as e:
            raise UserError(f"guide_args={given!r} is not a JSON object: write '{{\"ratio\": 0.3}}'.") from e

    def progress(done: int, total: int) -> None:
        if console.is_terminal:
            console.print(f"traced {done:,}/{total:,}", end="\r", highlight=False)

    traced = trace(run, checkpoints, progress=progress, **opts)
    print_notes(console, (), [f"not shown: {note}" for note in traced.notes])
    text = (
        f"{traced.samples:,} completions through {len(traced.checkpoints)} checkpoints ({', '.join(traced.checkpoints)}), "
        f"guide {traced.settings['guide']}; {traced.written:,} rows are new. written: {traced.folder}\n"
        f"q: {traced.settings['q']}."
    )
    console.print(Text(text), soft_wrap=True)
    return traced
