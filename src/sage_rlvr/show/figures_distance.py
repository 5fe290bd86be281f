"""pass@1 and pass@n over the distance from the reference: what lies on a grey curve is another β."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from sage_rlvr.show.figures_frontier import GREY
from sage_rlvr.show.style import Figure, legend, line, panels, save
from sage_rlvr.stats.distance import Excess, Run, curve_at


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
                kls = [run.kl for run in own[reference]]
                grid = np.linspace(min(kls), max(kls), 100)
                ax.plot(*zip(*(_mean([run], k) for run in own[reference])), ".", color=GREY, ms=3)
                ax.plot(
                    grid, curve_at(own[reference], k, grid), dashes, color=GREY, lw=1.2, label=f"{reference}, each run"
                )
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
