"""What ``sage-rlvr results`` and ``sage-rlvr compare`` print and write."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.compare import AVERAGE, Cell, Comparison, Row, compare, some
from sage_rlvr.evaluate.results import Average, Results, SupportTask, TaskResult, results
from sage_rlvr.show.figures_eval import Curves, pass_at_k_figure
from sage_rlvr.show.tables import Table, bracketed, digits


def show_results(
    folder: str | Path,
    out: str | Path | None = None,
    level: float = 0.95,
    base: str | Path | None = None,
    console: Console | None = None,
) -> Results:
    """One run: prints its tables and writes results.json, table.md, table.tex and the curves (into the run, unless told).
    With ``base`` the tables are of both, with their differences."""
    console = console or Console()
    found = results(folder, level=level, base=base)
    _results_table(found).show(console)
    caption = f"brackets: {level:.0%} bootstrap intervals over problems; ±: standard deviation over seeds"
    console.print(Text(caption, "dim"))
    _rates_table(found).show(console)
    both = compare([folder] if base is None else [base, folder], level, partial=True)
    if found.support:
        _change_table(both).show(console)
        support_table({found.run: found.support}, str(base)).show(console)
    print_notes(console, _run_notes(found))
    groups = dict(found.tasks) | ({AVERAGE: found.average} if found.average and len(found.average.tasks) > 1 else {})
    curves = {name: {Path(folder).resolve().name: t.pass_at} for name, t in groups.items() if t.pass_at}
    _write(console, Path(out or folder), {"results.json": found.to_json()}, both, curves)
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
    comparison_table(found).show(console)
    if len(found.rows) > 1:
        _change_table(found).show(console)
    console.print(Text(_about(found), style="dim"))
    print_notes(console, found.notes, _not_shown(found))
    if out is not None:
        groups = dict.fromkeys(g for g, _ in found.columns)
        curves = {g: {row.name: row.cells[g] for row in found.rows if g in row.cells} for g in groups}
        _write(console, Path(out), {"comparison.json": found.to_json()}, found, curves)
    return found


def _write(console: Console, folder: Path, texts: dict[str, str], c: Comparison, curves: Curves) -> None:
    table = comparison_table(c)
    table.notes = [_about(c), *c.notes, *_not_shown(c)]
    texts |= {"table.md": table.markdown(), "table.tex": table.latex()}
    if len(c.rows) > 1:
        change = _change_table(c)
        texts["table.md"] += f"\n{change.title}:\n\n{change.markdown()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
        about = f"pass@k against k, with {c.level:.0%} bands over problems"
        figure = pass_at_k_figure(curves, folder / "pass_at_k", about)
    except OSError as e:
        raise UserError(f"--out {folder}: cannot write there ({e.strerror}); name a folder you can write to.") from e
    written = [*(str(folder / name) for name in texts), *map(str, figure.files)]
    console.print(Text("written: " + ", ".join(written)), soft_wrap=True)


# ---- tables ------------------------------------------------------------------------------------------------------


def _results_table(r: Results) -> Table:
    table = Table(f"{r.run or r.folder} · {r.model}", ("task", "k", "pass@k", "over seeds", "majority@k"), [])
    parts: dict[str, TaskResult | Average] = dict(r.tasks)
    if r.average and len(r.average.tasks) > 1:
        parts[f"mean of {len(r.average.tasks)} tasks"] = r.average
    for name, t in parts.items():
        for i, (k, e) in enumerate(t.pass_at.items()):
            seeds = digits(e.seed_mean) + (f" ± {digits(e.seed_std)}" if e.seed_std is not None else "")
            vote = t.majority_at.get(k)
            majority = bracketed(vote.value, vote.low, vote.high) if vote else "–"
            table.rows.append(("" if i else name, str(k), bracketed(e.value, e.low, e.high), seeds, majority))
        if not t.pass_at:
            table.rows.append((name, "–", "–", "–", "–"))
        table.rows.append(None)
    return table


def _rates_table(r: Results) -> Table:
    columns = (
        "problems", "n × seeds", "answered", "truncated", "truncated,\nno answer", "errors", "tokens", "right\nanswers",
        "right\nsolutions",
    )  # fmt: skip
    table = Table("samples (the last two: different ones in n samples of a problem)", ("task", *columns), [])
    kinds = ("answered", "truncated", "truncated_without_answer", "errors")
    for name, t in r.tasks.items():
        shares = [f"{t.rates[kind]:.1%}" if kind in t.rates else "–" for kind in kinds]
        distinct = [f"{e.value:.2f}" if e else "–" for e in (t.distinct_answers, t.distinct_solutions)]
        tokens = f"{t.rates['tokens']:.0f}" if "tokens" in t.rates else "–"
        table.rows.append((name, str(t.problems), f"{t.n} × {len(t.seeds)}", *shares, tokens, *distinct))
    return table


def support_table(runs: Mapping[str, Mapping[str, SupportTask]], base: str) -> Table:
    title = f"solved in k samples by both (P), only by the run (E), only by {base} (S), by neither (O)"
    table = Table(title, ("run", "task", "k", "P", "E", "S", "O", "SRR", "NDR", "SDS", "NSCR"), [])
    for run, by_task in runs.items():
        for task, s in by_task.items():
            m = s.metrics
            ratios = (digits(x) for x in (m.SRR, m.NDR, m.SDS, m.NSCR))
            table.rows.append((run, task, *map(str, (s.budget, m.P, m.E, m.S, m.O)), *ratios))
    return table


def comparison_table(c: Comparison) -> Table:
    return _by_column(c, "", c.rows, _value)


def _change_table(c: Comparison) -> Table:
    return _by_column(c, f"paired differences from {c.rows[0].name}", c.rows[1:], _change)


def _by_column(c: Comparison, title: str, rows: Sequence[Row], tell: Callable[[Cell | None], str]) -> Table:
    cells = [[row.name, *(tell(row.cells.get(g, {}).get(k)) for g, k in c.columns)] for row in rows]
    return Table(title, ["run", *(f"{g} pass@{k}" for g, k in c.columns)], [*cells])


def _value(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    number, space, interval = bracketed(cell.value, cell.low, cell.high).partition(" ")
    return f"**{number}**{space}{interval}" if cell.bold else number + space + interval


def _change(cell: Cell | None) -> str:
    if cell is None or cell.minus_first is None:
        return "–"
    return "+" * (round(cell.minus_first[0], 3) > 0) + bracketed(*cell.minus_first)


# ---- notes -------------------------------------------------------------------------------------------------------


def _about(c: Comparison) -> str:
    """The caption: what the numbers and the brackets are."""
    sizes = ", ".join(f"{task} ({n} problems)" for task, n in c.problems.items())
    mean = f" {AVERAGE}: the mean of the task means ({', '.join(c.averaged)})." if len(c.averaged) > 1 else ""
    return (
        f"Unbiased pass@k on {sizes}; in brackets {c.level:.0%} bootstrap intervals over problems. Bold: the best, where its "
        f"paired interval against every other run excludes 0.{mean}"
    )


def _not_shown(c: Comparison) -> list[str]:
    """A sentence for each absent run; most reasons begin with its folder."""
    return [f"not shown: {why if why.startswith(f) else f'{f}: {why}'}" for f, why in c.absent.items()]


def _run_notes(r: Results) -> list[str]:
    out = list(r.notes)
    for name, t in r.tasks.items():
        if t.unverifiable:
            dropped = f"{len(t.unverifiable)} problems with an unverifiable gold dropped"
            out.append(f"{name}: {dropped} ({some(t.unverifiable)})")
        if t.incomplete:
            cells = [f"{g.problem} seed {g.seed}: {g.have} of {g.want}" for g in t.incomplete]
            out.append(f"{name}: {len(cells)} (problem, seed) cells are incomplete and not counted ({some(cells)})")
    return out


def print_notes(console: Console, notes: Sequence[str], absent: Sequence[str] = ()) -> None:
    for note in notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    for sentence in absent:
        console.print(Text(sentence, style="yellow"), soft_wrap=True)
