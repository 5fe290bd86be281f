"""Countdown, both kinds, generated here: reach a target with every given number once.

``countdown`` has the usual precedence, brackets and division; ``countdown-ltr`` joins the numbers by + − × and reads from
left to right (METHOD section 10), so that every right answer can be listed. A problem is a function of (seed, index); a
hash of its numbers and target decides whether it is for training or for testing, so the two never meet, whatever the seed.

In ``countdown-ltr`` drawing valid expressions at random solves 83% of the problems in 256 samples, so pass@256 says little
about a model. In ``countdown-hard`` that is 20% (``guess`` is the exact line): five numbers of 1 to 20, targets of 200 to 999,
and a hash of the numbers alone decides the split, so that a test problem's numbers were never seen with any target.
"""

import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import islice
from typing import Any

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.tasks.registry import Problem, Source, Task, register_task

Drawn = tuple[list[int], int]  # numbers, target
TEST_SHARE = 0.2  # of all problems
COUNTDOWN, LTR = "countdown", "countdown-ltr"
THREE, FAR, FRESH = "countdown-ltr-3", "countdown-ltr-far", "countdown-ltr-fresh"
HARD, HARD_FAR, HARD_FRESH = "countdown-hard", "countdown-hard-far", "countdown-hard-fresh"
FAR_ENDS = range(45, 55)  # the last two digits of targets that countdown-hard never has
USED, HARD_USED = 1_000, 2_000  # problems of countdown-ltr and of countdown-hard that a study may have looked at
DEVELOPMENT = 128  # test problems of countdown-ltr-3 on which the demo's settings were chosen: the task leaves them out
QUESTION = (
    "Use the numbers {numbers}, each exactly once, with +, -, *, / and brackets, to reach {target}. "
    "The usual precedence holds. Answer with the expression alone."
)
LTR_QUESTION = (
    "Use the numbers {numbers}, each exactly once and in any order, joined by +, - or *, to reach {target}. "
    "Evaluate strictly from left to right, with no precedence and no brackets. Answer with the expression alone."
)
_ATTEMPTS = 2_000  # draws for one index before we say that no other problem is left


# ---- what numbers can make ---------------------------------------------------------------------------------------


def solutions(numbers: Sequence[int], target: int) -> list[str]:
    """Every right answer of countdown-ltr, spelt like 3+4*2-1, given order first; equal numbers give one answer once."""
    orders = [*itertools.permutations(numbers)]
    signs = [*itertools.product("+-*", repeat=len(numbers) - 1)]
    right = np.argwhere(_values(numbers) == target).tolist()
    return list(dict.fromkeys(_spelt(orders[i], signs[j]) for i, j in right))


def _spelt(order: Sequence[int], signs: Sequence[str]) -> str:
    return str(order[0]) + "".join(f"{sign}{number}" for sign, number in zip(signs, order[1:]))


def _values(numbers: Sequence[int]) -> np.ndarray:
    """(n!, 3ⁿ⁻¹) values of all answers of countdown-ltr: orders and signs as itertools gives them."""
    orders = np.array(numbers)[_orders(len(numbers))]  # (n!, n)
    values = orders[:, :1]
    for b in orders.T[1:, :, None]:
        values = np.stack([values + b, values - b, values * b], axis=-1).reshape(len(orders), -1)
    return values


@cache
def _orders(count: int) -> np.ndarray:
    return np.array([*itertools.permutations(range(count))])


def reachable(numbers: Sequence[int], low: int, high: int) -> list[int]:
    """Every target in low..high that countdown-ltr can reach with these numbers."""
    return _reached(_key(numbers), low, high)


@lru_cache(maxsize=1 << 16)  # countdown-hard has 42,504 choices of five numbers
def _reached(numbers: tuple[int, ...], low: int, high: int) -> list[int]:
    values = _values(numbers)
    found = np.bincount(values[(low <= values) & (values <= high)] - low)
    return (np.flatnonzero(found) + low).tolist()


def guess(problems: Sequence[Problem], k: int) -> np.ndarray:
    """(problems,) pass@k of drawing valid expressions evenly at random, exact: 1 − (1 − right/all)^k. With equal numbers, each
    answer is as often among ``_values`` as any other."""
    shares = [(_values(problem.meta["numbers"]) == problem.meta["target"]).mean() for problem in problems]
    return 1 - (1 - np.array(shares)) ** k


# ---- problems ----------------------------------------------------------------------------------------------------


def generate_ltr(n: int, seed: int = 0, split: str = "train", count: int = 4) -> list[Problem]:
    """n problems: ``count`` numbers of 1..9, a target drawn evenly from those they reach in 0..99."""
    return list(islice(_ltr(LTR, seed, split, count), n))


