"""Whether another process still runs, since when, whether it is the one that wrote its name down; and ending with it."""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


def alive(pid: int) -> bool:
    """A zombie is dead: in a container whose first process does not reap, it may stay for ever."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return _stat(pid)[:1] != [b"Z"]


def started(pid: int) -> int | None:
    """When the process began, in clock ticks since the machine did (microseconds of the epoch where there is no /proc); None
    where that cannot be seen."""
    if Path("/proc/self/stat").exists():
        fields = _stat(pid)
        return int(fields[19]) if fields else None
    import psutil

    try:
        return round(psutil.Process(pid).create_time() * 1e6)
    except psutil.Error:
        return None


def identity(pid: int | None = None) -> dict[str, Any]:
    """Who a process of this machine is, as JSON: its number may be given to another, and the machine may start again."""
    pid = os.getpid() if pid is None else pid
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "start": started(pid)}


def lives(who: Mapping[str, Any]) -> bool | None:
    """Whether the process of that ``identity`` still runs; None: on another machine, where it cannot be seen. What an identity
    of an earlier release lacks is not compared."""
    if who.get("host", socket.gethostname()) != socket.gethostname():
        return None
    pid = who.get("pid")
    if not isinstance(pid, int) or pid <= 0 or not alive(pid):
        return False
    now = identity(pid)
    return all(who.get(name) in (None, now[name]) for name in ("boot", "start"))


@cache
def _boot() -> str | None:
    """Changes when the machine starts: then numbers and ticks begin again."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _stat(pid: int) -> list[bytes]:
    """Its state and what follows in /proc; nothing where there is no /proc. Before them stands a name that may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def end_with_parent() -> None:
    """A parent that is killed takes this process along: SIGTERM, on which a training writes a checkpoint (Linux)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            sys.exit(143)
