"""What ``sage-rlvr tasks`` prints: the list, problems as the model will see them, and what decontamination finds."""

from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sage_rlvr.errors import UserError
from sage_rlvr.tasks.decontaminate import decontaminate, evaluation_problems
from sage_rlvr.tasks.loading import read_task
from sage_rlvr.tasks.prompts import get_format, render
from sage_rlvr.tasks.registry import TASKS, get_task
from sage_rlvr.tasks.trivial import warning


def show_list(console: Console | None = None) -> None:
    """Every registered task, a line each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("task", "kind", "problems", "what it is"):
        table.add_column(column, no_wrap=column != "what it is", justify="right" if column == "problems" else "left")
    for task in TASKS.values():
        count = task.count()
        size = "any" if task.generate else f"{count:,}" if count else "–"
        table.add_row(task.name, task.kind, size, _about(task.description, task.hub, task.licence))
    gym = _about("any of its generators (gym:NAME+code: those it evaluates)", "reasoning-gym (extra gym)", "Apache-2.0")
    table.add_row("gym:NAME", "generated", "any", gym)
    console = console or Console()
    console.print(table)
    console.print(Text("'sage-rlvr tasks show amc23 3' prints three as the model will see them.", style="dim"))


def _about(description: str, source: str, licence: str) -> Text:
    return Text.assemble(description, ("\n" + source + " · " + licence, "dim"))


def show_problems(
    name: str,
    n: int = 1,
    format: str = "paper",
    data_dir: str | Path | None = None,
    split: str | None = None,
    console: Console | None = None,
) -> None:
    """The first n problems of a task: the prompt, where generation begins and stops, and the gold."""
    if n < 1:
        raise UserError(f"tasks show: {n} problems were asked for; ask for at least 1.")
    fmt, task = get_format(format), get_task(name)
    loaded = read_task(name, data_dir, n, split=split)
    console = console or Console()
    for problem in loaded.problems:
        console.print(Rule(Text(problem.id), align="left"))
        console.print(Text(render(problem, fmt)))
        console.print(Text(f"gold: {problem.answer}", style="green"))
    stops = " or ".join(fmt.stop) or "the end-of-sequence token"
    source = ", ".join(dict.fromkeys(loaded.origin))
    console.print(Rule(style="dim"))
    for line in (
        f"{name} from {source} · format {fmt.name} · stops at {stops} · scorer {task.scorer}",
        "Shown without a tokenizer: a model's chat template puts its own marks around the turns.",
    ):
        console.print(Text(line, style="dim"))
    for note in [*loaded.notes, *filter(None, [warning(name)])]:
        console.print(Text(note, style="yellow"))


def show_decontamination(
    name: str, data_dir: str | Path | None = None, pairs: bool = False, console: Console | None = None
) -> None:
    """What training on a task would drop; with ``pairs``, each pair."""
    train = read_task(name, data_dir, split="train").problems
    against, missing = evaluation_problems(data_dir)
    report = decontaminate(train, against, missing=missing)
    console = console or Console()
    console.print(Text(report.summary()))
    if pairs:
        console.print(Text(report.listing()))
