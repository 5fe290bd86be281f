"""The processes that a benchmark starts of its own script, forked instead (tests/forked.py): the same, without their imports."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from .. import forked

START = subprocess.run


def run(command: list[str], **how: Any) -> Any:
    """In the place of ``subprocess.run``, for a script of Python's whose output goes to a file."""
    if command[0] != sys.executable:
        return START(command, **how)
    done = forked.run(_script, *command[1:], timeout=1200)
    how["stdout"].write(done.stdout + done.stderr)
    return done


def _script(file: str, *argv: str) -> None:
    sys.argv = [file, *argv]
    sys.path.insert(0, str(Path(file).parent))
    runpy.run_path(file, run_name="__main__")
