"""pass@k over k, with bands: a panel a task, a line a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from sage_rlvr.show.style import PAPER, Figure, legend, line, log_scale, panels_for, save


class Point(Protocol):
    """What a curve is made of: an Estimate, or a comparison's Cell."""

    value: float
    low: Any
    high: Any


Curve = Mapping[int, Point]
Curves = Mapping[str, Mapping[str, Curve]]  # panel → run → k → its point; a panel may lack some runs


def pass_at_k_figure(
    curves: Curves, path: str | Path, about: str, facts: Mapping[str, Mapping[str, Mapping[int, float]]] = {}
) -> Figure:
    """``facts[panel][row][k]``: the paper's values, drawn hollow and never joined. ``about``: what the picture is, in words."""
    titles = list(dict.fromkeys([*facts, *curves]))
    runs = list(dict.fromkeys(run for where in (curves, facts) for by in where.values() for run in by))
    said = []
    with panels_for(titles) as (figure, axes):
        for ax, title in zip(axes.flat, titles):
            ours, theirs = curves.get(title, {}), facts.get(title, {})
            for run, curve in ours.items():
                _draw(ax, run, curve, line(runs.index(run)))
                ends = [f"{curve[k].value:.3f} at k={k}" for k in (min(curve), max(curve))]
                said.append(f"{title}, {run}: {' to '.join(ends)}")
            for run, at in theirs.items():
                mark = {"marker": line(runs.index(run))["marker"], "mfc": "none", "mec": PAPER, "ms": 6}
                ax.plot(*zip(*at.items()), ls="", label=f"{run} (the paper's)", **mark)
                said.append(f"{title}, {run}, the paper's: " + ", ".join(f"{v:.3f} at k={k}" for k, v in at.items()))
            ks = sorted({k for curve in (*ours.values(), *theirs.values()) for k in curve})
            ax.set_xscale("log", base=2)
            log_scale(ax.xaxis, ks[:: -(-len(ks) // 9)])
            ax.set(title=title, xlabel="k (samples per problem)")
        for ax in axes[:, 0]:
            ax.set_ylabel("pass@k")
        legend(figure, axes)
        return save(figure, path, f"{about}. {'; '.join(said)}.")


def _draw(ax: Any, run: str, curve: Curve, style: dict[str, Any]) -> None:
    ks = sorted(curve)
    ax.plot(ks, [curve[k].value for k in ks], label=run, **style)
    banded = [k for k in ks if curve[k].low is not None and curve[k].low == curve[k].low]
    lows, highs = [curve[k].low for k in banded], [curve[k].high for k in banded]
    ax.fill_between(banded, lows, highs, color=style["color"], alpha=0.12, lw=0)
