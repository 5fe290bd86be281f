"""What ``sage-rlvr analyze`` and ``sage-rlvr trace`` print and write. A run that cannot be read is named, the rest is shown."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from sage_rlvr.analysis.dynamics import THIRDS, dynamics
from sage_rlvr.analysis.grid import grid
from sage_rlvr.analysis.patterns import chosen_patterns, patterns
from sage_rlvr.analysis.perplexity import perplexity, tails, thresholds
from sage_rlvr.analysis.records import training_of
from sage_rlvr.analysis.scoring import source_of
from sage_rlvr.analysis.support import support
from sage_rlvr.analysis.trace import Traced, trace
from sage_rlvr.analysis.verdicts import read_verdicts
from sage_rlvr.errors import UserError
from sage_rlvr.grid import Grid
from sage_rlvr.names import near
from sage_rlvr.show import figures_analysis as figures
from sage_rlvr.show.style import Figure
from sage_rlvr.store import SampleStore

Found = dict[str, Any]  # run → its analysis


class Page:
    """Collects what an analysis says: tables, notes and absent runs to print; a record and a figure to write."""

    def __init__(self, kind: str, runs: Sequence[str | Path], base: str | Path | None):
        self.kind, self.base = kind, base
        self.runs = dict(zip(names(runs), runs))
        self.tables: list[Grid] = []
        self.notes: list[str] = []
        self.absent: dict[str, str] = {}  # folder → why
        self.record: dict[str, Any] = {}
        self.draw: Callable[[Path], Figure] | None = None

    def each(self, look: Callable[[str | Path], Any]) -> Found:
        """``look`` at every run; one that cannot be read is set down as absent."""
        found: Found = {}
        for name, folder in self.runs.items():
            try:
                found[name] = look(folder)
            except (UserError, OSError) as e:
                self.absent[str(folder)] = str(e)
        if not found:
            raise UserError(
                f"analyze {self.kind}: no run to show ({'; '.join(self.absent.values()) or 'none was named'})."
            )
        return found


def names(runs: Sequence[str | Path]) -> list[str]:
    """Folder names; whole paths where two are the same."""
    short = [Path(r).resolve().name for r in runs]
    return [s if short.count(s) == 1 else str(r) for s, r in zip(short, runs)]


def analyze(
    kind: str,
    runs: Sequence[str | Path],
    base: str | Path | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
    **opts: Any,
) -> dict[str, Any]:
    """Prints one analysis of the runs and, with ``out``, writes OUT/KIND.json, KIND.svg, KIND.png and KIND.txt; gives the record.

    kind        base                                opts
    patterns    –                                   pattern_file, pattern ({name: regex} or name=regex…), first, level
    perplexity  the base's evaluation, or a model   thresholds, quantiles, tasks, problems, limit, data_dir, batch_tokens, dtype,
                                                    device
    support     the base's evaluation               budget
    dynamics    –                                   –
    grid        –                                   task, top
    """
    if kind not in KINDS:
        raise UserError(f"analyze {kind!r} is unknown: {near(kind, KINDS)}.")
    if not runs:
        raise UserError(f"analyze {kind} needs at least one run's folder.")
    page, console = Page(kind, list(dict.fromkeys(map(str, runs))), base), console or Console()
    make, allowed = KINDS[kind]
    if strange := [o for o in opts if o not in allowed]:
        owners = [k for k, (_, names) in KINDS.items() if strange[0] in names]
        mend = f"only {', '.join(owners)} has it" if owners else f"it has {', '.join(allowed) or 'none'}"
        raise UserError(f"analyze {kind} has no option {strange[0]!r}; {mend}.")
    make(page, **{k: v for k, v in opts.items() if v is not None})
    record = plain(
        {"kind": kind, "base": str(base) if base else None, **page.record, "notes": page.notes, "absent": page.absent}
    )
    for table in page.tables:
        table.show(console)
    for note in page.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    for folder, why in page.absent.items():
        console.print(
            Text(f"not shown: {why if folder in why else f'{folder}: {why}'}", style="yellow"), soft_wrap=True
        )
    if out is not None:
        console.print(
            Text("written: " + ", ".join(map(str, _write(Path(out), kind, record, page.draw)))), soft_wrap=True
        )
    return record


def _write(folder: Path, kind: str, record: dict[str, Any], draw: Callable[[Path], Figure] | None) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = draw(folder / kind) if draw else None
        if drawn:
            record["figure"] = {"files": [f.name for f in drawn.files], "description": drawn.description}
        path = folder / f"{kind}.json"
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as e:
        raise UserError(f"--out {folder}: cannot write there ({e.strerror}); name a folder you can write to.") from e
    return [path, *(drawn.files if drawn else [])]


def plain(x: Any) -> Any:
    """As JSON has it: dataclasses as objects, null for nan."""
    if is_dataclass(x) and not isinstance(x, type):
        return plain(asdict(x))
    if isinstance(x, Mapping):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [plain(v) for v in x]
    if isinstance(x, np.generic):
        x = x.item()
    return None if isinstance(x, float) and not math.isfinite(x) else x


# ---- the five ----------------------------------------------------------------------------------------------------


def _patterns(
    page: Page,
    pattern_file: str | None = None,
    pattern: Mapping[str, str] | Sequence[str] | None = None,
    first: int | None = None,
    level: float = 0.95,
) -> None:
    detectors = chosen_patterns(pattern if isinstance(pattern, Mapping) else _pairs(pattern or ()), pattern_file)
    found = page.each(lambda folder: patterns(folder, detectors, level, first))
    page.notes += [n for name in found for n in _unfinished(page.runs[name])]
    table = _grid(
        "patterns among the right solutions of N problems",
        "run",
        "task",
        "N",
        "right",
        "pattern",
        "F(p)",
        "pooled",
        "count",
    )
    for run, by_task in found.items():
        for task, t in by_task.items():
            for name, f in t.frequency.items():
                share = f"{_d(f.per_problem)} [{_d(f.low)}, {_d(f.high)}]"
                row = (run, task, str(t.problems), str(t.solutions), name, share, _d(f.pooled), str(f.count))
                table.add(*map(Text, row))
            table.section()
    page.tables.append(table)
    page.record = {"level": level, "detectors": {n: p.pattern for n, p in detectors.items()}, "runs": found}
    page.draw = lambda path: figures.patterns_figure(found, path)


def _pairs(given: Sequence[str]) -> dict[str, str]:
    """["name=regex", …], as flags give them."""
    if bad := [text for text in given if not text.partition("=")[2]]:
        raise UserError(f"pattern {bad[0]!r} is not of the form name=regex: write induction='by induction'.")
    return {name: regex for name, _, regex in (text.partition("=") for text in given)}


def _perplexity(
    page: Page, thresholds: Sequence[float] = (), quantiles: Sequence[float] = (0.5, 0.9, 0.95, 0.99), **how: Any
) -> None:
    if page.base is None:
        raise UserError("analyze perplexity needs base: the base's evaluation folder, or the base model.")
    scorer = source_of(page.base)
    own = {k: how.pop(k) for k in ("dtype", "device") if k in how}
    load = cache(lambda: scorer.load(**own))
    is_run = Path(page.base, "store.json").is_file()
    if is_run and str(page.base) not in map(str, page.runs.values()):
        page.runs = {names([page.base])[0]: page.base, **page.runs}
    read = page.each(lambda folder: perplexity(folder, scorer, load=load, **how))
    page.notes += [n for name in read for n in _unfinished(page.runs[name])]
    pooled = {run: np.concatenate([x for by in tasks.values() for x in by.values()]) for run, tasks in read.items()}
    base_name = next((n for n, f in page.runs.items() if is_run and str(f) == str(page.base) and n in read), None)
    marks = _thresholds(pooled.get(base_name) if base_name else None, thresholds, quantiles)
    found = {run: tails(x, marks) for run, x in pooled.items()}
    table = _grid(
        f"perplexity under {scorer.name}; share of samples above", "run", "samples", "median", "mean",
        *(f"{name}\n({mark:.3g})" for name, mark in marks.items()),
    )  # fmt: skip
    for run, t in found.items():
        table.add(
            *map(Text, (run, f"{t.samples:,}", f"{t.quantiles[0.5]:.3f}", f"{t.mean:.3f}", *map(_d, t.above.values())))
        )
    page.tables.append(table)
    each = {
        run: {task: {p: x.tolist() for p, x in by.items()} for task, by in tasks.items()} for run, tasks in read.items()
    }
    page.record = {"scorer": scorer.name, "thresholds": marks, "runs": found, "values": each}
    page.draw = lambda path: figures.perplexity_figure(pooled, marks, path)


_thresholds = thresholds  # the option of that name hides it above


def _support(page: Page, budget: int | None = None) -> None:
    if page.base is None:
        raise UserError("analyze support needs base: the base's evaluation folder.")
    base = read_verdicts(page.base)
    page.notes += base.notes
    found = page.each(lambda folder: support(base, folder, budget))
    page.notes += [n for name in found for n in _unfinished(page.runs[name])]
    columns = ("k", "P", "E", "S", "O", "SRR", "NDR", "SDS", "NSCR")
    table = _grid(
        f"solved in k samples by both (P), only by the run (E), only by {page.base} (S), by neither (O)",
        "run",
        "task",
        *columns,
    )
    for run, by_task in found.items():
        for task, s in by_task.items():
            m = s.metrics
            cells = (s.budget, m.P, m.E, m.S, m.O, *map(_d, (m.SRR, m.NDR, m.SDS, m.NSCR)))
            table.add(*(Text(str(x)) for x in (run, task, *cells)))
            for word, ids in (("gained", s.E), ("lost", s.S)):
                if ids:
                    page.notes.append(f"{run}, {task}: {word} {', '.join(ids[:12])}{', …' if len(ids) > 12 else ''}")
    page.tables.append(table)
    page.record = {"runs": found}
    page.draw = lambda path: figures.support_figure(found, path)


def _dynamics(page: Page) -> None:
    found = page.each(lambda folder: dynamics(training_of(folder) or folder))
    page.notes += [n for d in found.values() for n in d.notes]
    norms = _grid("gradient norm by thirds of training", "run", "steps", *THIRDS)
    last = _grid("at the last step", "run", *LAST)
    held = _grid(
        "reward overfitting: held-out pass@1 and training reward", "run", "peak", "reward", "end", "reward", "lost"
    )
    for run, d in found.items():
        steps = f"{d.steps} of {d.planned}" if d.planned else str(d.steps)
        norms.add(*map(Text, (run, steps, *(_d(t.mean) for t in d.grad_norm.values()))))
        last.add(*map(Text, (run, *(f"{d.curves[n][-1][1]:.4g}" if n in d.curves else "–" for n in LAST.values()))))
        if o := d.overfit:
            ends = [(f"{_d(at['held_out'])} (step {at['step']})", _d(at["reward"])) for at in (o["peak"], o["end"])]
            held.add(*map(Text, (run, *ends[0], *ends[1], _d(o["lost"]))))
    page.tables += [norms, last, *([held] if held.rows else [])]
    page.record = {"runs": found}
    page.draw = lambda path: figures.dynamics_figure(found, path)


LAST = {"reward": "reward", "entropy": "entropy", "KL shaped": "kl", "KL plain": "kl_ref", "mean q": "sage/q_mean"}


def _grid_kind(page: Page, task: str | None = None, top: int | None = None) -> None:
    found = grid(list(page.runs.values()), task, top)
    page.absent |= found.absent
    page.notes += found.notes
    table = _grid(
        f"branch guide on {found.task} ({found.problems} problems)", "τ", "ρ", "pass@1", f"pass@{found.top}", "runs"
    )
    for c in found.cells:
        shown = [
            _d(v) + (f" ± {_d(s)}" if s is not None else "") for v, s in ((c.pass_1, c.std_1), (c.pass_top, c.std_top))
        ]
        table.add(*map(Text, (f"{c.threshold:g}", f"{c.ratio:g}", *shown, str(len(c.runs)))))
    page.tables.append(table)
    page.record = {"grid": found}
    page.draw = lambda path: figures.grid_figure(found, path)


_READ = ("tasks", "problems", "limit", "data_dir", "batch_tokens", "dtype", "device")
KINDS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "patterns": (_patterns, ("pattern_file", "pattern", "first", "level")),
    "perplexity": (_perplexity, ("thresholds", "quantiles", *_READ)),
    "support": (_support, ("budget",)),
    "dynamics": (_dynamics, ()),
    "grid": (_grid_kind, ("task", "top")),
}


def _unfinished(folder: str | Path) -> list[str]:
    """A sentence for each task of which fewer samples are there than were asked for."""
    store = SampleStore(folder, readonly=True)
    done = store.done()
    out = []
    for task, asked in store.problems.items():
        want = len(asked.problems) * asked.n * len(asked.seeds)
        have = sum(len(done[c]) for c in done if c[0] == task)
        if have < want:
            out.append(f"{folder}, {task}: half finished, {have:,} of {want:,} samples are there")
    return out


def _grid(title: str, *columns: str) -> Grid:
    named = [i for i, column in enumerate(columns) if column in ("run", "task", "pattern")]
    return Grid(title, columns, keep=max(named, default=0) + 1, left=("task", "pattern"))


def _d(x: float | None) -> str:
    """Three digits, as the paper writes them: .284, and 1.000."""
    return "–" if x is None or x != x else re.sub(r"^(-?)0\.", r"\1.", f"{x:.3f}").replace("-", "−")


# ---- trace -------------------------------------------------------------------------------------------------------


def trace_page(
    run: str | Path, checkpoints: Sequence[str | Path] | None = None, console: Console | None = None, **opts: Any
) -> Traced:
    """Traces and says what was written; ``opts`` are those of trace.trace, guide_args as a dict or as JSON text."""
    console = console or Console()
    if isinstance(opts.get("guide_args"), str):
        try:
            opts["guide_args"] = dict(json.loads(opts["guide_args"]))
        except (ValueError, TypeError) as e:
            raise UserError(
                f"guide_args={opts['guide_args']!r} is not a JSON object: write '{{\"ratio\": 0.3}}'."
            ) from e

    def said(done: int, total: int) -> None:
        if console.is_terminal:
            console.print(f"traced {done:,}/{total:,}", end="\r", highlight=False)

    found = trace(run, checkpoints, progress=said, **opts)
    for note in found.notes:
        console.print(Text(f"not shown: {note}", style="yellow"), soft_wrap=True)
    console.print(
        Text(
            f"{found.samples:,} completions through {len(found.checkpoints)} checkpoints ({', '.join(found.checkpoints)}), guide "
            f"{found.settings['guide']}; {found.written:,} rows are new. written: {found.folder}\nq: {found.settings['q']}."
        ),
        soft_wrap=True,
    )
    return found
