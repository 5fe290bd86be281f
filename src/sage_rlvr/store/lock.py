"""One writer a store: a file that names the writer, and that a dead process does not hold."""

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.processes import alive, started


def acquire(path: Path) -> None:
    """Takes the lock, or says who has it. The kernel's lock is held only while the file is read and written: children
    forked by a sampling engine would inherit it and outlive a killed parent."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        holder = _read(file)
        if holder and _alive(holder):
            raise UserError(
                f"{path.parent} is being written by process {holder['pid']} on {holder['host']}; wait for it or stop it "
                f"(if that machine is gone, delete {path.name})."
            )
        _write(file, _me())


def release(path: Path) -> None:
    """Empties the lock if this process holds it; the file stays, so that nobody can lock a name that is being removed."""
    try:
        with open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _read(file) == _me():
                _write(file, None)
    except OSError:
        pass  # the folder is gone, or no longer writable: nothing is left to guard


def _me() -> dict[str, Any]:
    return {"pid": os.getpid(), "start": started(os.getpid()), "host": socket.gethostname()}


def _alive(holder: dict[str, Any]) -> bool:
    if holder.get("host") != socket.gethostname():
        return True  # cannot be known from here
    pid = int(holder["pid"])
    return alive(pid) and started(pid) == holder.get("start")  # another process may have been given the number


def _read(file: Any) -> dict[str, Any] | None:
    file.seek(0)
    try:
        holder = json.loads(file.read() or "null")
    except ValueError:
        return None
    return holder if isinstance(holder, dict) and {"pid", "host"} <= set(holder) else None


def _write(file: Any, holder: dict[str, Any] | None) -> None:
    file.seek(0)
    file.truncate()
    if holder:
        json.dump(holder, file)
    file.flush()
