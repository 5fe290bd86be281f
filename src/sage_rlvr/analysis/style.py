"""The one style of our figures: lightness, dash and marker all part the lines, so that they do so in greyscale too."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INK = ("#11304d", "#c55a11", "#5f9e4a", "#8d6bb0", "#5c5c5c", "#d19a00", "#2a9d9d", "#a83250")
DASH = ("-", "--", "-.", ":")
MARK = ("o", "s", "^", "D", "v", "P", "X", "*")
SUFFIXES = (".svg", ".png")
PAPER = "#000000"  # the paper's own values: hollow black markers, never joined by a line


@dataclass(frozen=True)
class Figure:
    files: list[Path]  # SVG and PNG, or the one that was asked for
    description: str  # the alternative text


def line(i: int) -> dict[str, Any]:
    """Keywords for the i-th line of a plot."""
    return {"color": INK[i % len(INK)], "ls": DASH[i % len(DASH)], "marker": MARK[i % len(MARK)], "ms": 3.5, "lw": 1.6}


@contextmanager
def panels(
    columns: int, rows: int = 1, width: float = 3.6, height: float = 3.0, **kw: Any
) -> Iterator[tuple[Any, Any]]:
    """(figure, axes as an array of (rows, columns)); closed afterwards. The same numbers give the same SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rules: Any = {
        "svg.hashsalt": "sage-rlvr",
        "text.parse_math": False,
        "font.size": 9,
        "axes.formatter.useoffset": False,
    }
    with matplotlib.rc_context(rules):
        size = (width * columns, height * rows + 0.5)
        figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **kw)
        for ax in axes.flat:
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(alpha=0.25)
        try:
            yield figure, axes
        finally:
            pyplot.close(figure)


def log_scale(axis: Any, ticks: Sequence[float] | None = None) -> None:
    """Numbers written out, at ``ticks`` or at 1, 2 and 5 of each decade (run names may hold $, so there is no mathtext)."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(base=10, subs=(1, 2, 5), numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def legend(figure: Any, axes: Any) -> None:
    """One for the whole figure, below it; each label once."""
    found = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels())}
    if found:
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=min(4, len(found)), frameon=False)


def save(figure: Any, path: str | Path, description: str) -> Figure:
    """PATH.svg, PATH.png, and PATH.txt with the alternative text; of a PATH that ends in .svg or .png that one alone."""
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in SUFFIXES else path
    files = [path] if path.suffix in SUFFIXES else [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    for file in files:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
        figure.set_layout_engine("none")  # laid out once: both show the same, and it takes as long as the drawing
    stem.with_name(stem.name + ".txt").write_text(description + "\n", encoding="utf-8")
    return Figure(files, description)
