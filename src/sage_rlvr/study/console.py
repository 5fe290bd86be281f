"""What ``sage-rlvr study`` prints: a live table while it runs, the study's own table after."""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from sage_rlvr.errors import UserError
from sage_rlvr.grid import Grid
from sage_rlvr.models import write_whole
from sage_rlvr.report.page import build_report
from sage_rlvr.show.figures_study import draw_distance, draw_frontier
from sage_rlvr.stats.distance import excesses
from sage_rlvr.stats.frontier import frontiers
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.stats.matched import matched
from sage_rlvr.stats.table import as_json, as_markdown, cells, columns, shown
from sage_rlvr.study.plan import Study, load_study, read_folder
from sage_rlvr.study.read import Finished, finished, read_planes, read_runs, read_standings, study_rows
from sage_rlvr.study.run import LOG, finished_runs, run_study, share_done, status_of

COLOURS = {"done": "green", "running": "cyan", "failed": "bold red", "interrupted": "yellow", "waiting": "dim"}


def run(source: str | Path, out: str | Path | None, jobs: int | None, table: bool = True, engine: str = "trl") -> bool:
    """Runs the study with a live table and shows its own ``table`` after; True if every run is done."""
    start: Callable[..., tuple[Study, list[str]]] = partial(run_study, engine=engine)
    if engine == "stacked":
        from sage_rlvr.study.stacked import run_stacked as start
    folder = Path(out or f"runs/{load_study(source).name}")
    console = wide_console()
    clock = Clock()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2) as live:
            _, failed = start(source, folder, jobs, lambda s, o: live.update(_live(s, o, clock)))
    else:
        said: dict[str, str] = {}
        _, failed = start(source, folder, jobs, lambda s, o: _say_changes(console, s, o, said, clock))
    for name in failed:
        error = status_of(folder, name).get("error", "it ended without a message")
        console.print(
            f"[bold red]{name} failed[/]: {error} (see {folder / name / LOG}; run the study again to retry)",
            soft_wrap=True,
        )
    if table:
        show_table(folder, console)
    return not failed


def wide_console() -> Console:
    """A terminal as wide as it is; a log file has room for the table."""
    return Console() if Console().is_terminal or "COLUMNS" in os.environ else Console(width=180)


class Clock:
    """Time left, from how fast the share of the work that is done has grown since the first look."""

    def __init__(self) -> None:
        self.first: tuple[float, float] | None = None  # when we looked first, and the share then

    def left(self, share: float) -> str:
        now = time.monotonic()
        self.first = self.first or (now, share)
        passed, gained = now - self.first[0], share - self.first[1]
        if gained <= 0:
            return ""
        seconds = round(passed * (1 - share) / gained)
        return f"about {seconds // 60}:{seconds % 60:02d} left"


def _live(study: Study, out: Path, clock: Clock) -> Group:
    share = share_done(study, out)
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=1.0, completed=share, width=40), f"{share:.0%}", clock.left(share))
    return Group(status_table(study, out), line)


def _say_changes(console: Console, study: Study, out: Path, said: dict[str, str], clock: Clock) -> None:
    """What a log file gets: a line for each change, and one for every tenth of the work."""
    share = share_done(study, out)
    news = {name: _state(status_of(out, name)) for name in study.runs()} | {"all": f"{int(share * 10) * 10}%"}
    for name, now in news.items():
        if now and said.get(name) != now:
            said[name] = now
            left = f", {clock.left(share)}" if name == "all" and clock.left(share) else ""
            console.print(f"{time.strftime('%H:%M:%S')}  {name}: {now}{left}", soft_wrap=True, highlight=False)


def _state(status: dict[str, Any]) -> str:
    return "" if status["state"] == "waiting" else f"{status['state']} {status['stage']}".strip()


def status_table(study: Study, out: Path) -> Table:
    states = {name: status_of(out, name) for name in study.runs()}
    done = sum(s["state"] == "done" for s in states.values())
    table = Table(title=f"study {study.name}: {done} of {len(states)} runs done")
    for column in ("run", "state", "step", "reward", "kl", "entropy"):
        table.add_column(
            column, justify="left" if column in ("run", "state") else "right", overflow="fold", no_wrap=column != "run"
        )
    for name, s in states.items():
        colour = COLOURS[s["state"]]
        numbers = [f"{s[k]:.3g}" if isinstance(s.get(k), int | float) else "" for k in ("reward", "kl", "entropy")]
        total = study.settings_of(name).get("max_steps", "") if name != "base" else ""
        step = f"{s['step']}/{total}" if s.get("step") else ""
        table.add_row(name, f"[{colour}]{s['state']} {s['stage'] if s['state'] != 'done' else ''}[/]", step, *numbers)
    return table


def show_status(out: str) -> None:
    """The table as it stands; on a terminal it lives on while runs do (Ctrl-C leaves it, not them)."""
    study, folder, console = read_folder(out), Path(out), Console()
    clock = Clock()
    with Live(_live(study, folder, clock), console=console, refresh_per_second=1) as live:
        while console.is_terminal and any(status_of(folder, run)["state"] == "running" for run in study.runs()):
            time.sleep(1)
            live.update(_live(study, folder, clock))


