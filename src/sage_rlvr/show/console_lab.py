"""``sage-rlvr lab``: the table of estimators, the checks of the theory, a figure, and the same as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

from sage_rlvr.errors import UserError
from sage_rlvr.grid import Grid
from sage_rlvr.lab import solutions, theory
from sage_rlvr.lab.descent import Arm, train
from sage_rlvr.lab.playground import playground
from sage_rlvr.lab.world import random_world
from sage_rlvr.show import figures_lab as figures

ROWS = {  # label → (estimator, credit, the expected gradient of the token-level term)
    "k3": ("k3", "sequence", "forward KL, prefix by prefix: −E_{q·π_ref}[∇log π]"),
    "k2": ("k2", "sequence", "reverse KL, token by token, no credit to earlier tokens"),
    "k3+": ("k3+", "sequence", "the same as k2"),
    "forward": ("forward", "sequence", "the same as k3"),
    "forward-value": ("forward-value", "sequence", "neither KL: that of ½E_{q·π_ref}[log²w], w = q·π_ref/π"),
    "k1-reward": ("k1-reward", "sequence", "exact: that of Eq. 6"),
    "k1-reward, to_go": ("k1-reward", "to_go", "exact where q_t depends on the past alone"),
}
STEPS = 600


@dataclass(frozen=True)
class Distances:
    """Total variation to each guide's own target, and how far the guide moves that target from Eq. 2."""

    final: dict[str, dict[str, float]]  # [row][guide]
    moved: dict[str, float]  # [guide]
    inert: dict[str, dict[str, float]]  # [row][guide]: distance between this guide's end and no guide's


def distances(seed: int = 0, steps: int | None = None, progress: Progress | None = None) -> Distances:
    steps = steps or STEPS
    world = random_world(seed)
    log_q = theory.held_log_q(world)
    arms = [Arm(e, q, credit, f"{row}|{g}") for row, (e, credit, _) in ROWS.items() for g, q in log_q.items()]
    target = {g: solutions.sage(world, theory.BETA, q) for g, q in log_q.items()}
    progress = progress or Progress(disable=True)
    bar = progress.add_task("descent under every estimator", total=steps)
    ended = train(world, arms, theory.BETA, steps=steps, watch=lambda step, _: progress.update(bar, completed=step))
    ends = dict(zip([a.label for a in arms], world.probs(ended)))

    def far(p: Tensor, q: Tensor) -> float:
        return float(solutions.total_variation(p, q))

    return Distances(
        final={r: {g: far(ends[f"{r}|{g}"], target[g]) for g in log_q} for r in ROWS},
        moved={g: far(target[g], target["none"]) for g in log_q},
        inert={r: {g: far(ends[f"{r}|{g}"], ends[f"{r}|none"]) for g in log_q} for r in ROWS},
    )


def _estimator_table(d: Distances) -> Grid:
    title = "Total variation between where descent ends and the solution it is supposed to reach"
    table = Grid(title, ("estimator", *("no guide" if g == "none" else g for g in d.moved)))
    for row in ROWS:
        table.add(row, *(Text(f"{x:.4f}", "bold" if x < 1e-3 else "") for x in d.final[row].values()))
    table.section()
    table.add("guide moves target by", *(f"{x:.4f}" for x in d.moved.values()))
    table.add("k3+: guide against none", *(f"{x:.0e}" for x in d.inert["k3+"].values()))
    return table


def show(out: str, seed: int = 0) -> bool:
    """Runs everything, prints it and writes ``out``; True if every check holds."""
    console, folder = Console(), Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"--out {out}: cannot make the folder ({e.strerror}); name one you can write to.") from e
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        d = distances(seed, progress=progress)
        bar = progress.add_task("checking the theory", total=12)
        results = []
        for check in theory.checks(seed):
            results.append(check)
            progress.advance(bar)
    _estimator_table(d).show(console)
    targets = "Targets: Eq. 2 with no guide, Eq. 4 with one."
    console.print(f"{targets} Expected gradient of each estimator's token-level term:")
    for row, (_, _, gradient) in ROWS.items():
        console.print(f"  {row:<17} {escape(gradient)}")
    table = Table("holds", "statement", "measured", title="The theory, both sides computed")
    for check in results:
        holds = "[green]yes[/]" if check.holds else "[bold red]NO[/]"
        table.add_row(holds, escape(check.statement), escape(check.measured))
    console.print(table)
    drawn = figures.distance_figure(d.final, folder / "estimators.svg")
    record = {"seed": seed, "beta": theory.BETA, "steps": STEPS, "distances": d.final, "guide_moves_target": d.moved}
    record |= {"guide_against_none": d.inert, "checks": [asdict(c) for c in results]}
    (folder / "lab.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    (folder / "playground.html").write_text(playground(), encoding="utf-8")
    written = [*drawn.files, folder / "lab.json", folder / "playground.html"]
    console.print("written: " + ", ".join(map(str, written)), soft_wrap=True)
    return all(c.holds for c in results)
