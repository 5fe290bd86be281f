"""Whether another process still runs, and since when."""

import os
from pathlib import Path


def alive(pid: int) -> bool:
    """A zombie is dead: in a container whose first process does not reap, it may stay for ever."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _stat(pid)[:1] != [b"Z"]


def started(pid: int) -> int | None:
    """When the process began, in clock ticks; None where that cannot be seen."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[bytes]:
    """Its state and what follows in /proc; nothing where there is no /proc. Before them stands a name that may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []
