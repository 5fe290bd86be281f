"""What /proc knows about a verifier's processes."""

import os
import time
from pathlib import Path

DEADLY = "deadly_judge:DeadlyJudge"


def template_pid(verifier):
    return verifier._pool._template._process.pid


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid):
    """One letter, Z for a zombie; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def gone(*pids, within_s=300):
    """Whether all of them end, or are zombies of somebody else's, before we lose patience."""
    return eventually(lambda: all(state(pid) in (None, "Z") for pid in pids), within_s)


def eventually(condition, within_s=300):
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def environment():
    """For scripts that tests start: this folder is importable there too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
