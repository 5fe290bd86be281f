"""countdown-hard: the left-to-right world with room. Five numbers of 1 to 20, targets of 200 to 999, every right answer known.

In ``countdown-ltr`` drawing valid expressions at random solves 83% of the problems in 256 samples, so pass@256 says little
about a model. Here that is 20% (``guess`` is the exact line). A hash of the five numbers alone decides whether they are for
training or for testing, so a test problem's numbers were never seen with any target.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sage_rlvr.tasks.countdown import LTR_QUESTION, Drawn, Key, candidates, make_problems, reachable, split_of
from sage_rlvr.tasks.registry import Problem, get_task, register_task

HARD, HARD_FAR, HARD_FRESH = "countdown-hard", "countdown-hard-far", "countdown-hard-fresh"
COUNT, LARGEST, TARGETS = 5, 20, (200, 999)
FAR_TARGETS = (100, 199)  # out of distribution: no target that training has begins with a 1
USED = 2_000  # test problems that a search may look at: a confirmation has others


def generate_hard(n: int, seed: int = 0, split: str = "train") -> list[Problem]:
    """n problems: five numbers of 1..20, a target drawn evenly from those they reach in 200..999."""
    return _generate(HARD, TARGETS, n, seed, split)


def generate_hard_far(n: int, seed: int = 0, split: str = "train") -> list[Problem]:
    """countdown-hard out of distribution: targets of 100..199. A base solves 14% to 40% of them in 512 samples, less than
    drawing at random would (results/gpu/hard_bases.json)."""
    return _generate(HARD_FAR, FAR_TARGETS, n, seed, split)


def _generate(name: str, targets: tuple[int, int], n: int, seed: int, split: str) -> list[Problem]:
    def owner(key: Key) -> str:
        return split_of(HARD, key[0])

    def draw(rng: random.Random) -> Drawn | None:
        numbers = [rng.randint(1, LARGEST) for _ in range(COUNT)]
        if owner((tuple(sorted(numbers)), 0)) != split:
            return None
        can = reachable(numbers, *targets)
        return (numbers, rng.choice(can)) if can else None

    return make_problems(name, n, (seed, split, COUNT, LARGEST, *targets), draw, LTR_QUESTION, owner)


def generate_hard_fresh(n: int, seed: int = 0, split: str = "train") -> list[Problem]:
    """countdown-hard problems of another seed whose five numbers no problem of the first ``USED`` of ``seed`` has."""
    known = {tuple(sorted(p.meta["numbers"])) for p in generate_hard(USED, seed, split)}
    fresh: list[Problem] = []
    more = n
    while len(fresh) < n:  # a problem is a function of its index: asking for more changes none
        more += max(n // 4, 100)
        made = generate_hard(more, seed + 10_000, split)
        fresh = [p for p in made if tuple(sorted(p.meta["numbers"])) not in known]
    return [replace(p, id=p.id.replace(HARD, HARD_FRESH, 1), task=HARD_FRESH) for p in fresh[:n]]


def guess(problems: Sequence[Problem], k: int) -> np.ndarray:
    """(problems,) pass@k of drawing valid expressions evenly at random, exact: 1 − (1 − right/candidates)^k."""
    shares = []
    for problem in problems:
        texts = {text: value for value, text in candidates(tuple(problem.meta["numbers"]))}
        shares.append(sum(value == problem.meta["target"] for value in texts.values()) / len(texts))
    return 1 - (1 - np.array(shares)) ** k


_LTR = get_task("countdown-ltr")
register_task(
    replace(
        _LTR,
        name=HARD,
        description="countdown-ltr with room: 5 numbers of 1 to 20, targets of 200 to 999; test numbers are never trained on",
        generate=generate_hard,
    )
)
register_task(
    replace(
        _LTR,
        name=HARD_FAR,
        description="countdown-hard out of distribution: targets of 100 to 199",
        generate=generate_hard_far,
    )
)
register_task(
    replace(
        _LTR,
        name=HARD_FRESH,
        description="countdown-hard problems that no search has seen: what one found is confirmed on them",
        generate=generate_hard_fresh,
    )
)
