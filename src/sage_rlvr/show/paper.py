"""The paper's own numbers (paper.yaml), to be shown beside ours and marked as the paper's."""

from dataclasses import dataclass
from importlib.resources import files

import yaml

FACTS = yaml.safe_load(files("sage_rlvr.show").joinpath("paper.yaml").read_text(encoding="utf-8"))
SOURCE, TASKS, TABLES = FACTS["source"], FACTS["tasks"], FACTS["tables"]
PATTERNS, GRADIENT_NORM = FACTS["patterns"], FACTS["gradient_norm"]
GRID = {(tau, rho): (one, top) for tau, rho, one, top in FACTS["grid"]}
GRID_TASK, GRID_TOP = "amc23", 256
AVERAGE = "average"
_ROW_OF = {alias: row for row, aliases in FACTS["aliases"].items() for alias in aliases.split()}


@dataclass(frozen=True)
class Value:
    mean: float
    std: float | None = None


def columns(table: int) -> list[tuple[str, int]]:
    """(task or "average", k) of Tables 1, 3, 4 and 9."""
    groups = ["minerva"] if table == 9 else [*TASKS, AVERAGE]
    return [(group, k) for group in groups for k in (1, TABLES[table]["top"])]


def results(table: int) -> dict[str, dict[tuple[str, int], Value]]:
    """Row → column → value."""
    return {row: dict(zip(columns(table), map(_value, cells))) for row, cells in TABLES[table]["rows"].items()}


def _value(text: str | int) -> Value:
    mean, _, std = str(text).partition("±")
    return Value(int(mean) / 1000, int(std) / 1000 if std else None)


def row_of(label: str) -> str:
    """The paper's row for a label: "branch", "grpo_branch" and "GRPO + Branch" are one; any other label stays itself."""
    return _ROW_OF.get("".join(c for c in label.lower() if c.isalnum() or c == "."), label)
