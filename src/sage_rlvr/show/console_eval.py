"""What ``sage-rlvr results`` and ``sage-rlvr compare`` print and write."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.compare import AVERAGE, Cell, Comparison, compare
from sage_rlvr.evaluate.results import Average, Estimate, Paired, Results, SupportTask, TaskResult, results
from sage_rlvr.grid import Grid
from sage_rlvr.show import figures_eval as figures
from sage_rlvr.show import tables_eval as tables
from sage_rlvr.show.tables_eval import digits

Curves = dict[str, dict[str, Mapping[int, figures.Point]]]


def show_results(
    folder: str | Path,
    out: str | Path | None = None,
    level: float = 0.95,
    base: str | Path | None = None,
    console: Console | None = None,
) -> Results:
    """One run: prints its tables and writes results.json, table.md, table.tex and the curves (into the run, unless told)."""
    console = console or Console()
    found = results(folder, level=level, base=base)
    _results_table(found).show(console)
    console.print(
        Text(f"brackets: {level:.0%} bootstrap intervals over problems; ±: standard deviation over seeds", "dim")
    )
    _rates_table(found).show(console)
    if found.paired and found.support:
        _paired_table(found.paired).show(console)
        _support_table(found.support).show(console)
    _print_notes(console, _run_notes(found), [])
    own: Curves = {Path(folder).resolve().name: {name: t.pass_at for name, t in found.tasks.items() if t.pass_at}}
    if found.average and len(found.average.tasks) > 1:
        own[Path(folder).resolve().name][AVERAGE] = found.average.pass_at
    alone = compare([folder], level, partial=True)
    _write(console, Path(out or folder), {"results.json": found.to_json(), **_texts(alone)}, own, level)
    return found


def show_comparison(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    level: float = 0.95,
    partial: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Several runs: prints the table and the differences from the first; with ``out``, writes them and the curves."""
    console = console or Console()
    found = compare(folders, level, partial)
    _comparison_table(found).show(console)
    if len(found.rows) > 1:
        _change_table(found).show(console)
    console.print(Text(tables.about(found), style="dim"))
    _print_notes(console, found.notes, tables.not_shown(found))
    if out is not None:
        shown = {g for g, _ in found.columns}
        curves: Curves = {r.name: {g: points for g, points in r.cells.items() if g in shown} for r in found.rows}
        _write(console, Path(out), {"comparison.json": found.to_json(), **_texts(found)}, curves, level)
    return found


def _texts(c: Comparison) -> dict[str, str]:
    return {"table.md": tables.markdown(c), "table.tex": tables.latex(c)}


def _write(console: Console, folder: Path, texts: dict[str, str], curves: Curves, level: float) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
        figure = figures.pass_at_k_figure(curves, folder / "pass_at_k", level)
    except OSError as e:
        raise UserError(f"--out {folder}: cannot write there ({e.strerror}); name a folder you can write to.") from e
    written = [*(str(folder / name) for name in texts), *map(str, figure.files)]
    console.print(Text("written: " + ", ".join(written)), soft_wrap=True)


# ---- tables ------------------------------------------------------------------------------------------------------


def _bracketed(e: Estimate | None) -> str:
    if e is None:
        return "–"
    return (
        digits(e.value) if e.low is None or e.high is None else f"{digits(e.value)} [{digits(e.low)}, {digits(e.high)}]"
    )


def _over_seeds(e: Estimate) -> str:
    if e.seed_mean is None:
        return "–"
    return digits(e.seed_mean) + (f" ± {digits(e.seed_std)}" if e.seed_std is not None else "")


def _results_table(r: Results) -> Grid:
    table = Grid(f"{r.run or r.folder} · {r.model}", ("task", "k", "pass@k", "over seeds", "majority@k"), keep=2)
    rows: dict[str, TaskResult | Average] = dict(r.tasks)
    if r.average and len(r.average.tasks) > 1:
        rows[f"mean of {len(r.average.tasks)} tasks"] = r.average
    for name, t in rows.items():
        for i, (k, e) in enumerate(t.pass_at.items()):
            head = "" if i else name
            table.add(head, str(k), _bracketed(e), _over_seeds(e), _bracketed(t.majority_at.get(k)))
        if not t.pass_at:
            table.add(name, "–", "–", "–", "–")
        table.section()
    return table


