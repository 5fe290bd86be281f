"""Why arms of the harder miniature lie so close together: what training did to each problem's log-odds (shifts.py), as a table
and a figure for docs/evidence/why.md."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from room import CONTROL, GRPO
from shifts import Shift, before, even, shift

from sage_rlvr.show.figures_study import GREY
from sage_rlvr.show.style import INK, Figure, legend, panels, save
from sage_rlvr.stats.counts import TaskCounts
from sage_rlvr.stats.frontier import Planes, in_order
from sage_rlvr.stats.table import markdown

ARMS = {  # of studies/hard.yaml: arm → its name in the table
    "base": "the base, a second sample",
    f"{GRPO}+beta0.8": "GRPO, β .8",
    f"{GRPO}+beta0.05": "GRPO, β .05",
    f"{GRPO}+beta0.012": "GRPO, β .012",
    "grpo_no_kl": "GRPO without KL",
    f"{CONTROL}+beta0.003": "GRPO, a third of the rate, β .003",
    "maxrl+beta0.012": "`maxrl`, β .012",
    "branch_k3+beta0.012": "Branch, β .012",
}
EVEN = np.linspace(0.0, 1.1, 45)
FIGURE = "even.svg"
VISITS = {"again": "6,000, each seen again and again", "once": "38,400, each seen once"}


@dataclass(frozen=True)
class Row:
    arm: str
    passes: tuple[float, float]  # pass@1 and pass@k of the primary measure
    room: Shift  # over the problems of all strata
    strata: list[float]  # the mean shift in each


def facts(planes: Planes, probe: TaskCounts, base: TaskCounts) -> dict[str, Any]:
    """Of a search with strata; ``probe`` and ``base``, the base's own evaluation, on the planes' problems."""
    posterior, families = before(probe), planes.families()
    points = {p.variant: p.mean for own in families.values() for p in own}
    runs = {variant: own for arms in planes.runs.values() for variant, own in arms.items()} | {"base": [base]}
    if planes.start is not None:
        points["base"] = planes.start
    room = np.concatenate(planes.strata)
    rows = [
        Row(
            arm,
            points[arm],
            shift(posterior, runs[arm], room),
            [shift(posterior, runs[arm], own).mean for own in planes.strata],
        )
        for arm in ARMS
        if arm in points
    ]
    over_all = planes.families(planes.k)  # over all problems, as the gate measures
    line = [p.mean for p in over_all[GRPO]]
    best = {p.variant: p.mean for p in over_all.get("maxrl", [])}
    return {"shifts": rows, "even": even(posterior, planes.strata, EVEN, planes.k), "line": line, "best": best}


def table(hard: dict[str, Any], names: list[str]) -> str:
    """``names``: of the strata."""
    head = ["arm", "pass@1", f"pass@{hard['n']}", *names, "spread", "repeated"]
    body = []
    for row in hard["shifts"]:
        cells = [f"{x:.3f}" for x in row.passes] + [f"{x:+.1f}" for x in row.strata] + [f"{row.room.spread:.1f}"]
        body.append([ARMS[row.arm], *cells, "–" if row.room.again is None else f"{row.room.again:.0%}"])
    return markdown(head, body)


def gate_table(hard: dict[str, Any], gate: dict[str, Any]) -> str:
    """Over all test problems: cells of the gate from the study's base at the study's length, without a KL, one seed. The
    search's best arm is counted alike, below them."""
    taken, (x, y), n = gate["cell"], np.array(sorted(hard["line"])).T, hard["n"]
    rows = [
        (VISITS[cell["pool"]], f"{cell['rate']:g}", cell["pass@1"], cell[f"pass@{n}"])
        for cell in gate["cells"]
        if (cell["base"], cell["steps"]) == (taken["base"], taken["steps"])
    ]
    rows += [(f"the search's {ARMS[arm]}", "1.5e-4", *hard["best"][arm]) for arm in ARMS if arm in hard["best"]]
    body = []
    for problems, rate, one, many in rows:
        beside = float(np.interp(one, x, y)) if x[0] <= one <= x[-1] else None
        cells = ["–"] * 2 if beside is None else [f"{beside:.3f}", f"{many - beside:+.3f}"]
        body.append([problems, rate, f"{one:.3f}", f"{many:.3f}", *cells])
    head = ["problems", "rate", "pass@1", f"pass@{n}", "GRPO's curve", "difference"]
    return markdown(head, body)


def even_at(hard: dict[str, Any], arm: str) -> tuple[float, float, float]:
    """An arm's pass@1 and pass@k, and the pass@k that an even shift has at this pass@1."""
    one, many = next(row.passes for row in hard["shifts"] if row.arm == arm)
    x, y = np.array(hard["even"]).T
    return one, many, float(np.interp(one, x, y))


def figure(stem: Path, hard: dict[str, Any]) -> Figure | None:
    """pass@k against pass@1: GRPO over β, the best advantage, and what an even shift would give."""
    if "shifts" not in hard:
        return None
    with panels(1, width=6.4, height=3.6) as (drawn, axes):
        ax = axes[0, 0]
        ax.plot(*np.array(hard["even"]).T, color=INK[1], ls="-", label="every problem lifted alike")
        for family, colour, mark, name in (
            (GRPO, GREY, "o", "GRPO (k3), over β"),
            ("maxrl", INK[0], "s", "maxrl, over β"),
        ):
            own = in_order([p for p in hard["points"].values() if p.family == family])
            x, y = ([getattr(p, which).mean for p in own] for which in ("pass_1", "pass_n"))
            ax.plot(x, y, color=colour, marker=mark, ms=4, label=name)
        ax.plot(*hard["base"], "*", color="black", ms=10, ls="none", label="base")
        ax.set_xlabel("pass@1")
        ax.set_ylabel(f"pass@{hard['n']}")
        legend(drawn, axes)
        one, many, level = even_at(hard, f"{GRPO}+beta0.012")
        told = (
            f"pass@{hard['n']} against pass@1 on the harder miniature. GRPO at β .012: {one:.3f} and {many:.2f}. Had every "
            f"problem's log-odds risen alike: {level:.2f} at the same pass@1."
        )
        return save(drawn, stem.with_name(FIGURE), told)
