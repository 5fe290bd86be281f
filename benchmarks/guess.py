"""The guess line: what drawing valid expressions evenly at random solves. A pass@k near it says little about a model."""

from collections.abc import Sequence

import numpy as np

from sage_rlvr.tasks import get_task
from sage_rlvr.tasks.countdown import guess

LISTED = ("countdown-ltr", "countdown-hard")  # and their like: all valid answers can be written down


def guess_line(task: str, problems: Sequence[str], k: int, strata: Sequence[np.ndarray] = ()) -> float | None:
    """pass@k of guessing, exact, mean over these test problems (over the ``strata`` of them, indices each); None for a task, or
    problems, of which it is not known."""
    if not task.startswith(LISTED) or (generate := get_task(task).generate) is None:
        return None
    made = {p.id: p for p in generate(len(problems), 0, "test")}
    if not problems or not all(name in made for name in problems):
        return None
    each = guess([made[name] for name in problems], k)
    return float(np.mean([each[own].mean() for own in strata] or each))
