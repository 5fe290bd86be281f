"""Whether a checkpoint is whole: a list of its files, their sizes and checksums, written last.

Saving begins with a list that says "not yet" and ends, when every process has written and every file is on the disk, with the
true one renamed into its place. A checkpoint of an earlier release has none: what can be seen cheaply is looked at.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAME = "manifest.json"
STATE = "trainer_state.json"  # the last file that transformers writes
FOR_PEOPLE = ("README.md",)  # may be edited
CHUNK = (
    16 << 20
)  # bytes summed at a time, on several threads: a checkpoint of tens of GB is as long on the disk as here
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
            return _seen_cheaply(checkpoint)
        listed = _read(checkpoint)
        if listed is None:
            return CUT_SHORT
        for name, (size, _) in listed.items():
            if not (checkpoint / name).is_file():
                return f"is damaged: {name} is missing"
            if (there := (checkpoint / name).stat().st_size) != size:
                return f"is damaged: {name} has {there} of {size} bytes"
        spoilt = [name for name, found in _sums(checkpoint, listed).items() if found != listed[name][1]]
        return f"is damaged: {spoilt[0]} is not what was written" if spoilt else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
        return f"is damaged: it cannot be read ({type(e).__name__}: {e})"


def _read(checkpoint: Path) -> dict[str, tuple[int, str]] | None:
    listed = json.loads((checkpoint / NAME).read_text(encoding="utf-8"))["files"]
    return None if listed is None else {str(name): (int(size), str(found)) for name, (size, found) in listed.items()}


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
        found: dict[Path, bytes] = {}
        for (path, _), crc in zip(places, pool.map(_chunk_sum, places)):
            found[path] = found.get(path, b"") + crc.to_bytes(4, "big")
    return {name: f"{zlib.crc32(found[checkpoint / name]):08x}" for name in names}


def _chunk_sum(place: tuple[Path, int]) -> int:
    path, at = place
    with path.open("rb") as file:
        file.seek(at)
        return zlib.crc32(file.read(CHUNK))


# ---- without a list ------------------------------------------------------------------------------------------------


def _seen_cheaply(checkpoint: Path) -> str | None:
    """The state can be read, and no file ends early."""
    if not (checkpoint / STATE).is_file():
        return CUT_SHORT
    if not isinstance(json.loads((checkpoint / STATE).read_text(encoding="utf-8")), dict):
        return f"is damaged: {STATE} is not what was written"
    for path in sorted(checkpoint.rglob("*")):
        ends = {".safetensors": _ends_safetensors, ".pt": _ends_zip, ".pth": _ends_zip, ".bin": _ends_zip}.get(
            path.suffix
        )
        if ends and path.is_file() and not ends(path):
            return f"is damaged: {path.relative_to(checkpoint)} ends early"
    return None


def _ends_safetensors(path: Path) -> bool:
    """Its header says how many bytes follow."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= path.stat().st_size - 8:
            return False
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return path.stat().st_size == 8 + length + max(ends, default=0)


def _ends_zip(path: Path) -> bool:
    """torch.save writes a zip, whose directory stands at its end; a file in torch's older format is believed."""
    with path.open("rb") as file:
        first = file.read(2)
    return zipfile.is_zipfile(path) if first == b"PK" else bool(first)
