"""Reasoning patterns among right solutions (METHOD section 8, Eq. 13).

F(p) = (1/N)·Σ_i (1/n_i)·Σ_j 1[p in solution ij] over the N problems that have n_i > 0 right solutions: every problem weighs the
same. The pooled form counts every solution the same. A detector is a regular expression; what it says of a text is a hint, not
a reading of the proof.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sage_rlvr.analysis.verdicts import judged_rows
from sage_rlvr.errors import UserError
from sage_rlvr.stats.intervals import Interval, bootstrap_interval
from sage_rlvr.store import SampleStore

VARIABLE = r"(?:(?:\\\(|\$)\s*+)?[a-z](?:_\w++)?\b"
TABLE = yaml.safe_load(files("sage_rlvr.analysis").joinpath("patterns.yaml").read_text(encoding="utf-8"))
HINTS: dict[str, list[str]] = {name: own["hints"] for name, own in TABLE.items() if "hints" in own}


def _compiled(phrases: list[str]) -> re.Pattern[str]:
    whole = "|".join(f"(?:{phrase})" for phrase in phrases)
    return re.compile(whole.replace("VARIABLE", VARIABLE).replace("␣", r"\s++"), re.IGNORECASE)


PATTERNS: dict[str, re.Pattern[str]] = {name: _compiled(own["phrases"]) for name, own in TABLE.items()}


def register_pattern(name: str, regex: str) -> re.Pattern[str]:
    """Adds a detector (case-insensitive); a name that is taken is refused."""
    if name in PATTERNS:
        raise UserError(f"a pattern named {name!r} is registered already; choose another name.")
    PATTERNS[name] = _user_pattern(name, regex)
    return PATTERNS[name]


def _user_pattern(name: str, regex: Any) -> re.Pattern[str]:
    try:
        pattern = re.compile(regex, re.IGNORECASE)
    except (re.error, TypeError) as e:
        raise UserError(f"pattern {name!r}: {regex!r} is not a regular expression ({e}); fix it.") from e
    if pattern.search(""):
        raise UserError(f"pattern {name!r}: {regex!r} matches the empty text, so every solution; make it say more.")
    return pattern


def chosen_patterns(more: Mapping[str, str], file: str | Path | None = None) -> dict[str, re.Pattern[str]]:
    """The registered ones, those of a YAML file (name: regex), and ``more``; the latter replace those of the same name."""
    own: dict[str, Any] = {}
    if file is not None:
        try:
            own = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
        except (OSError, yaml.YAMLError) as e:
            raise UserError(f"pattern file {file} cannot be read ({' '.join(str(e).split())}); check it.") from e
        if not isinstance(own, dict):
            raise UserError(f"pattern file {file} holds a {type(own).__name__}: write one 'name: regex' per line.")
    return PATTERNS | {name: _user_pattern(name, regex) for name, regex in (own | dict(more)).items()}


@dataclass
class Frequency:
    """One pattern in one task."""

    per_problem: float  # F(p)
    low: float
    high: float
    pooled: float
    count: int  # right solutions that have it


@dataclass
class TaskPatterns:
    task: str
    problems: int  # N: those with a right solution
    unsolved: int  # sampled, but never right
    solutions: int  # Σ n_i
    frequency: dict[str, Frequency]
    n: dict[str, int]  # problem → n_i
    hits: dict[str, dict[str, int]] = field(default_factory=dict)  # pattern → problem → count


def has_pattern(text: str, name: str, detector: re.Pattern[str]) -> bool:
    if name in HINTS and detector is PATTERNS.get(name):
        low = text.lower()
        if not any(hint in low for hint in HINTS[name]):
            return False
    return detector.search(text) is not None


def patterns(
    folder: str | Path,
    detectors: Mapping[str, re.Pattern[str]] | None = None,
    level: float = 0.95,
    first: int | None = None,
) -> dict[str, TaskPatterns]:
    """Task → frequencies among right solutions. ``first``: only samples of an index below it (the paper has 16 a problem)."""
    if first is not None and first < 1:
        raise UserError(f"first={first} must be 1 or more, or left unset for all samples.")
    detectors = dict(detectors or PATTERNS)
    right: dict[str, dict[str, int]] = {}  # task → problem → right solutions
    hits: dict[str, dict[str, dict[str, int]]] = {}  # task → pattern → problem → those that have it
    for row in judged_rows(SampleStore(folder, readonly=True), ["completion"]):
        if first is not None and row["index"] >= first:
            continue
        task, problem = row["task"], row["problem"]
        right.setdefault(task, {}).setdefault(problem, 0)
        own = hits.setdefault(task, {name: {} for name in detectors})
        if row["right"]:
            right[task][problem] += 1
            for name, detector in detectors.items():
                if has_pattern(row["completion"], name, detector):
                    own[name][problem] = own[name].get(problem, 0) + 1
    if not right:
        raise UserError(f"{folder} holds no judged sample; run eval into it first.")
    return {task: _task(task, counts, hits[task], level) for task, counts in right.items()}


def _task(task: str, counts: dict[str, int], hits: dict[str, dict[str, int]], level: float) -> TaskPatterns:
    n = {p: m for p, m in counts.items() if m}
    out = TaskPatterns(task, len(n), len(counts) - len(n), sum(n.values()), {}, n, hits)
    for name, by_problem in hits.items():
        count, nan = sum(by_problem.values()), float("nan")
        share = np.array([by_problem.get(p, 0) / m for p, m in n.items()])
        mean, low, high = bootstrap_interval(share, level=level) if n else Interval(nan, nan, nan)
        out.frequency[name] = Frequency(mean, low, high, count / out.solutions if n else nan, count)
    return out
