"""Which samples there are: one bit each, however long the texts."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

Cell = tuple[str, str, int]  # (task, problem, seed)


class Keys(Mapping[Cell, set[int]]):
    """(task, problem, seed) → the indices present. 256 × 1,000 problems × 5 seeds take 1.3 MB; sets are made when asked for."""

    def __init__(self) -> None:
        self.rows: dict[Cell, int] = {}
        self.bits = np.zeros((64, 64), dtype=bool)  # (cells, indices), grown by doubling

    def locate(self, batch: pa.RecordBatch) -> np.ndarray:
        """Row number of each sample's cell, (B,); new cells are added. The batch needs the four key columns."""
        tasks, problems = (batch.column(c).dictionary_encode() for c in ("task", "problem"))
        seeds, seed_of = np.unique(batch.column("seed").to_numpy(), return_inverse=True)
        task_of, problem_of = (x.indices.to_numpy().astype(np.int64) for x in (tasks, problems))
        code = (task_of * len(problems.dictionary) + problem_of) * len(seeds) + seed_of
        cells, cell_of = np.unique(code, return_inverse=True)
        numbers = np.empty(len(cells), dtype=np.int64)
        for i, cell in enumerate(cells.tolist()):
            rest, s = divmod(cell, len(seeds))
            t, p = divmod(rest, len(problems.dictionary))
            key = (tasks.dictionary[t].as_py(), problems.dictionary[p].as_py(), int(seeds[s]))
            numbers[i] = self.rows.setdefault(key, len(self.rows))
        highest = int(batch.column("index").to_numpy().max(initial=0))
        self.bits = grown(self.bits, len(self.rows), highest + 1)
        return numbers[cell_of]

    def add(self, batch: pa.RecordBatch) -> np.ndarray:
        """Marks the batch's samples as present; True (B,) where a sample is here for the first time."""
        flat = self.locate(batch) * self.bits.shape[1] + batch.column("index").to_numpy()
        places, first = np.unique(flat, return_index=True)
        bits, new = self.bits.reshape(-1), np.zeros(batch.num_rows, dtype=bool)
        new[first[~bits[places]]] = True
        bits[places] = True
        return new

    def __getitem__(self, cell: Cell) -> set[int]:
        return set(np.flatnonzero(self.bits[self.rows[cell]]).tolist())

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def grown(array: np.ndarray, rows: int, columns: int, fill: Any = 0) -> np.ndarray:
    """The array with room for (rows, columns), doubled where it is too small."""
    height, width = array.shape
    if rows <= height and columns <= width:
        return array
    while height < rows:
        height *= 2
    while width < columns:
        width *= 2
    out = np.full((height, width), fill, dtype=array.dtype)
    out[: array.shape[0], : array.shape[1]] = array
    return out
