"""Per-token numbers for the explorer: what ``sage-rlvr trace`` wrote to FOLDER/trace, one row per (sample, checkpoint)."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.store.samples import KEYS

NUMBERS = {"surprisal": "logps", "ref": "ref_logps", "entropy": "entropies", "q": "q", "penalty": "penalty"}
COLUMNS = [*KEYS, "checkpoint", "tokens", *NUMBERS.values()]
TOKENS = 4096  # shown of one completion
CHARACTERS = 40_000  # likewise
Key = tuple[str, str, int, int]  # task, problem, seed, index
Place = tuple[Path, int]  # a Parquet file and one of its row groups


def places_of(path: Path, columns: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Place]]:
    """(values of the columns, place): once for each row group that has them. Reads these columns and nothing else."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(columns))
            for values in dict.fromkeys(zip(*(table.column(c).to_pylist() for c in columns))):
                yield values, (path, group)


class Traces:
    """The traces of one run. Opening it reads the keys alone."""

    def __init__(self, folder: Path):
        self.notes: list[str] = []
        self.places: dict[Key, list[Place]] = {}  # where a sample's rows are
        self.settings: dict[str, Any] = {}  # what it was traced with, as far as it is known
        labels: list[str] = []
        for path in sorted((folder / "trace").glob("*.parquet")):
            try:
                if missing := [c for c in COLUMNS if c not in pq.read_schema(path).names]:
                    raise ValueError(f"no column {', '.join(missing)}")
                for (*key, label), place in places_of(path, [*KEYS, "checkpoint"]):
                    places = self.places.setdefault(tuple(key), [])
                    places += [place] if place not in places else []
                    labels.append(label)
            except (OSError, pa.ArrowException, ValueError) as e:
                self.notes.append(f"trace/{path.name} cannot be read and is left out ({str(e).splitlines()[0]})")
        first = []
        try:
            header = read_json(folder / "trace" / "_trace.json", settings=dict, checkpoints=list)
            self.settings, first = header["settings"], [str(c["label"]) for c in header["checkpoints"]]
        except (OSError, UserError, KeyError, TypeError):
            pass
        self.checkpoints = [c for c in dict.fromkeys([*first, *in_order(labels)]) if c in labels]

    def __contains__(self, key: object) -> bool:
        return key in self.places

    def read(
        self, keys: Sequence[Key], most: int = TOKENS, characters: int = CHARACTERS
    ) -> Iterator[tuple[Key, dict[str, Any]]]:
        """(key, trace) for each of the keys that has one; a row group is read once for all of them."""
        by_place: dict[Place, set[Key]] = {}
        for key in keys:
            for place in self.places.get(key, ()):
                by_place.setdefault(place, set()).add(key)
        rows: dict[Key, dict[str, dict[str, Any]]] = {}  # key → checkpoint → row
        left = {key: len(self.places[key]) for key in keys if key in self.places}
        for (path, group), here in sorted(by_place.items()):
            with pq.ParquetFile(path) as file:
                table = file.read_row_group(group, columns=COLUMNS)
            every = list(zip(*(table.column(c).to_pylist() for c in KEYS)))
            at = [i for i, key in enumerate(every) if key in here]
            for i, row in zip(at, table.take(at).to_pylist()):
                rows.setdefault(every[i], {})[str(row["checkpoint"])] = row  # traced again: the later row counts
            for key in here:
                left[key] -= 1
                if not left[key]:
                    own = rows.pop(key)
                    yield key, encode([own[c] for c in self.checkpoints if c in own], most, characters)


def encode(rows: Sequence[dict[str, Any]], most: int = TOKENS, characters: int = CHARACTERS) -> dict[str, Any]:
    """One sample at every checkpoint. Numbers are whole thousandths (nats; q itself), so that a token costs some 20 bytes."""
    tokens = [str(t) for t in rows[0]["tokens"]]
    most = min(most, int(np.searchsorted(np.cumsum([len(t) for t in tokens]), characters, side="right")))
    labels = [str(r["checkpoint"]) for r in rows]
    out: dict[str, Any] = {"tokens": tokens[:most], "of": len(tokens), "checkpoints": labels}
    for name, column in NUMBERS.items():
        sign = -1 if name in ("surprisal", "ref") else 1
        out[name] = [_thousandths(r[column], sign, min(most, len(tokens))) for r in rows]
    return out


def _thousandths(values: Sequence[float | None] | None, sign: int, size: int) -> list[int | None]:
    """``size`` whole numbers; None for what is missing or not a number."""
    x = np.full(size, np.nan)
    known = np.asarray(values or [], dtype=float)[:size] * sign * 1000
    x[: len(known)] = known
    return [round(v) if np.isfinite(v) else None for v in x.tolist()]


def belongs(trace: dict[str, Any], text: str) -> bool:
    """False where the completion has been drawn again since it was traced. Either may be cut."""
    joined = "".join(trace["tokens"])
    return joined[: len(text)] == text[: len(joined)]


def in_order(names: Sequence[str]) -> list[str]:
    """Once each, as they first appear, but those with a number (checkpoint-50, checkpoint-100) in its order."""
    names = list(dict.fromkeys(map(str, names)))
    numbers = {name: int(match[0]) for name in names if (match := re.search(r"\d+$", name))}
    ranked = iter(sorted(numbers, key=numbers.__getitem__))
    return [next(ranked) if name in numbers else name for name in names]
