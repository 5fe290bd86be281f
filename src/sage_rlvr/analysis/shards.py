"""Results beside a store: Parquet files that are there whole or not at all, and go on where a killed process left off."""

import os
import uuid
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sage_rlvr.errors import UserError
from sage_rlvr.store.samples import KEYS
from sage_rlvr.store.samples import SCHEMA as SAMPLES

Key = tuple[str, str, int, int]  # task, problem, seed, index: a sample
KEY_FIELDS = [SAMPLES.field(name) for name in KEYS]


def key_of(row: dict[str, Any]) -> Key:
    return row["task"], row["problem"], row["seed"], row["index"]


def digest(token_ids: Sequence[int]) -> int:
    """63 bits of the completion's tokens: a store that was sampled anew has the same keys and other completions."""
    content = np.asarray(token_ids, dtype=np.int64).tobytes()
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big") >> 1


def write_shard(folder: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> Path:
    """One new file; on a full disk nothing of it is left."""
    path = folder / f"{uuid.uuid4().hex[:12]}.parquet"
    part = folder / f".{path.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            table = pa.Table.from_pylist(list(rows), schema=schema)
            pq.write_table(table, file, compression="zstd", row_group_size=256)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as e:
        part.unlink(missing_ok=True)
        raise UserError(
            f"{folder} cannot be written ({e.strerror}); free space or fix its permissions and run it again."
        ) from e
    return path


def read_shards(folder: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of every readable file; one of another layout, or cut short by something that is not us, is passed over."""
    for path in sorted(folder.glob("[!.]*.parquet")):
        try:
            if pq.read_schema(path).names != schema.names:
                continue
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(256, columns=list(columns) if columns else None):
                    yield from batch.to_pylist()
        except (OSError, pa.ArrowException):
            continue


def sweep(folder: Path) -> None:
    """Removes what killed writers left half written."""
    for left in folder.glob(".*.part"):
        left.unlink(missing_ok=True)
