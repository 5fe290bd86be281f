"""``sage-rlvr demo``: the whole product on an embedded default. A base, four ways to train it, samples, tables, a sentence, a
picture and a page."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from sage_rlvr.models import write_whole
from sage_rlvr.provenance import made_with
from sage_rlvr.show.console_analysis import trace_page
from sage_rlvr.show.style import Figure, line, panels, save
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.stats.table import Row, plain, shown
from sage_rlvr.study import console as study_console
from sage_rlvr.study.plan import read_folder
from sage_rlvr.study.read import read_standings, study_rows
from sage_rlvr.study.run import finished_runs

TRACED = {"limit": 12, "per_problem": 4}  # problems and completions whose tokens the page can shade
WIDTH = 80  # of the tables


def run_demo(
    out: str | Path = "runs/demo", jobs: int | None = None, show: bool = False, source: str | Path = "demo"
) -> bool:
    """Runs or goes on with the demo study under ``out``; True if every run is done. The page is made of those that are."""
    whole = study_console.run(source, out, jobs, table=False)
    out, console = Path(out), study_console.wide_console()
    logging.disable_progress_bar()  # a bar for each of a dozen small models says nothing
    study = read_folder(out)
    for run, evaluation in finished_runs(out).items():
        if run != "base" and study.settings_of(run).get("guide", "none") != "none":
            trace_page(evaluation, [Path(out, run, "train")], console, **TRACED)
    report = study_console.make_report(out, show=show)
    free = next((name for name, settings in study.variants.items() if settings.get("beta") == 0), None)
    rows = study_rows(out)
    n = max(rows[0].pass_at)
    found = differences(out, free)
    said = sentence(found, free, n)
    figure = draw_plane(out / "plane", rows, n, said)
    record = {"made": made_with(), "table": plain(rows), "differences": [asdict(d) for d in found], "sentence": said}
    write_whole(out / "demo.json", json.dumps(record, indent=1) + "\n")
    show_tables(console, rows, found, n)
    console.print(f"\n{said}", width=WIDTH, highlight=False)
    console.print("One seed, a toy model: how the parts behave, not which is best.", width=WIDTH, highlight=False)
    console.print(f"the picture: {figure.files[-1].resolve()}", soft_wrap=True, highlight=False)
    console.print(f"the page: {report.resolve()}", soft_wrap=True, highlight=False)
    return whole


# ---- paired differences --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """``variant`` minus ``reference``, problem by problem; 95% intervals over problems."""

    variant: str
    reference: str
    pass_1: Interval
    pass_n: Interval


def differences(out: str | Path, free: str | None) -> list[Difference]:
    """Every trained variant minus the base, then minus ``free``, the one without KL. The study's first task."""
    found = read_standings(out)
    return [
        Difference(x.variant, reference, x.pass_1, x.pass_n)
        for reference in ("base", free)
        if reference in found.seeds
        for x in found.less(reference)
        if x.task == found.tasks[0]
    ]


# ---- what came out, in one sentence --------------------------------------------------------------------------------


def sentence(found: list[Difference], free: str | None, n: int) -> str:
    """What these numbers say, whatever they are: did RL without KL raise pass@1 and lower pass@n, are the others between?"""
    by = {(d.variant, d.reference): d for d in found}
    if free is None or (free, "base") not in by:
        return "The base or the variant without KL is not there, so nothing is compared."
    moved = by[free, "base"]
    said = f"Without KL, RL {_change('pass@1', moved.pass_1)} and {_change(f'pass@{n}', moved.pass_n)}"
    others = [d.variant for d in found if d.reference == free]
    outside = [v for v in others if not _between(by[v, "base"], by[v, free], moved)]
    inside = ", ".join(v for v in others if v not in outside)
    if inside:
        said += f"; with an anchor ({inside}), both numbers lie between the base and no KL, within the 95% intervals"
    if outside:
        said += f"; {', '.join(outside)}: not between"
    return f"{said}."


def _change(what: str, x: Interval) -> str:
    sure = f"{x.mean:+.3f} [{x.low:+.3f}, {x.high:+.3f}]"
    if x.low > 0:
        return f"raised {what} ({sure})"
    return f"lowered {what} ({sure})" if x.high < 0 else f"changed {what} by no detectable amount ({sure})"


def _between(over_base: Difference, over_free: Difference, moved: Difference) -> bool:
    """On neither number detectably beyond the base or the variant without KL, the two ends."""

    for k in ("pass_1", "pass_n"):
        ends = getattr(over_base, k), getattr(over_free, k)
        # what it has over the lower end, over the higher
        low, high = ends if getattr(moved, k).mean > 0 else ends[::-1]
        if not low.high >= 0 >= high.low:
            return False
    return True


# ---- tables and picture --------------------------------------------------------------------------------------------


def show_tables(console: Console, rows: list[Row], found: list[Difference], n: int) -> None:
    first = rows[0]
    title = f"{first.task}: {first.problems} problems, {n} samples each, 95% intervals over problems"
    table = _table(title, "pass@1", f"pass@{n}", "ways", "lost", "gained")
    for r in rows:
        moved = ["–", "–"] if r.variant == "base" else [f"{r.lost:.0f}", f"{r.gained:.0f}"]
        solutions = "–" if r.solutions is None else f"{r.solutions.mean:.2f}"
        table.add_row(r.variant, shown(r.pass_at[1]), shown(r.pass_at[n]), solutions, *moved)
    console.print(table, width=WIDTH)
    console.print(
        f"ways: distinct right solutions per problem. lost, gained: problems solved in\n{n} samples by the base alone, by the "
        "trained model alone.",
        highlight=False,
    )
    for reference in dict.fromkeys(d.reference for d in found):
        title = f"minus {reference}: paired differences, 95% intervals over problems"
        table = _table(title, "pass@1", f"pass@{n}")
        for d in found:
            if d.reference == reference:
                table.add_row(d.variant, shown(d.pass_1, sign="+"), shown(d.pass_n, sign="+"))
        console.print(table, width=WIDTH)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("variant", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def draw_plane(path: str | Path, rows: list[Row], n: int, said: str) -> Figure:
    """pass@1 across, pass@n up: an arrow from the base to each variant, a cross of 95% intervals at its end."""
    base = next((r for r in rows if r.variant == "base"), None)
    with panels(1, width=4.8, height=3.4) as (figure, axes):
        ax = axes[0, 0]
        for i, r in enumerate(rows):
            x, y = r.pass_at[1], r.pass_at[n]
            style = line(i) | {"ls": "none", "ms": 5}
            ends = [np.array([[max(v.mean - v.low, 0)], [max(v.high - v.mean, 0)]]) for v in (y, x)]
            if np.isfinite(ends).all():
                ax.errorbar(x.mean, y.mean, *ends, elinewidth=0.6, label=r.variant, **style)
            else:
                ax.plot(x.mean, y.mean, label=r.variant, **style)
            if base is not None and r is not base:
                start = (base.pass_at[1].mean, base.pass_at[n].mean)
                arrow = {"arrowstyle": "->", "color": style["color"], "lw": 1.4, "shrinkA": 4, "shrinkB": 4}
                ax.annotate("", (x.mean, y.mean), start, arrowprops=arrow)
        ax.set_xlabel("pass@1")
        ax.set_ylabel(f"pass@{n}")
        ax.legend(frameon=False, fontsize=8, loc="lower left")
        return save(figure, path, f"pass@{n} against pass@1, 95% intervals over problems. {said}")
