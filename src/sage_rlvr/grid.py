"""Tables that fit the terminal: one too wide has its intervals under their values; still too wide, it continues below."""

from collections.abc import Collection, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

BORDER = 3  # columns that a cell's border and padding take
MOST = 30  # columns of a name, 18 where there are two; a longer one is folded


class Grid:
    """``head``: the columns' names, of which the first ``keep`` are repeated where the table continues. Columns named in ``left``
    are aligned left, and the first always is."""

    def __init__(self, title: str, head: Sequence[str], keep: int = 1, left: Collection[str] = ()) -> None:
        self.title, self.head, self.keep = title, [Text(h) for h in head], keep
        self.left = {0, *(i for i, h in enumerate(head) if h in left)}
        self.rows: list[list[Text] | None] = []

    def add(self, *cells: str | Text) -> None:
        self.rows.append([Text(c) if isinstance(c, str) else c for c in cells])

    def section(self) -> None:
        """A line between the rows before and after."""
        self.rows.append(None)

    def show(self, console: Console) -> None:
        if self.title:
            console.print(Text(self.title, style="italic"))
        rows = self.rows
        if self._width(range(len(self.head)), rows) > console.width:
            rows = [row if row is None else [_stacked(cell) for cell in row] for row in rows]
        for part in self._parts(console.width, rows):
            console.print(self._table(part, rows))

    def _parts(self, width: int, rows: list[list[Text] | None]) -> list[list[int]]:
        """Columns of each table: as many as fit beside the kept ones."""
        kept = list(range(self.keep))
        parts = [list(kept)]
        for i in range(self.keep, len(self.head)):
            if len(parts[-1]) > self.keep and self._width([*parts[-1], i], rows) > width:
                parts.append(list(kept))
            parts[-1].append(i)
        return parts

    def _width(self, columns: Sequence[int], rows: list[list[Text] | None]) -> int:
        return 1 + sum(BORDER + self._cell_width(i, rows) for i in columns)

    def _cell_width(self, i: int, rows: list[list[Text] | None]) -> int:
        cells = [self.head[i], *(row[i] for row in rows if row is not None)]
        widest = max(cell_len(line) for cell in cells for line in cell.plain.split("\n"))
        return min(widest, MOST if self.keep == 1 else 18) if i in self.left else widest

    def _table(self, columns: Sequence[int], rows: list[list[Text] | None]) -> Table:
        table = Table(header_style="bold")
        for i in columns:
            justify: Literal["left", "right"] = "left" if i in self.left else "right"
            table.add_column(self.head[i], justify=justify, overflow="fold", width=self._cell_width(i, rows))
        for row in rows:
            if row is None:
                table.add_section()
            else:
                table.add_row(*(row[i] for i in columns))
        return table


def _stacked(cell: Text) -> Text:
    """ "0.284 [0.201, 0.367]" on two lines; bold stays bold."""
    at = cell.plain.find(" [")
    if at < 0 or not cell.plain.endswith("]"):
        return cell
    return Text("\n").join([cell[:at], cell[at + 1 :]])
