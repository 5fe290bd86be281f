"""Files that a person, a full disk or a killed process may have spoilt: read, or said in one sentence that names the file."""

import errno
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError, causes, short

RESTORE = "restore it from a copy, or make it again"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# a person can fix these, where the path is one that they named
OF_A_PATH = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)


def read_json(path: str | Path, fix: str = RESTORE, **fields: type | tuple[type, ...]) -> Any:
    """What the file holds; with ``fields``, an object that has them, each of its type (``pid=int, host=str``).

    One that is not there is a FileNotFoundError, for the caller to judge.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as e:  # the last: nested deeper than Python reads
        raise UserError(f"{path} cannot be read ({_why(e)}); {fix}.") from e
    if fields:
        _check(path, content, fix, fields)
    return content


def read_lines(path: str | Path) -> Iterator[dict[str, Any]]:
    """The objects of a log, one per line. A last line without its end was cut by a kill, and is passed over."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        raise
    except OSError as e:
        raise UserError(f"{path} cannot be read ({_why(e)}); {RESTORE}.") from e
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line) if line.strip() else None
            if entry is not None and not isinstance(entry, dict):
                raise ValueError(f"a {type(entry).__name__}, not an object")
        except (ValueError, RecursionError) as e:
            if number == len(lines):
                return
            raise UserError(f"{path}, line {number}, cannot be read ({_why(e)}); {RESTORE}.") from e
        if entry is not None:
            yield entry


def _check(path: str | Path, content: Any, fix: str, fields: dict[str, Any]) -> None:
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not an object; {fix}.")
    for name, kind in fields.items():
        value = content.get(name)
        if name not in content or not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            wanted = " or ".join(k.__name__ for k in kinds)
            had = f"is {str(value)[:40]!r}" if name in content else "is missing"
            raise UserError(f"{path}: {name} {had}, and must be of type {wanted}; {fix}.")


def _why(e: Exception) -> str:
    if isinstance(e, RecursionError):
        return "nested too deep"
    return e.strerror if isinstance(e, OSError) and e.strerror else short(e)


# ---- what the system refused ---------------------------------------------------------------------------------------


def refused(e: BaseException, named: Sequence[str] = ()) -> str | None:
    """The sentence for an error of the disk: that it is full, or a path that the user named (``named``: their words) and that
    cannot be had. None for everything else, which is the program's own."""
    if isinstance(e, OSError) and e.errno in OF_A_PATH and _theirs(e.filename, named):
        return f"{os.fsdecode(e.filename)}: {e.strerror}; name a path that is there and that you may use."
    full = next((cause for cause in causes(e) if no_room(cause)), None)
    if full is None:
        return None
    where = (isinstance(full, OSError) and full.filename) or "a file"
    return (
        f"{where} could not be written: the disk is full; what was written before stays, so free some space and run the same "
        "command again."
    )


# safetensors, Arrow, torch.save and NumPy, whose exceptions carry no number
WORDS = (
    "No space left on device", "os error 28", "Disk quota exceeded", "PytorchStreamWriter failed writing", ". unexpected pos ",
    "iostream error", " requested and ",
)  # fmt: skip


def no_room(e: BaseException) -> bool:
    if isinstance(e, OSError) and e.errno is not None:
        return e.errno in NO_ROOM
    return any(words in str(e) for words in WORDS)


def _theirs(path: Any, named: Sequence[str]) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    words = [word.partition("=")[2] if word.startswith("--") else word for word in named]
    places = {Path(word).absolute() for word in words if word}
    return bool(places & {(at := Path(os.fsdecode(path)).absolute()), *at.parents})