def _ltr(
    name: str, seed: int, split: str, count: int = 4, largest: int = 9, targets: tuple[int, int] = (0, 99)
) -> Iterator[Problem]:
    """Left-to-right problems without end; of countdown-hard and its kin whole choices of numbers are held out, and targets."""
    whole = name in (HARD, HARD_FAR)

    def draw(rng: random.Random) -> Drawn | None:
        numbers = [rng.randint(1, largest) for _ in range(count)]
        if whole and split_of(HARD, _key(numbers)) != split:
            return None
        reached = reachable(numbers, *targets)
        if whole:
            reached = [t for t in reached if (t % 100 in FAR_ENDS) == (name == HARD_FAR)]
        if not reached:
            return None
        target = rng.choice(reached)
        return (numbers, target) if whole or split_of(name, (_key(numbers), target)) == split else None

    return _problems(name, (seed, split, count, largest, *targets), draw, LTR_QUESTION)


def _three(n: int, seed: int, split: str) -> list[Problem]:
    """countdown-ltr with three numbers, small enough for the demo. The test problems begin after ``DEVELOPMENT`` others."""
    first = DEVELOPMENT if split == "test" else 0
    return _renamed(islice(_ltr(LTR, seed, split, count=3), first, first + n), THREE)


def _far(n: int, seed: int, split: str) -> list[Problem]:
    return _renamed(islice(_ltr(LTR, seed, split, targets=(100, 199)), n), FAR)


def _fresh(n: int, seed: int, split: str) -> list[Problem]:
    """countdown-ltr problems of another seed, none of them among the first ``USED`` of ``seed`` in that split."""
    known = {(_key(p.meta["numbers"]), p.meta["target"]) for p in islice(_ltr(LTR, seed, split), USED)}
    others = _ltr(LTR, seed + 10_000, split)
    fresh = (p for p in others if (_key(p.meta["numbers"]), p.meta["target"]) not in known)
    return _renamed(islice(fresh, n), FRESH)


def generate_hard(n: int, seed: int = 0, split: str = "train") -> list[Problem]:
    """n problems: five numbers of 1..20, a target drawn evenly from those they reach in 200..999; none ends in 45 to 54."""
    return list(islice(_hard(HARD, seed, split), n))


def _hard(name: str, seed: int, split: str) -> Iterator[Problem]:
    return _ltr(name, seed, split, 5, 20, (200, 999))


def _hard_far(n: int, seed: int, split: str) -> list[Problem]:
    """countdown-hard out of distribution: targets that end in 45 to 54, which no problem of countdown-hard has."""
    return list(islice(_hard(HARD_FAR, seed, split), n))


def _hard_fresh(n: int, seed: int, split: str) -> list[Problem]:
    """countdown-hard problems of another seed whose five numbers no problem of the first ``HARD_USED`` of ``seed`` has."""
    known = {_key(p.meta["numbers"]) for p in islice(_hard(HARD, seed, split), HARD_USED)}
    fresh = (p for p in _hard(HARD, seed + 10_000, split) if _key(p.meta["numbers"]) not in known)
    return _renamed(islice(fresh, n), HARD_FRESH)


def _key(numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers))


def _renamed(problems: Iterator[Problem], name: str) -> list[Problem]:
    return [replace(p, id=p.id.replace(p.task, name, 1), task=name) for p in problems]


def generate_countdown(n: int, seed: int = 0, split: str = "train") -> list[Problem]:
    """n problems of 3 or 4 numbers up to 99, the target, 1 to 100, being the value of a random expression: there is one."""

    def draw(rng: random.Random) -> Drawn | None:
        numbers = [rng.randint(1, 99) for _ in range(rng.randint(3, 4))]
        value = _random_value(numbers, rng)
        fits = value.denominator == 1 and 1 <= value <= 100
        return (numbers, int(value)) if fits and split_of(COUNTDOWN, (_key(numbers), int(value))) == split else None

    return list(islice(_problems(COUNTDOWN, (seed, split, 3, 4, 99, 1, 100), draw, QUESTION), n))


def _random_value(numbers: Sequence[int], rng: random.Random) -> Fraction:
    """The value of a random tree over all the numbers: two at a time are joined until one is left."""
    pool = [Fraction(x) for x in numbers]
    while len(pool) > 1:
        a, b = pool.pop(rng.randrange(len(pool))), pool.pop(rng.randrange(len(pool)))
        ops = [a + b, a - b, a * b] + ([a / b] if b and a % b == 0 else [])
        pool.append(rng.choice(ops))
    return pool[0]


