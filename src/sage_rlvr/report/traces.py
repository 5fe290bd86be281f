"""Per-token numbers for the explorer: what ``sage-rlvr trace`` wrote to FOLDER/trace, one row a (sample, checkpoint)."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEYS = ("task", "problem", "seed", "index")
NUMBERS = {"surprisal": "logps", "ref": "ref_logps", "entropy": "entropies", "q": "q", "penalty": "penalty"}
COLUMNS = (*KEYS, "checkpoint", "tokens", *NUMBERS.values())
TOKENS = 4096  # shown of one completion
CHARACTERS = 40_000  # likewise
Key = tuple[str, str, int, int]


class Traces:
    """The traces of one run. Opening it reads the keys alone."""

    def __init__(self, folder: Path):
        self.notes: list[str] = []
        self.checkpoints: list[str] = []
        self.groups: dict[Key, list[tuple[Path, int]]] = {}  # where a sample's rows are: (file, row group)
        for path in sorted((folder / "trace").glob("*.parquet")):
            try:
                self._index(path)
            except (OSError, pa.ArrowException, KeyError, ValueError) as e:
                self.notes.append(f"trace/{path.name} cannot be read and is left out ({str(e).splitlines()[0]})")
        self.settings, said = _header(folder / "trace" / "_trace.json")
        first = [c for c in said if c in self.checkpoints]
        self.checkpoints = [*first, *(c for c in in_order(self.checkpoints) if c not in first)]

    def _index(self, path: Path) -> None:
        with pq.ParquetFile(path) as file:
            if missing := [c for c in COLUMNS if c not in file.schema_arrow.names]:
                raise ValueError(f"no column {', '.join(missing)}")
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=[*KEYS, "checkpoint"])
                keys = zip(*(table.column(c).to_pylist() for c in KEYS))
                for key in dict.fromkeys(keys):
                    self.groups.setdefault(key, []).append((path, group))
                self.checkpoints += pc.unique(table.column("checkpoint")).to_pylist()

    def __contains__(self, key: object) -> bool:
        return key in self.groups

    def read(
        self, wanted: Sequence[Key], most: int = TOKENS, characters: int = CHARACTERS
    ) -> Iterator[tuple[Key, dict[str, Any]]]:
        """(key, trace) for each wanted sample that has one; a row group is read once for all that want it."""
        places: dict[tuple[Path, int], set[Key]] = {}
        for key in wanted:
            for place in self.groups.get(key, ()):
                places.setdefault(place, set()).add(key)
        rows: dict[Key, dict[str, dict[str, Any]]] = {}
        left = {key: len(self.groups[key]) for key in wanted if key in self.groups}
        for (path, group), keys in sorted(places.items(), key=lambda kv: (str(kv[0][0]), kv[0][1])):
            for row in _rows(path, group, keys):
                sample: Key = (row["task"], row["problem"], row["seed"], row["index"])
                rows.setdefault(sample, {})[str(row["checkpoint"])] = row  # traced again: the later row counts
            for key in keys:
                left[key] -= 1
                if not left[key] and key in rows:
                    found = rows.pop(key)
                    yield key, encode([found[c] for c in self.checkpoints if c in found], most, characters)


def _rows(path: Path, group: int, keys: set[Key]) -> list[dict[str, Any]]:
    with pq.ParquetFile(path) as file:
        table = file.read_row_group(group, columns=list(COLUMNS))
    found = zip(*(table.column(c).to_pylist() for c in KEYS))
    return table.take([i for i, key in enumerate(found) if key in keys]).to_pylist()


def encode(rows: Sequence[dict[str, Any]], most: int = TOKENS, characters: int = CHARACTERS) -> dict[str, Any]:
    """One sample at every checkpoint. Numbers are whole thousandths (nats; q itself), so that a token costs some 20 bytes."""
    tokens = [str(t) for t in rows[0]["tokens"]]
    ends = np.cumsum([len(t) for t in tokens])
    most = min(most, int(np.searchsorted(ends, characters, side="right")))
    out: dict[str, Any] = {
        "tokens": tokens[:most],
        "of": len(tokens),
        "checkpoints": [str(r["checkpoint"]) for r in rows],
    }
    for name, column in NUMBERS.items():
        sign = -1 if name in ("surprisal", "ref") else 1
        out[name] = [_thousandths(r[column], sign, min(most, len(tokens))) for r in rows]
    return out


def _thousandths(values: Any, sign: int, size: int) -> list[int | None]:
    if values is None:
        return [None] * size
    x = np.asarray([math.nan if v is None else v for v in values[:size]], dtype=float) * sign * 1000
    whole = [round(v) if math.isfinite(v) else None for v in x.tolist()]
    return whole + [None] * (size - len(whole))


def belongs(trace: dict[str, Any], text: str) -> bool:
    """False where the completion has been drawn again since it was traced. Either may be cut."""
    joined = "".join(trace["tokens"])
    return joined[: len(text)] == text[: len(joined)]


def _header(path: Path) -> tuple[dict[str, Any], list[str]]:
    """(what it was traced with, the checkpoints in their order), as far as they are known."""
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        return dict(header["settings"]), [str(c["label"]) for c in header["checkpoints"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, []


def in_order(names: Sequence[str]) -> list[str]:
    """Once each, as they first appear, but those with a number (checkpoint-50, checkpoint-100) in its order."""
    names = list(dict.fromkeys(map(str, names)))
    numbered = [i for i, n in enumerate(names) if re.search(r"\d+$", n)]
    ranked = sorted((names[i] for i in numbered), key=lambda n: int(re.findall(r"\d+$", n)[0]))
    for i, name in zip(numbered, ranked):
        names[i] = name
    return names
