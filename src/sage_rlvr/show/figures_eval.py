"""pass@k over k, with bands: one panel a task, one line a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from sage_rlvr.show.style import Figure, legend, line, log_scale, panels, save


class Point(Protocol):
    """What a curve is made of: an Estimate, or a comparison's Cell."""

    value: float
    low: Any
    high: Any


def pass_at_k_figure(
    curves: Mapping[str, Mapping[str, Mapping[int, Point]]], path: str | Path, level: float = 0.95
) -> Figure:
    """``curves[run][panel][k]``. Panels appear in the order in which runs name them; a run may lack some."""
    names = list(dict.fromkeys(p for run in curves.values() for p in run))
    across = min(2, len(names))
    with panels(across, -(-len(names) // across)) as (figure, grid):
        for ax, panel in zip(grid.flat, names):
            for i, (run, by_panel) in enumerate(curves.items()):
                if by_panel.get(panel):
                    _draw(ax, run, by_panel[panel], line(i))
            ks = sorted({k for run in curves.values() for k in run.get(panel, {})})
            ax.set_xscale("log", base=2)
            log_scale(ax.xaxis, ks[:: -(-len(ks) // 9)])
            ax.set(title=panel, xlabel="k (samples per problem)")
        for ax in grid.flat[len(names) :]:
            ax.set_visible(False)
        for ax in grid[:, 0]:
            ax.set_ylabel("pass@k")
        legend(figure, grid)
        return save(figure, path, describe(curves, level))


def _draw(ax: Any, run: str, points: Mapping[int, Point], style: dict[str, Any]) -> None:
    ks = sorted(points)
    ax.plot(ks, [points[k].value for k in ks], label=run, **style)
    banded = [k for k in ks if points[k].low is not None and points[k].low == points[k].low]
    low, high = [points[k].low for k in banded], [points[k].high for k in banded]
    ax.fill_between(banded, low, high, color=style["color"], alpha=0.12, lw=0)


def describe(curves: Mapping[str, Mapping[str, Mapping[int, Point]]], level: float) -> str:
    """The picture in words: each run's ends in each panel."""
    said = []
    for panel in dict.fromkeys(p for run in curves.values() for p in run):
        ends = []
        for run, by_panel in curves.items():
            if points := by_panel.get(panel):
                a, b = min(points), max(points)
                ends.append(f"{run} from {points[a].value:.3f} at k={a} to {points[b].value:.3f} at k={b}")
        said.append(f"{panel}: " + ", ".join(ends))
    return f"pass@k against k on a log scale, with {level:.0%} bands over problems. " + ". ".join(said) + "."
