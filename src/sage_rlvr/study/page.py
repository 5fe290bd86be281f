"""What ``sage-rlvr study`` prints: a live table while it runs, the study's own table after."""

import json
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from sage_rlvr.models import write_whole
from sage_rlvr.study.plan import Study, load_study, read_folder
from sage_rlvr.study.run import LOG, run_study, status_of
from sage_rlvr.study.table import as_json, as_markdown, cells, study_rows

COLOURS = {"done": "green", "running": "cyan", "failed": "bold red", "interrupted": "yellow", "waiting": "dim"}


def run(source: str, out: str | None, jobs: int | None) -> bool:
    """Runs the study with a live table; True if every run is done."""
    folder = Path(out or f"runs/{load_study(source).name}")
    console = Console()
    began = time.monotonic()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2) as live:
            _, failed = run_study(source, folder, jobs, lambda s, o: live.update(status_table(s, o, began)))
    else:
        said: dict[str, str] = {}
        _, failed = run_study(source, folder, jobs, lambda s, o: _say_changes(console, s, o, said))
    for name in failed:
        error = status_of(folder, name).get("error", "it ended without a word")
        console.print(
            f"[bold red]{name} failed[/]: {error} (see {folder / name / LOG}; run the study again to retry)",
            soft_wrap=True,
        )
    show_table(folder, console)
    return not failed


def _say_changes(console: Console, study: Study, out: Path, said: dict[str, str]) -> None:
    for name in study.runs():
        status = status_of(out, name)
        now = f"{status['state']} {status['stage']}".strip()
        if said.get(name) != now and status["state"] != "waiting":
            said[name] = now
            console.print(f"{time.strftime('%H:%M:%S')}  {name}: {now}", soft_wrap=True, highlight=False)


def status_table(study: Study, out: Path, began: float | None = None) -> Table:
    states = {name: status_of(out, name) for name in study.runs()}
    done = sum(s["state"] == "done" for s in states.values())
    title = f"study {study.name}: {done} of {len(states)} runs done"
    if began is not None and done:
        title += f", {time.monotonic() - began:.0f} s"
    table = Table(title=title)
    for column in ("run", "state", "step", "reward", "kl", "entropy"):
        table.add_column(column, justify="left" if column in ("run", "state") else "right")
    for name, s in states.items():
        colour = COLOURS[s["state"]]
        numbers = [f"{s[k]:.3g}" if isinstance(s.get(k), int | float) else "" for k in ("reward", "kl", "entropy")]
        total = study.settings_of(name).get("max_steps", "") if name != "base" else ""
        step = f"{s['step']}/{total}" if s.get("step") else ""
        table.add_row(name, f"[{colour}]{s['state']} {s['stage'] if s['state'] != 'done' else ''}[/]", step, *numbers)
    return table


def show_status(out: str) -> None:
    Console().print(status_table(read_folder(out), Path(out)))


def show_table(out: str | Path, console: Console | None = None) -> None:
    """The table, also as table.md and table.json in the study's folder."""
    console, out = console or Console(), Path(out)
    rows = study_rows(out)
    ks = sorted({k for r in rows for k in r.pass_at})
    table = Table(title=f"{read_folder(out).name}: 95% bootstrap intervals over problems, means over seeds")
    for column in ["task", "variant", "seeds", *(f"pass@{k}" for k in ks), "distinct right", "lost", "gained"]:
        table.add_column(column, justify="left" if column in ("task", "variant") else "right")
    for row in rows:
        table.add_row(*cells(row, ks))
    console.print(table)
    n = ks[-1] if ks else 0
    console.print(
        f"lost, gained: problems solved in {n} samples by the base only, by the trained model only.", highlight=False
    )
    write_whole(out / "table.md", as_markdown(rows))
    write_whole(out / "table.json", json.dumps(as_json(rows), indent=1) + "\n")
    console.print(f"written: {out / 'table.md'}, {out / 'table.json'}", soft_wrap=True)
