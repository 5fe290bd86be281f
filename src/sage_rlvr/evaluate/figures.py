"""pass@k over k, with bands: one panel a task, one line a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# Lightness, dash and marker all part the lines, so that they do so in greyscale too.
_INK = ("#11304d", "#c55a11", "#5f9e4a", "#8d6bb0", "#5c5c5c", "#d19a00", "#2a9d9d", "#a83250")
_DASH = ("-", "--", "-.", ":")
_MARK = ("o", "s", "^", "D", "v", "P", "X", "*")


class Point(Protocol):
    """What a curve is made of: an Estimate, or a comparison's Cell."""

    value: float
    low: Any
    high: Any


@dataclass(frozen=True)
class Figure:
    files: list[Path]  # SVG and PNG
    description: str  # for alt-text


def pass_at_k_figure(
    curves: Mapping[str, Mapping[str, Mapping[int, Point]]], path: str | Path, level: float = 0.95
) -> Figure:
    """``curves[run][panel][k]``. Panels appear in the order in which runs name them; a run may lack some."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    panels = list(dict.fromkeys(p for run in curves.values() for p in run))
    across = len(panels) if len(panels) <= 4 else 3
    down = -(-len(panels) // across)
    # SVG ids are random unless salted; with a salt and no date the same numbers give the same file
    with matplotlib.rc_context({"svg.hashsalt": "sage-rlvr", "text.parse_math": False}):
        figure, grid = pyplot.subplots(
            down, across, figsize=(3.4 * across, 3 * down + 0.5), squeeze=False, layout="constrained"
        )
        for ax, panel in zip(grid.flat, panels):
            for i, (run, by_panel) in enumerate(curves.items()):
                if by_panel.get(panel):
                    _line(ax, run, by_panel[panel], i)
            ks = sorted({k for run in curves.values() for k in run.get(panel, {})})
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_locator(FixedLocator(ks[:: -(-len(ks) // 9)]))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(FuncFormatter(lambda k, _: f"{k:g}"))
            ax.set(title=panel, xlabel="k (samples per problem)", ylim=(0, 1.02))
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(alpha=0.25)
        for ax in grid.flat[len(panels) :]:
            ax.set_visible(False)
        for ax in grid[:, 0]:
            ax.set_ylabel("pass@k")
        lines = {label: line for ax in grid.flat for line, label in zip(*ax.get_legend_handles_labels())}
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=min(4, len(lines)), frameon=False)
        files = [Path(path).with_suffix(s) for s in (".svg", ".png")]
        for file in files:
            figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
        pyplot.close(figure)
    return Figure(files, describe(curves, level))


def _line(ax: Any, run: str, points: Mapping[int, Point], i: int) -> None:
    ks = sorted(points)
    ink, dash, mark = _INK[i % len(_INK)], _DASH[i % len(_DASH)], _MARK[i % len(_MARK)]
    ax.plot(ks, [points[k].value for k in ks], color=ink, ls=dash, marker=mark, ms=3.5, lw=1.6, label=run)
    banded = [k for k in ks if points[k].low is not None and points[k].low == points[k].low]
    ax.fill_between(
        banded, [points[k].low for k in banded], [points[k].high for k in banded], color=ink, alpha=0.12, lw=0
    )


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
