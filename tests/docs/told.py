"""docs/evidence/notebook.md as tests read it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence" / "notebook.md").read_text(encoding="utf-8")
RECORD = ROOT / "results" / "gpu" / "bases.json"
needs_records = pytest.mark.skipif(not RECORD.is_file(), reason="the measured results are not shipped with the package")


def rows_under(title):
    """The rows of the table whose head begins with ``title``, without bold."""
    lines = PAGE.replace("**", "").split(f"| {title} ", 1)[1].splitlines()[2:]
    table = lines[: next(i for i, line in enumerate(lines) if not line.strip().startswith("|"))]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]


def short(number, digits=3):
    return f"{number:.{digits}f}".removeprefix("0")
