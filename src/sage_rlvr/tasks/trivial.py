"""Answers that need no thought, and the tasks that pay for them.

A task that pays more than ``LIMIT`` for one of them teaches a model to give it. ``benchmarks/trivial_policies.py`` measures every
task; those above the limit lie in ``trivial.json`` beside this file, and are named by ``tasks show`` and ``doctor``.
"""

import json
from functools import cache
from importlib.resources import files

LIMIT = 0.05
TABLE = files("sage_rlvr.tasks") / "trivial.json"


@cache
def paid() -> dict[str, tuple[str, float]]:
    """Task → (the policy that earns most, the share of its problems it gets right), for tasks above the limit."""
    return {task: (policy, share) for task, (policy, share) in json.loads(TABLE.read_text()).items()}


def warning(task: str) -> str | None:
    """One sentence where a task pays for a trivial answer."""
    if task not in paid():
        return None
    policy, share = paid()[task]
    name = policy.replace("constant ", "always ") if policy.startswith("constant ") else f"the policy '{policy}'"
    return f"{task} pays trivial answers: {name} solves {share:.0%} of it (more than {LIMIT:.0%})."
