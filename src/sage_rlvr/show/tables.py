"""A table, written once: on the console, as Markdown and as LaTeX (booktabs). Cells are text; ``**x**`` is bold in all three."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from sage_rlvr.grid import Grid
from sage_rlvr.stats.table import markdown

NAMES = ("run", "task", "pattern")  # columns of names, which stand on the left
_TEX = {c: "\\" + c for c in "&%$#_{}"} | {
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "τ": r"$\tau$",
    "ρ": r"$\rho$",
    "†": r"$^\dagger$",
}
_TEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def digits(x: float | None) -> str:
    """Three of them, as the paper writes them: .284, and 1.000."""
    if x is None or x != x:
        return "–"
    return re.sub(r"^(-?)0\.", r"\1.", f"{round(x, 3) + 0.0:.3f}").replace("-", "−")


def bracketed(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """With its interval, where there is one."""
    bare = low is None or high is None or low != low
    return digits(value) if bare else f"{digits(value)} [{digits(low)}, {digits(high)}]"


@dataclass
class Table:
    title: str
    head: Sequence[str]
    rows: list[Sequence[str] | None]  # None: a line between those before and after
    notes: list[str] = field(default_factory=list)  # behind it, where it is written

    def show(self, console: Console) -> None:
        named = [i for i, column in enumerate(self.head) if column in NAMES]
        grid = Grid(self.title, self.head, keep=max(named, default=0) + 1, left=NAMES)
        for row in self.rows:
            if row is None:
                grid.section()
            else:
                grid.add(*(_bold(cell) for cell in row))
        grid.show(console)

    def markdown(self) -> str:
        body = [[_md(cell) for cell in row] for row in self.rows if row is not None]
        return "\n".join([markdown(self.head, body), *(f"- {_md(note)}" for note in self.notes)]).rstrip() + "\n"

    def latex(self) -> str:
        """The first column names the rows; an interval stands small behind its number."""
        lines = ["% needs \\usepackage{booktabs}", rf"\begin{{tabular}}{{l{'c' * (len(self.head) - 1)}}}", r"\toprule"]
        lines += [" & ".join(map(_tex, self.head)) + r" \\", r"\midrule"]
        for row in self.rows:
            if row is not None:
                lines.append(" & ".join([_tex(row[0]), *map(_tex_cell, row[1:])]) + r" \\")
        notes = [f"% {' '.join(note.split())}" for note in (self.title, *self.notes) if note]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


def _bold(cell: str) -> Text:
    """**.284** [.201, .367]: the number alone is bold."""
    if found := re.fullmatch(r"\*\*(.*)\*\*(.*)", cell):
        return Text.assemble((found[1], "bold"), found[2])
    return Text(cell)


def _md(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _tex(text: str) -> str:
    return "".join(_TEX.get(ch, ch) for ch in text)


def _tex_cell(cell: str) -> str:
    text = re.sub(r"\*\*(.*)\*\*", r"\\textbf{\1}", _tex(cell))
    return re.sub(r" (\[.*\])", r" {\\scriptsize\1}", text)
