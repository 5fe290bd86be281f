"""A comparison as Markdown and as LaTeX (booktabs)."""

import re

from sage_rlvr.evaluate.compare import AVERAGE, Cell, Comparison

_TEX = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def digits(x: float) -> str:
    """Three of them, as the paper writes them: .284, and 1.000."""
    return "–" if x != x else re.sub(r"^(-?)0\.", r"\1.", f"{round(x, 3) + 0.0:.3f}").replace("-", "−")


def about(c: Comparison) -> str:
    """The caption: what the numbers and the brackets are."""
    sizes = ", ".join(f"{task} ({n} problems)" for task, n in c.problems.items())
    return (
        f"Unbiased pass@k on {sizes}; in brackets {c.level:.0%} bootstrap intervals over problems. Bold: the best, where its "
        f"paired interval against every other run excludes 0."
        + (f" {AVERAGE}: the mean of the task means ({', '.join(c.averaged)})." if len(c.averaged) > 1 else "")
    )


def not_shown(c: Comparison) -> list[str]:
    """A sentence for each absent run; most reasons begin with its folder."""
    return [f"not shown: {why if why.startswith(f) else f'{f}: {why}'}" for f, why in c.absent.items()]


def markdown(c: Comparison) -> str:
    lines = ["| run | " + " | ".join(f"{g} pass@{k}" for g, k in c.columns) + " |", "|---" * (len(c.columns) + 1) + "|"]
    for row in c.rows:
        cells = [_plain(row.cells.get(g, {}).get(k), "**{}**") for g, k in c.columns]
        lines.append(f"| {_md(row.name)} | " + " | ".join(cells) + " |")
    lines += ["", about(c)]
    if len(c.rows) > 1:
        lines += ["", f"Paired differences from {_md(c.rows[0].name)}:", "", *lines[:2]]
        for row in c.rows[1:]:
            cells = [change(row.cells.get(g, {}).get(k)) for g, k in c.columns]
            lines.append(f"| {_md(row.name)} | " + " | ".join(cells) + " |")
    remarks = [*c.notes, *not_shown(c)]
    if remarks:
        lines += ["", *(f"- {_md(note)}" for note in remarks)]
    return "\n".join(lines) + "\n"


def latex(c: Comparison) -> str:
    groups = list(dict.fromkeys(g for g, _ in c.columns))
    width = len(c.columns) // len(groups)
    top = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{_tex(g)}}}" for g in groups)
    rules = " ".join(rf"\cmidrule(lr){{{2 + i * width}-{1 + (i + 1) * width}}}" for i in range(len(groups)))
    lines = [
        "% needs \\usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'c' * len(c.columns)}}}",
        r"\toprule",
        rf" & {top} \\ {rules}",
        "run & " + " & ".join(f"pass@{k}" for _, k in c.columns) + r" \\",
        r"\midrule",
    ]
    for row in c.rows:
        cells = [_tex_cell(row.cells.get(g, {}).get(k)) for g, k in c.columns]
        lines.append(" & ".join([_tex(row.name), *cells]) + r" \\")
    remarks = [about(c), *c.notes, *not_shown(c)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *(f"% {' '.join(n.split())}" for n in remarks)]) + "\n"


def _plain(cell: Cell | None, bold: str) -> str:
    if cell is None:
        return "–"
    value = bold.format(digits(cell.value)) if cell.bold else digits(cell.value)
    return f"{value} [{digits(cell.low)}, {digits(cell.high)}]"


def change(cell: Cell | None) -> str:
    if cell is None or cell.minus_first is None:
        return "–"
    value, low, high = cell.minus_first
    return f"{'+' if round(value, 3) > 0 else ''}{digits(value)} [{digits(low)}, {digits(high)}]"


def _tex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    value, low, high = (digits(x).replace("−", "$-$").replace("–", "--") for x in (cell.value, cell.low, cell.high))
    shown = rf"\textbf{{{value}}}" if cell.bold else value
    return rf"{shown} {{\scriptsize[{low}, {high}]}}"


def _tex(text: str) -> str:
    return "".join(_TEX.get(ch, ch) for ch in text)


def _md(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
