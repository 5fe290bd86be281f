"""A study's figures: frontiers (a panel for each swept family beside the reference, one for the arms with a single setting),
pass@1 and pass@n over the distance from the reference (what lies on a grey curve is another β), and what was logged."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

from sage_rlvr.show.style import INK, Figure, legend, line, panels, panels_for, save
from sage_rlvr.stats.distance import Excess, Run, curve_at
from sage_rlvr.stats.frontier import Frontier, in_order, setting
from sage_rlvr.stats.matched import Matched

GREY = "#8a8a8a"
GUESS = "#a83250"


def draw_frontier(
    path: str | Path,
    points: Sequence[Matched],
    found: Sequence[Frontier],
    reference: str,
    n: int,
    base: tuple[float, float] | None = None,
    guess: float | None = None,
) -> Figure:
    """pass@1 across, pass@n up, 95% intervals over problems and seeds; ``base`` is (pass@1, pass@n) before RL, ``guess`` the
    pass@n of drawing valid answers at random."""
    families = {f: [p for p in points if p.family == f] for f in dict.fromkeys(p.family for p in points)}
    swept = [f for f, own in families.items() if len(own) > 1 and f != reference]
    single = [p for own in families.values() if len(own) == 1 for p in own if p.family != reference]
    titles: list[str | None] = [*swept, *([None] if single or not swept else [])]
    with panels_for(titles, sharex=True, sharey=True) as (figure, axes):
        for ax, family in zip(axes.flat, titles):
            _family(ax, families[reference], GREY, "o", (-3, -8), reference)
            if family is not None:
                _family(ax, families[family], INK[1], "s", (3, 3), "the panel's own")
            else:
                for i, p in enumerate(single):
                    _cross(ax, [p], {k: v for k, v in line(i + 2).items() if k not in ("ls", "lw")}, p.variant)
            if base is not None:
                ax.plot(*base, "*", color="black", ms=9, ls="none", label="base")
            ax.set_title(family or "one setting each")
        if guess is not None:
            for ax in axes.flat[: len(titles)]:  # after all points: it asks for the limits, which the panels share
                ax.axhline(guess, color=GUESS, ls=":", lw=1, label="guessing")
        for ax in axes[-1]:
            ax.set_xlabel("pass@1")
        for ax in axes[:, 0]:
            ax.set_ylabel(f"pass@{n}")
        legend(figure, axes)
        return save(figure, path, _said(found, reference, n, guess))


def _family(
    ax: Any, points: Sequence[Matched], colour: str, marker: str, beside: tuple[float, float], label: str
) -> None:
    """Its points with their settings, and the line through them in that order."""
    _cross(ax, points, {"color": colour, "marker": marker, "ms": 3.5}, label)
    ax.plot(*zip(*((p.pass_1.mean, p.pass_n.mean) for p in in_order(points))), color=colour, lw=1.4)
    for p in points:
        swept = (setting(p.variant) or "").lstrip(ascii_lowercase + "_.")  # grpo+beta0.05 → 0.05
        ax.annotate(swept, (p.pass_1.mean, p.pass_n.mean), beside, textcoords="offset points",
                    annotation_clip=False, ha="left" if beside[0] > 0 else "right", fontsize=6, color=colour)  # fmt: skip


def _cross(ax: Any, points: Sequence[Matched], style: dict[str, Any], label: str) -> None:
    def spread(which: str) -> tuple[list[float], np.ndarray]:
        found = [getattr(p, which) for p in points]
        sides = [[max(i.mean - i.low, 0.0) for i in found], [max(i.high - i.mean, 0.0) for i in found]]
        return [i.mean for i in found], np.array(sides)

    (x, across), (y, up) = spread("pass_1"), spread("pass_n")
    ax.errorbar(x, y, up, across, ls="none", elinewidth=0.7, label=label, **style)


def _said(found: Sequence[Frontier], reference: str, n: int, guess: float | None) -> str:
    told = [f"{f.family} {f.gain.mean:+.3f} [{f.gain.low:+.3f}, {f.gain.high:+.3f}]" for f in found if f.gain]
    gains = "; ".join(told) or "none shares a range of pass@1 with it"
    line = "" if guess is None else f" Guessing (valid answers drawn at random) has pass@{n} {guess:.3f}."
    return f"pass@{n} against pass@1 over each sweep, 95% intervals. Mean gain over {reference}: {gains}.{line}"


def draw_distance(path: str | Path, runs: Sequence[Run], references: Sequence[str], found: Sequence[Excess]) -> Figure:
    """A point an arm, the mean of its seeds; families with one setting are in the table alone."""
    arms: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        arms.setdefault(run.family, {}).setdefault(run.variant, []).append(run)
    others = [family for family, own in arms.items() if family not in references and len(own) > 1]
    own = {r: [run for run in runs if run.family == r] for r in references}
    n = max(runs[0].passes)
    with panels(2, width=5.6, height=4.2) as (figure, axes):
        for ax, k in zip(axes.flat, (1, n)):
            for reference, dashes in zip(references, cycle(("-", "--", ":"))):
                points = [_mean([run], k) for run in own[reference]]
                grid = np.linspace(min(points)[0], max(points)[0], 100)
                ax.plot(*zip(*points), ".", color=GREY, ms=3)
                line_style = {"color": GREY, "lw": 1.2, "label": f"{reference}, each run"}
                ax.plot(grid, curve_at(own[reference], k, grid), dashes, **line_style)
            for i, family in enumerate(others):
                at = zip(*(_mean(arm, k) for arm in arms[family].values()))
                ax.plot(*at, label=family, **(line(i) | {"ls": "none"}))
            ax.set_xlabel("KL to the plain reference, nats per token")
            ax.set_title(f"pass@{k}")
        legend(figure, axes)
        told = "; ".join(f"{f.family} {f.above[n].mean:+.3f}" for f in found)
        about = f"pass@1 and pass@{n} over KL. Mean height of pass@{n} above the curve it is held to: {told}."
        return save(figure, path, about)


def _mean(runs: Sequence[Run], k: int) -> tuple[float, float]:
    """(KL, pass@k)"""
    return float(np.mean([r.kl for r in runs])), float(np.mean([r.passes[k] for r in runs]))