def _rates_table(r: Results) -> Grid:
    columns = (
        "problems", "n × seeds", "answered", "truncated", "truncated,\nno answer", "errors", "tokens", "right\nanswers",
        "right\nsolutions",
    )  # fmt: skip
    table = Grid("samples (the last two: different ones in n samples of a problem)", ("task", *columns))
    kinds = ("answered", "truncated", "truncated_without_answer", "errors")
    for name, t in r.tasks.items():
        shares = [f"{t.rates[kind]:.1%}" if kind in t.rates else "–" for kind in kinds]
        distinct = [f"{e.value:.2f}" if e else "–" for e in (t.distinct_answers, t.distinct_solutions)]
        tokens = f"{t.rates['tokens']:.0f}" if "tokens" in t.rates else "–"
        table.add(name, str(t.problems), f"{t.n} × {len(t.seeds)}", *shares, tokens, *distinct)
    return table


def _paired_table(p: Paired) -> Grid:
    ks = sorted({k for t in p.tasks.values() for k in t.pass_at})
    table = Grid(f"paired differences from {p.first}", ("task", "problems", *(f"pass@{k}" for k in ks)))
    rows = [(name, str(t.problems), t.pass_at) for name, t in p.tasks.items()]
    if len(rows) > 1:
        rows.append((f"mean of {len(rows)} tasks", "", p.average))
    for name, problems, cells in rows:
        table.add(*map(Text, (name, problems, *(_bracketed(cells.get(k)) for k in ks))))
    return table


def _support_table(support: Mapping[str, SupportTask]) -> Grid:
    columns = ("budget", "both", "gained", "lost", "neither", "SRR", "NDR", "SDS", "NSCR")
    table = Grid("problems solved within the budget, against the base", ("task", *columns))
    for name, s in support.items():
        m = s.metrics
        cells = (s.budget, m.P, m.E, m.S, m.O, *(digits(x) for x in (m.SRR, m.NDR, m.SDS, m.NSCR)))
        table.add(*(Text(str(x)) for x in (name, *cells)))
    return table


def _comparison_table(c: Comparison) -> Grid:
    table = Grid("", ("run", *(f"{g}\npass@{k}" for g, k in c.columns)))
    for row in c.rows:
        table.add(Text(row.name), *(_cell(row.cells.get(g, {}).get(k)) for g, k in c.columns))
    return table


def _cell(cell: Cell | None) -> Text:
    if cell is None:
        return Text("–")
    return Text.assemble(
        (digits(cell.value), "bold" if cell.bold else ""), (f"\n[{digits(cell.low)}, {digits(cell.high)}]", "dim")
    )


def _change_table(c: Comparison) -> Grid:
    table = Grid(f"paired differences from {c.rows[0].name}", ("run", *(f"{g}\npass@{k}" for g, k in c.columns)))
    for row in c.rows[1:]:
        changes = (tables.change(row.cells.get(g, {}).get(k)).replace(" [", "\n[") for g, k in c.columns)
        table.add(Text(row.name), *map(Text, changes))
    return table


# ---- notes -------------------------------------------------------------------------------------------------------


def _run_notes(r: Results) -> list[str]:
    out = list(r.notes)
    for name, t in r.tasks.items():
        if t.unverifiable:
            out.append(
                f"{name}: {len(t.unverifiable)} problems with an unverifiable gold dropped ({_some(t.unverifiable)})"
            )
        if t.incomplete:
            cells = [f"{g.problem} seed {g.seed}: {g.have} of {g.want}" for g in t.incomplete]
            out.append(f"{name}: {len(cells)} (problem, seed) cells are incomplete and not counted ({_some(cells)})")
    return out


def _some(names: list[str], most: int = 5) -> str:
    return "; ".join(names[:most]) + ("; …" if len(names) > most else "")


def _print_notes(console: Console, notes: Sequence[str], absent: Sequence[str]) -> None:
    for note in notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    for sentence in absent:
        console.print(Text(sentence, style="yellow"), soft_wrap=True)
