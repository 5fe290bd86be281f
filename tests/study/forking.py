"""``sage-rlvr study`` and its runs, forked instead of started (tests/forked.py): the same processes, without their imports.

That runs start as processes with nothing in them is asked in test_started.py and in the tests marked slow.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from sage_rlvr import cli
from sage_rlvr.demo import run_demo
from sage_rlvr.study import job
from sage_rlvr.study import run as study_run

from .. import forked

PIECE = Path(__file__).parents[2] / "benchmarks" / "gpu" / "study.py"


class Job(forked.Child):
    """A run."""

    def __init__(self, out: Path, run: str, *rest: Any):
        super().__init__(_job, str(out), run)


def _job(out: str, run: str) -> None:
    forked.as_begun()
    folder = Path(out, run)
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / study_run.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(log, number)
    sys.exit(job.main(out, run))


def study(*argv: Any) -> None:
    """``sage-rlvr study ARGV``, as the target of a forked process."""
    fork_runs()
    sys.exit(cli.main(["study", *map(str, argv)]))


def study_beside(modules: Path, *argv: Any) -> None:
    """The same with modules of the user's in that folder, which PYTHONPATH names for processes that begin anew."""
    sys.path.insert(0, str(modules))
    study(*argv)


def piece(*argv: Any) -> None:
    """``benchmarks/gpu/study.py ARGV``, likewise."""
    fork_runs()
    sys.argv = [str(PIECE), *map(str, argv)]
    sys.path.insert(0, str(PIECE.parent))
    runpy.run_path(str(PIECE), run_name="__main__")


def demo(out: Path, source: Path) -> None:
    """The demo over that study, likewise; exits with 1 where it answers False."""
    fork_runs()
    sys.exit(not run_demo(out, jobs=1, source=source))


def fork_runs() -> None:
    study_run._start = Job
