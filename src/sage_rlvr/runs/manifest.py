"""Whether a checkpoint is whole: a list of its files, their sizes and checksums, written last.

Saving begins with a list that says "not yet" and ends, when every process has written and every file is on the disk, with the
true one renamed into its place.
"""

import json
import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAME = "manifest.json"
FOR_PEOPLE = ("README.md",)  # may be edited
# bytes summed at a time, on several threads: a checkpoint of tens of GB is as long on the disk as here
CHUNK = 16 << 20
CUT_SHORT = "was cut short while it was written"


def begin(checkpoint: Path) -> None:
    checkpoint.mkdir(parents=True, exist_ok=True)
    _put(checkpoint, None)


def finish(checkpoint: Path) -> None:
    """For one process, when all have written."""
    names = [
        str(path.relative_to(checkpoint))
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name not in (NAME, *FOR_PEOPLE)
    ]
    for name in names:
        _sync(checkpoint / name)
    _put(checkpoint, {name: [(checkpoint / name).stat().st_size, s] for name, s in _sums(checkpoint, names).items()})


def fault(checkpoint: Path) -> str | None:
    """Why the checkpoint cannot be gone on from, to be read after its name; None if it is whole."""
    if not checkpoint.is_dir():
        return "is not there"
    try:
        if not (checkpoint / NAME).exists():
            return f"is damaged: {NAME} is missing"
        listed = _read(checkpoint)
        if listed is None:
            return CUT_SHORT
        for name, (size, _) in listed.items():
            if not (checkpoint / name).is_file():
                return f"is damaged: {name} is missing"
            if (there := (checkpoint / name).stat().st_size) != size:
                return f"is damaged: {name} has {there} of {size} bytes"
        spoilt = [name for name, crc in _sums(checkpoint, listed).items() if crc != listed[name][1]]
        return f"is damaged: {spoilt[0]} is not what was written" if spoilt else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
        return f"is damaged: it cannot be read ({type(e).__name__}: {e})"


def _read(checkpoint: Path) -> dict[str, tuple[int, str]] | None:
    listed = json.loads((checkpoint / NAME).read_text(encoding="utf-8"))["files"]
    return None if listed is None else {str(name): (int(size), str(crc)) for name, (size, crc) in listed.items()}


def _put(checkpoint: Path, files: dict[str, list[int | str]] | None) -> None:
    part = checkpoint / f".{NAME}.part"
    part.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    _sync(part)
    os.replace(part, checkpoint / NAME)
    _sync(checkpoint)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sums(checkpoint: Path, names: Iterable[str]) -> dict[str, str]:
    """name → CRC-32 of the CRC-32s of its chunks; a sum against accidents, not against intent."""
    places = [
        (checkpoint / name, at) for name in names for at in range(0, (checkpoint / name).stat().st_size or 1, CHUNK)
    ]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        sums: dict[Path, bytes] = {}
        for (path, _), crc in zip(places, pool.map(_chunk_sum, places)):
            sums[path] = sums.get(path, b"") + crc.to_bytes(4, "big")
    return {name: f"{zlib.crc32(sums[checkpoint / name]):08x}" for name in names}


def _chunk_sum(place: tuple[Path, int]) -> int:
    path, at = place
    with path.open("rb") as file:
        file.seek(at)
        return zlib.crc32(file.read(CHUNK))