def make_report(out: str | Path, to: str | None = None, show: bool = False) -> Path:
    """The page over the study's finished runs and their trainings; the base is what the others are held against."""
    out = Path(out)
    done = finished_runs(out)
    if not done:
        raise UserError(f"{out}: no run of this study is finished yet; see 'sage-rlvr study status {out}'.")
    return build_report(out, to or out / "report.html", base="base/eval" if "base" in done else None, show=show)


def show_table(out: str | Path, console: Console | None = None, reference: str | None = None) -> None:
    """A table for each task, all of them also as table.md and table.json in the study's folder, and what each variant has more
    than ``reference`` (else the base, where it is done), on each task and on their mean (against.json)."""
    console, out = console or wide_console(), Path(out)
    done = finished(out)
    rows, name = study_rows(done), done.study.name
    for task in dict.fromkeys(r.task for r in rows):
        own = [r for r in rows if r.task == task]
        ks = sorted({k for r in own for k in r.pass_at})
        title = f"{name} on {task}: {own[0].problems} problems, {ks[-1]} samples each"
        _print(console, title, columns(ks)[1:], [cells(row, ks)[1:] for row in own])
    console.print(
        "means over seeds, 95% intervals over problems and, where there are several, seeds; lost, gained: problems solved by the "
        "base only, by the trained model only; tokens: of a sample; truncated: samples that reached max_tokens.",
        highlight=False,
    )
    write_whole(out / "table.md", as_markdown(rows))
    write_whole(out / "table.json", as_json(rows))
    console.print(f"written: {out / 'table.md'}, {out / 'table.json'}", soft_wrap=True)
    if reference is not None or {"base"} < {r.variant for r in rows}:
        _show_against(console, done, reference or "base")


def _show_against(console: Console, done: Finished, reference: str) -> None:
    found, out = read_standings(done), done.out
    less = found.less(reference)
    for task in found.tasks:
        title = f"each variant minus {reference} on {task}: paired differences, 95% intervals"
        head = ("variant", "seeds", "pass@1", f"pass@{found.n}", "verdict")
        here = [x for x in less if x.task == task]
        body = [(x.variant, str(x.seeds), _signed(x.pass_1), _signed(x.pass_n), x.verdict()) for x in here]
        _print(console, title, head, body)
    write_whole(out / "against.json", as_json(less))
    console.print(f"written: {out / 'against.json'}", soft_wrap=True)


def show_frontier(out: str | Path, reference: str | None = None, task: str | None = None) -> None:
    """The families' frontiers against one of them, each point against that one's, and all at the same distance from the
    reference policy, as tables, JSON and figures in the study's folder: frontier.*, or frontier-TASK.* for a task that is not
    the study's first."""
    out, console = Path(out), Console()
    done = finished(out)
    first = done.study.evaluate["tasks"][0]
    task = task or first
    planes = read_planes(done, task)
    families = planes.families()
    against = reference or next(iter(families))
    found, points = frontiers(families, against), matched(families, against)
    by = f", mean of {len(planes.strata)} strata of problems" * bool(planes.strata)
    title = f"{task}: mean height of each frontier, pass@{planes.k} over pass@1, where it and {against}'s both are{by}"
    head = ["family", "points", "on the frontier", "height", f"gain over {against}"]
    body = [(f.family, str(len(f.points)), ", ".join(f.on_it), _signed(f.height), _signed(f.gain)) for f in found]
    _print(console, title, head, body)
    title = f"{task}: each point's pass@{planes.k} minus {against}'s frontier at the same pass@1{by}"
    head = ["variant", "seeds", "pass@1", f"pass@{planes.k}", "gain"]
    _print(
        console, title, head, [(p.variant, str(p.seeds), *map(_signed, (p.pass_1, p.pass_n, p.gain))) for p in points]
    )
    stem = out / ("frontier" if task == first else f"frontier-{task}")
    draw_frontier(stem, points, found, against, planes.k, planes.start)
    write_whole(Path(f"{stem}.json"), as_json(found))
    told = {"task": task, "reference": against, "n": planes.k, "base": planes.start, "points": points}
    write_whole(Path(f"{stem}_points.json"), as_json(told))
    console.print(f"written: {stem}.json, {stem}_points.json, {stem}.svg, {stem}.png", soft_wrap=True)
    _show_distance(console, done, task, against, Path(f"{stem}_distance"))


def _show_distance(console: Console, done: Finished, task: str, against: str, stem: Path) -> None:
    runs = read_runs(done, task)
    found = excesses(runs, [against])
    if not found:
        console.print(f"{against} has too few runs that log kl_ref for a curve over KL: no table at the same distance.")
        return
    title = f"{task}: pass@k minus that of {against}'s curve at the same KL to the reference policy"
    head = ["family", "runs", *(f"pass@{k}" for k in found[0].above)]
    _print(console, title, head, [(f.family, str(f.runs), *map(_signed, f.above.values())) for f in found])
    draw_distance(stem, runs, [against], found)
    write_whole(stem.with_suffix(".json"), as_json(found))
    console.print(f"written: {stem}.json, {stem}.svg, {stem}.png", soft_wrap=True)


def _print(console: Console, title: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    table = Grid(title, head, left=("verdict", "on the frontier"))
    for row in body:
        table.add(*row)
    table.show(console)


def _signed(x: Interval | None) -> str:
    return shown(x, sign="+")
