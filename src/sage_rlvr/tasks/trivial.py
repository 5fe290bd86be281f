"""Answers that need no thought, and the tasks that pay for them.

A task that pays more than ``LIMIT`` for one of them teaches a model to give it. ``benchmarks/trivial_policies.py`` measures every
task; those above the limit lie in ``trivial.json`` beside this file, and are named by ``tasks show`` and ``doctor``.
"""

import json
import re
from functools import lru_cache
from importlib.resources import files

LIMIT = 0.05
CONSTANTS = (
    "0", "1", "-1", "2", "3", "4", "5", "10", "24", "100", "1/2", "0.5", "nan", "inf", "[NaN]", "True", "False", "true",
    "yes", "no", "Yes", "No", "on", "off", "None", "null", "[]", "[[]]", "{}", "()", "x", "A", "B", "C", "a", "left", "up",
    "4*6*1*1", "len('a')", "ord('a')", "Monday", "red",
)  # fmt: skip
_FORMULA = re.compile(r"\$([^$]+)\$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def trivial_answers(question: str) -> dict[str, str]:
    """Policy → its answer to this question: the question, or a part of it, all its numbers, and each constant."""
    formulas = _FORMULA.findall(question)
    numbers = _NUMBER.findall(question)
    answers = {
        "echo": question.strip(),
        "longest formula": max(formulas, key=len, default=""),
        "last line": question.strip().rpartition("\n")[2],
        "last number": numbers[-1] if numbers else "",
        "all numbers": ", ".join(numbers),
        "list of all": "[" + ", ".join(numbers) + "]",
    }
    return {**answers, **{f"constant {c}": c for c in CONSTANTS}}


@lru_cache(maxsize=1)
def paid() -> dict[str, tuple[str, float]]:
    """Task → (the policy that earns most, the share of its problems it gets right), for tasks above the limit."""
    table = json.loads((files("sage_rlvr.tasks") / "trivial.json").read_text())
    return {task: (policy, share) for task, (policy, share) in table.items()}


def warning(task: str) -> str | None:
    """One sentence where a task pays for a trivial answer."""
    if task not in paid():
        return None
    policy, share = paid()[task]
    name = policy.replace("constant ", "always ") if policy.startswith("constant ") else f"the policy '{policy}'"
    return f"{task} pays trivial answers: {name} solves {share:.0%} of it (more than {LIMIT:.0%})."
