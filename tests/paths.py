"""Where a process that a test starts finds the package."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_path() -> str:
    """What this process was given comes first: under a mutant (tests/mutants) that is the changed copy."""
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "src"), str(ROOT)]))
