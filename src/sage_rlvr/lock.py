"""One writer per folder (a training, a study, a store): the kernel's lock on a file that names the writer.

The kernel's lock decides between two that start at the same instant, and is gone with its process however that ends. It is a
POSIX record lock: children that a sampling engine forks do not inherit it. The name decides where the kernel's lock reaches one
machine only. On NFS and Lustre record locks reach every machine unless the mount says otherwise (nolock, local_lock, localflock);
there, two machines that start within the same instant are not told apart, and any others are, by the name.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sage_rlvr.errors import UserError
from sage_rlvr.processes import identity, lives

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # of a file system without them
_held: dict[Path, tuple[int, IO[str] | None]] = {}  # what this process holds: closing the file lets go of the lock
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """The lock for the length of a block."""
    acquire(path)
    try:
        yield
    finally:
        release(path)


def acquire(path: Path, again: bool = False) -> bool:
    """Takes the lock or says who has it; answers whether it was taken now. That of a dead process is taken over. ``again``: this
    process may have it already."""
    path, me = _key(path), os.getpid()
    if _held.get(path, (None,))[0] not in (None, me):
        del _held[path]  # of the parent of this process
    if _held.setdefault(path, mine := (me, None)) is not mine:  # one step: of two threads one gets here first
        if again:
            return False
        raise UserError(f"{path.parent} is being written by process {me}, which is this one: close that writer first.")
    try:
        _held[path] = (me, _take(path))
    except BaseException as e:
        del _held[path]
        if isinstance(e, OSError):
            raise UserError(f"{path.parent} cannot be written ({e.strerror}); name a folder you can write to.") from e
        raise
    return True


def release(path: Path) -> None:
    """Removes the file and lets go, if this process holds it."""
    path = _key(path)
    pid, file = _held.get(path, (None, None))
    if pid == os.getpid() and file is not None:
        del _held[path]
        with contextlib.suppress(OSError):  # the folder is gone, or no longer writable: nothing is left to guard
            if _is(file, path):
                path.unlink()
        file.close()


def _key(path: Path) -> Path:
    return path.parent.resolve() / path.name


def _take(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+")  # noqa: SIM115  (for as long as it is held)
        try:
            free = _lock(file)
            if not _is(file, path):  # its holder removed it on the way: another may have made a new one
                file.close()
                continue
            holder = _read(file)
            running = lives(holder) if holder else False
            if not free or running or running is None:
                raise UserError(_refusal(path, holder, running))
            if holder:
                _log.warning("%s: the lock of process %d, which is gone, is taken over.", path.parent, holder["pid"])
            _write(file)
        except BaseException:
            file.close()
            raise
        return file


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if e.errno not in NO_LOCKS:
            raise
        _log.warning("%s: this file system has no locks; start no second writer in the same instant.", file.name)
    return True


def _is(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _refusal(path: Path, holder: dict[str, Any] | None, running: bool | None) -> str:
    if not holder:
        return f"{path.parent} is being written by a process that has just begun; wait for it or stop it."
    who = f"{path.parent} is being written by process {holder['pid']} on {holder['host']}"
    if running is None:
        return f"{who}; wait for it or stop it, or, if that machine is gone, delete {path.name} in that folder."
    return f"{who}; wait for it or stop it."


def _read(file: IO[str]) -> dict[str, Any] | None:
    """The holder; one that makes no sense is none."""
    file.seek(0)
    try:
        holder = json.loads(file.read(4096) or "null")
    except (ValueError, RecursionError):
        return None
    known = isinstance(holder, dict) and isinstance(holder.get("pid"), int) and isinstance(holder.get("host"), str)
    return holder if known else None


def _write(file: IO[str]) -> None:
    file.seek(0)
    file.truncate()
    json.dump(identity(), file)
    file.flush()
    os.fsync(file.fileno())
