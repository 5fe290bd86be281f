"""The one style of our figures: lightness, dash and marker all part the lines, so that they do so in greyscale too."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INK = ("#11304d", "#c55a11", "#5f9e4a", "#8d6bb0", "#5c5c5c", "#d19a00", "#2a9d9d", "#a83250")
DASH = ("-", "--", "-.", ":")
MARK = ("o", "s", "^", "D", "v", "P", "X", "*")
SUFFIXES = (".svg", ".png")
WIDEST = 7.2  # inches: a page of the docs is 690 pixels wide, and a figure is drawn at the size at which it is shown
DARK = b"<style>@media (prefers-color-scheme: dark) {svg {filter: invert(.89) hue-rotate(180deg)}}</style>"
PAPER = "#000000"  # the paper's own values: hollow black markers, never joined by a line


@dataclass(frozen=True)
class Figure:
    files: list[Path]  # SVG and PNG, or the one that was asked for
    description: str  # the alternative text


def line(i: int) -> dict[str, Any]:
    """Keywords for the i-th line of a plot. No two of 32 share colour and dash, no two of 64 colour and marker."""
    again = i // len(INK)  # each round of colours meets the next dash and marker; every second one is hollow
    style = {"color": INK[i % len(INK)], "ls": DASH[(i + again) % len(DASH)], "marker": MARK[(i + again) % len(MARK)]}
    return style | {"ms": 3.5, "lw": 1.6} | ({"mfc": "none"} if again % 2 else {})


@contextmanager
def panels(
    columns: int, rows: int = 1, width: float = 3.6, height: float = 3.0, **kw: Any
) -> Iterator[tuple[Any, Any]]:
    """(figure, axes as an array of (rows, columns)); closed afterwards. Inches of a panel; the figure is never wider than the
    page. The same numbers give the same SVG, its text as text."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rules: Any = {
        "svg.hashsalt": "sage-rlvr",
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.size": 9,
        "axes.formatter.useoffset": False,
        "axes.titley": 1.0,  # where it is in any case: no figure has ticks above, and to look for them takes long
    }
    with matplotlib.rc_context(rules):
        size = (min(width * columns, WIDEST), height * rows + 0.5)
        figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **kw)
        for ax in axes.flat:
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(alpha=0.25)
        try:
            yield figure, axes
        finally:
            pyplot.close(figure)


@contextmanager
def panels_for(what: Collection[Any], **how: Any) -> Iterator[tuple[Any, Any]]:
    """A panel for each, two beside each other; (figure, axes)."""
    across = min(2, len(what))
    with panels(across, -(-len(what) // across), **how) as (figure, axes):
        for ax in axes.flat[len(what) :]:
            ax.set_visible(False)
        yield figure, axes


def log_scale(axis: Any, ticks: Sequence[float] | None = None) -> None:
    """Numbers written out, at ``ticks`` or at 1, 2 and 5 of each decade (run names may hold $, so there is no mathtext)."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(base=10, subs=(1, 2, 5), numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def whole_steps(axis: Any) -> None:
    """The axis of training steps: no tick between two of them."""
    from matplotlib.ticker import MaxNLocator

    axis.set_label_text("step")
    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def legend(figure: Any, axes: Any) -> None:
    """One for the whole figure, below it; each label once."""
    found = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels())}
    if found:
        fit = 92 // (6 + max(map(len, found)))  # about 92 characters fit across the page
        columns = max(1, min(4, len(found), fit))
        below = -(-len(found) // columns) - 2  # rows beyond the two that a figure has room for
        figure.set_figheight(figure.get_figheight() + 0.18 * max(0, below))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False)


def save(figure: Any, path: str | Path, description: str) -> Figure:
    """PATH.svg, PATH.png, and PATH.txt with the alternative text; of a PATH that ends in .svg or .png that one alone."""
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in SUFFIXES else path
    files = [path] if path.suffix in SUFFIXES else [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) if not axis.get_label_text()):
        axis.set_label_coords(0, 0)  # else a place is looked for, several times
    if files[0].suffix == ".svg":  # laid out here, since savefig draws all of it once more to do so
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        FigureCanvasSVG(figure)
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine(None)
    for file in files:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
        if file.suffix == ".svg":
            file.write_bytes(file.read_bytes().replace(b" <defs>", b" " + DARK + b"\n <defs>", 1))
        figure.set_layout_engine(None)  # laid out once: both show the same, and it takes as long as the drawing
    stem.with_name(stem.name + ".txt").write_text(description + "\n", encoding="utf-8")
    return Figure(files, description)
