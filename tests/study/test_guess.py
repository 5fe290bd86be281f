"""The guess line against a count of all right answers."""

from itertools import permutations

import numpy as np
import pytest

from benchmarks.guess import guess_line
from sage_rlvr.tasks import get_task
from sage_rlvr.tasks.countdown import solutions


def test_the_line_is_the_share_of_right_expressions():
    problems = get_task("countdown-ltr").generate(12, 0, "test")
    numbers = [(tuple(p.meta["numbers"]), p.meta["target"]) for p in problems]
    share = np.array([len(solutions(n, t)) / (3**3 * len(set(permutations(n)))) for n, t in numbers])  # three signs
    ids = [p.id for p in problems]
    assert guess_line("countdown-ltr", ids, 1) == pytest.approx(share.mean())
    assert guess_line("countdown-ltr", ids, 16) == pytest.approx((1 - (1 - share) ** 16).mean())
    assert guess_line("countdown-ltr", ["another"], 1) is None
    assert guess_line("countdown", ids, 1) is None, "brackets and division: its answers are not listed"
    assert guess_line("gsm8k", ids, 1) is None