def _problems(
    name: str, world: tuple[Any, ...], draw: Callable[[random.Random], Drawn | None], question: str
) -> Iterator[Problem]:
    """Problem i comes from a random generator of its own, seeded by (name, i, world); what an earlier index has is drawn again.
    ``world``: seed, split, then whatever else decides a draw. ``draw`` gives None where the draw is not of this split."""
    seed, split = world[:2]
    seen = set()
    for i in itertools.count():
        rng = random.Random(repr((name, i, world)))
        draws = (drawn for _ in range(_ATTEMPTS) if (drawn := draw(rng)))
        drawn = next((d for d in draws if (_key(d[0]), d[1]) not in seen), None)
        if drawn is None:
            raise UserError(
                f"{name}: only {i:,} different {split} problems were found with these settings; ask for fewer, or allow more "
                "numbers or targets."
            )
        numbers, target = drawn
        seen.add((_key(numbers), target))
        yield _problem(f"{name}-{split}-s{seed}-{i}", name, question, numbers, target, split)


def _problem(name: str, task: str, question: str, numbers: list[int], target: int, split: str) -> Problem:
    gold = {"numbers": numbers, "target": target}
    text = question.format(numbers=", ".join(map(str, numbers)), target=target)
    return Problem(name, task, text, json.dumps(gold), gold | {"split": split})


def split_of(name: str, held_out: object) -> str:
    """train or test, by a hash of the task's name and what is held out whole."""
    digest = hashlib.blake2b(repr((name, held_out)).encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**64 else "train"


def reordered(problem: Problem, copy: int) -> Problem:
    """The same problem with its numbers in another order, a function of (problem, copy)."""
    meta = problem.meta
    numbers = random.Random(repr(("order", copy, problem.id))).sample(meta["numbers"], len(meta["numbers"]))
    return _problem(f"{problem.id}-{copy}", problem.task, LTR_QUESTION, numbers, meta["target"], meta["split"])


# ---- demonstrations ----------------------------------------------------------------------------------------------


def demonstrations(problems: Sequence[Problem], skew: float = 0.9, seed: int = 0, guesses: float = 0.0) -> list[str]:
    """One right answer per problem; with probability ``skew`` one with the numbers in the given order, where there is one.
    With probability ``guesses`` a guess instead, right or wrong: the last number first, the rest and the signs at random.

    A base model taught on these solves most problems one way and knows the others faintly: what RL then loses or keeps.
    """
    for name, share in (("skew", skew), ("guesses", guesses)):
        if not 0 <= share <= 1:
            raise UserError(f"demonstrations: {name}={share} is a probability, so it must lie in 0..1.")
    out = []
    for problem in problems:
        numbers, target = problem.meta["numbers"], problem.meta["target"]
        right = solutions(numbers, target)
        if not right:
            raise UserError(f"demonstrations: {problem.id} has no right answer, so it is no countdown-ltr problem.")
        rng = random.Random(repr(("demonstration", seed, problem.id)))
        usual = [s for s in right if [int(x) for x in re.findall(r"\d+", s)] == list(numbers)]
        answer = rng.choice(usual if usual and rng.random() < skew else right)
        out.append(_guess(numbers, rng) if rng.random() < guesses else answer)
    return out


def _guess(numbers: Sequence[int], rng: random.Random) -> str:
    rest = rng.sample(list(numbers[:-1]), len(numbers) - 1)
    return _spelt([numbers[-1], *rest], ["+-*"[rng.randrange(3)] for _ in rest])


# ---- the tasks: name, what makes it, problems where no number is asked for, description ----------------------------

_TASKS = (
    (COUNTDOWN, generate_countdown, 1000,
     "reach a target with 3 or 4 numbers, + − × ÷ and brackets; any correct expression counts"),
    (LTR, generate_ltr, 1000, "reach a target with 4 digits and + − ×, read from left to right; every right answer is known"),
    (THREE, _three, 240, "countdown-ltr with 3 digits: the demo's task"),  # its test split has some 260 after DEVELOPMENT
    (FAR, _far, 500, "countdown-ltr out of distribution, within reach: 4 digits, targets of 100 to 199"),  # some 700 to test
    (FRESH, _fresh, 1000, "countdown-ltr problems that no other study has seen: what a search found is confirmed on them"),
    (HARD, generate_hard, 1000,
     "countdown-ltr, harder: 5 numbers of 1 to 20, targets of 200 to 999; test numbers are never trained on"),
    (HARD_FAR, _hard_far, 1000, "countdown-hard out of distribution: targets that end in 45 to 54, which it never has"),
    (HARD_FRESH, _hard_fresh, 1000, "countdown-hard problems that no search has seen: what one found is confirmed on them"),
)  # fmt: skip
for _name, _generate, _size, _description in _TASKS:
    register_task(
        Task(
            name=_name,
            description=_description,
            kind="generated",
            scorer=COUNTDOWN if _name == COUNTDOWN else LTR,
            licence="Apache-2.0 (made here)",
            splits={"train": (Source("generated"),), "test": (Source("generated"),)},
            generate=_generate,
            size=_size,
        )
    )
