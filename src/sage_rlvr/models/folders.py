"""Folders that are there whole or not at all: written under another name, then renamed."""

import contextlib
import glob
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from sage_rlvr.errors import UserError
from sage_rlvr.processes import alive


@contextlib.contextmanager
def whole_folder(out: str | Path, force: bool = False) -> Iterator[Path]:
    """Yields a folder to write into, which becomes ``out`` if the block ends well and is removed if it does not.

    What a killed process left behind is removed by the next call for the same ``out``. A folder with anything in it is not
    overwritten unless ``force``.
    """
    out = Path(out)
    check_free(out, force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        partial = _partial(out, os.getpid())
        partial.mkdir()
    except OSError as e:
        raise UserError(f"{out}: cannot make the folder ({e.strerror}); name one you can write to.") from e
    try:
        yield partial
        put_in_place(partial, out, force)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_free(out: str | Path, force: bool = False) -> None:
    """Refuses an ``out`` that would be overwritten, before anything costly begins."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: name a folder.")
    if not force and out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: name another folder, or say force to replace it.")


def put_in_place(partial: Path, out: Path, force: bool = False) -> None:
    """Renames ``partial`` to ``out``. With ``force``, what ``out`` held is set aside first and removed last."""
    aside = out.with_name(f"{partial.name}.replaced")
    if force and out.exists():
        os.rename(out, aside)
    try:
        os.rename(partial, out)  # an empty folder gives way
    except OSError as e:
        raise UserError(f"{out} could not be put in place ({e.strerror}): name another folder.") from e
    shutil.rmtree(aside, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """A file with the same promise."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError:  # a full disk: the little that was written is in the way of everything else
        partial.unlink(missing_ok=True)
        raise


def _partial(out: Path, pid: int) -> Path:
    return out.with_name(f".{out.name}.partial-{socket.gethostname()}-{pid}")


def _sweep(out: Path) -> None:
    """Removes the partial folders of dead processes of this host; another host's may be alive."""
    stem = _partial(out, 0).name[:-1]
    for left in out.parent.glob(f"{glob.escape(stem)}*"):
        pid = left.name.removeprefix(stem).removesuffix(".replaced")
        if pid.isdigit() and (int(pid) == os.getpid() or not alive(int(pid))):
            shutil.rmtree(left, ignore_errors=True)
