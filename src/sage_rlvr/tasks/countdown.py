"""Countdown, both kinds, generated here: reach a target with every given number once.

``countdown`` has the usual precedence, brackets and division; ``countdown-ltr`` joins the numbers by + − × and reads from
left to right (METHOD section 10), so that every right answer can be listed. A problem is a function of (seed, index); a
hash of its numbers and target decides whether it is for training or for testing, so the two never meet, whatever the seed.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.tasks.registry import Problem, Source, Task, register_task

Drawn = tuple[list[int], int]  # numbers, target
Key = tuple[tuple[int, ...], int]  # the same, numbers sorted
TEST_SHARE = 0.2  # of all (numbers, target) pairs
THREE, FIVE, FAR, FRESH = "countdown-ltr-3", "countdown-ltr-5", "countdown-ltr-far", "countdown-ltr-fresh"
USED = 1_000  # problems of countdown-ltr that a study may have looked at
DEVELOPMENT = 128  # test problems of countdown-ltr-3 on which the demo's settings were chosen: the task leaves them out
LTR_QUESTION = (
    "Use the numbers {numbers}, each exactly once and in any order, joined by +, - or *, to reach {target}. "
    "Evaluate strictly from left to right, with no precedence and no brackets. Answer with the expression alone."
)
_ATTEMPTS = 2_000  # draws for one index before we say that the world is used up


def solutions(numbers: Sequence[int], target: int) -> list[str]:
    """Every right answer of countdown-ltr, spelt like 3+4*2-1, given order first; equal numbers give one answer once."""
    by_used = _by_used(tuple(numbers))

    def ways(used: int, value: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(places, signs) that make ``value`` of the numbers in ``used``: the last step is taken back, where it can be."""
        if used.bit_count() == 1:
            yield (used.bit_length() - 1,), ()
            return
        for i, b in enumerate(numbers):
            rest = used ^ 1 << i
            if rest < used:  # i is among them
                times = [value // b] if b and value % b == 0 else [] if b or value else by_used[rest]
                for sign, before in [(0, value - b), (1, value + b), *((2, v) for v in times)]:
                    if before in by_used[rest]:
                        yield from (((*places, i), (*signs, sign)) for places, signs in ways(rest, before))

    found = sorted(ways(len(by_used) - 1, target)) if target in by_used[-1] else []
    return list(dict.fromkeys(_spelt([numbers[i] for i in places], signs) for places, signs in found))


def _spelt(order: Sequence[int], signs: Sequence[int]) -> str:
    return str(order[0]) + "".join(f"{'+-*'[sign]}{number}" for sign, number in zip(signs, order[1:]))


def reachable(numbers: Sequence[int], low: int = 0, high: int = 99) -> list[int]:
    """Every target in low..high that countdown-ltr can reach with these numbers."""
    return sorted(value for value in _values(tuple(sorted(numbers))) if low <= value <= high)


def candidates(numbers: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """All n!·3ⁿ⁻¹ answers with their values, numbers in the given order first."""
    for order in itertools.permutations(numbers):
        heads = [(order[0], str(order[0]))]
        for b in order[1:]:
            heads = [step for v, s in heads for step in ((v + b, f"{s}+{b}"), (v - b, f"{s}-{b}"), (v * b, f"{s}*{b}"))]
        yield from heads


@lru_cache(maxsize=512)  # four digits make 495 multisets
def _values(numbers: tuple[int, ...]) -> frozenset[int]:
    return frozenset(_by_used(numbers)[-1])


def _by_used(numbers: tuple[int, ...]) -> list[set[int]]:
    """The values that each choice of numbers makes, by its bits: five have 9,720 answers but far fewer values."""
    n = len(numbers)
    by_used: list[set[int]] = [set() for _ in range(1 << n)]
    for i, number in enumerate(numbers):
        by_used[1 << i].add(number)
    for used in range(1, 1 << n):
        for i, b in enumerate(numbers):
            if not used >> i & 1:
                by_used[used | 1 << i].update(w for v in by_used[used] for w in (v + b, v - b, v * b))
    return by_used


def generate_ltr(
    n: int,
    seed: int = 0,
    split: str = "train",
    count: int = 4,
    max_number: int = 9,
    targets: tuple[int, int] = (0, 99),
) -> list[Problem]:
    """n problems: ``count`` numbers of 1..max_number, a target drawn evenly from those they reach. count=5: a harder set."""

    def draw(rng: random.Random) -> Drawn | None:
        numbers = [rng.randint(1, max_number) for _ in range(count)]
        can = reachable(numbers, *targets)
        return (numbers, rng.choice(can)) if can else None

    return make_problems("countdown-ltr", n, (seed, split, count, max_number, *targets), draw, LTR_QUESTION)


def generate_ltr_three(n: int, seed: int = 0, split: str = "train") -> list[Problem]:
    """countdown-ltr with three numbers, small enough for the demo. The test problems begin after ``DEVELOPMENT`` others."""
    left_out = DEVELOPMENT if split == "test" else 0  # problem i is a function of (seed, i)
    made = generate_ltr(left_out + n, seed, split, count=3)[left_out:]
    return [replace(p, id=p.id.replace(p.task, THREE, 1), task=THREE) for p in made]


def generate_ltr_five(n: int, seed: int = 0, split: str = "train") -> list[Problem]:
    """countdown-ltr out of distribution: five numbers and targets of 100 to 199, as problems of a task of their own."""
    made = generate_ltr(n, seed, split, count=5, targets=(100, 199))
    return [replace(p, id=p.id.replace(p.task, FIVE, 1), task=FIVE) for p in made]


def generate_ltr_far(n: int, seed: int = 0, split: str = "train") -> list[Problem]:
    """countdown-ltr out of distribution, within reach: four numbers as ever, targets of 100 to 199."""
    made = generate_ltr(n, seed, split, targets=(100, 199))
    return [replace(p, id=p.id.replace(p.task, FAR, 1), task=FAR) for p in made]


def generate_ltr_fresh(n: int, seed: int = 0, split: str = "train") -> list[Problem]:
    """countdown-ltr problems of another seed, none of them among the first 1,000 of ``seed`` in that split."""
    known = {_key(p) for p in generate_ltr(USED, seed, split)}
    made = generate_ltr(n + USED, seed + 10_000, split)
    fresh = [p for p in made if _key(p) not in known][:n]
    return [replace(p, id=p.id.replace(p.task, FRESH, 1), task=FRESH) for p in fresh]


def _key(problem: Problem) -> Key:
    return tuple(sorted(problem.meta["numbers"])), problem.meta["target"]


def generate_countdown(
    n: int,
    seed: int = 0,
    split: str = "train",
    counts: tuple[int, int] = (3, 4),
    max_number: int = 99,
    targets: tuple[int, int] = (1, 100),
) -> list[Problem]:
    """n problems of 3 or 4 numbers up to 99, the target being the value of a random expression, so that there is one."""

    def draw(rng: random.Random) -> Drawn | None:
        numbers = [rng.randint(1, max_number) for _ in range(rng.randint(*counts))]
        value = _random_value(numbers, rng)
        return (numbers, int(value)) if value.denominator == 1 and targets[0] <= value <= targets[1] else None

    question = (
        "Use the numbers {numbers}, each exactly once, with +, -, *, / and brackets, to reach {target}. "
        "The usual precedence holds. Answer with the expression alone."
    )
    return make_problems("countdown", n, (seed, split, *counts, max_number, *targets), draw, question)


def _random_value(numbers: Sequence[int], rng: random.Random) -> Fraction:
    """The value of a random tree over all the numbers: two at a time are joined until one is left."""
    pool = [Fraction(x) for x in numbers]
    while len(pool) > 1:
        a, b = pool.pop(rng.randrange(len(pool))), pool.pop(rng.randrange(len(pool)))
        ops = [a + b, a - b, a * b] + ([a / b] if b and a % b == 0 else [])
        pool.append(rng.choice(ops))
    return pool[0]


def make_problems(
    name: str,
    n: int,
    world: tuple[Any, ...],
    draw: Callable[[random.Random], Drawn | None],
    question: str,
    owner: Callable[[Key], str] | None = None,
) -> list[Problem]:
    """Problem i comes from its own generator; what an earlier index has, or the other split owns, is drawn again. ``owner``
    says which split a problem is of (default: a hash of numbers and target)."""
    seed, split = world[:2]
    owner = owner or partial(split_of, name)
    out, seen = [], set()
    for i in range(n):
        rng = random.Random(repr((name, i, world)))
        for _ in range(_ATTEMPTS):
            drawn = draw(rng)
            if drawn and (key := (tuple(sorted(drawn[0])), drawn[1])) not in seen and owner(key) == split:
                break
        else:
            raise UserError(
                f"{name}: {n:,} {split} problems were asked for but only {i:,} different ones were found with these settings; "
                "ask for fewer, or allow more numbers or targets."
            )
        seen.add(key)
        numbers, target = drawn
        text = question.format(numbers=", ".join(map(str, numbers)), target=target)
        gold = {"numbers": numbers, "target": target}
        out.append(Problem(f"{name}-{split}-s{seed}-{i}", name, text, json.dumps(gold), gold | {"split": split}))
    return out


def split_of(name: str, key: object) -> str:
    """train or test, by a hash of the task's name and what is held out whole."""
    digest = hashlib.blake2b(repr((name, key)).encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**64 else "train"


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
        usual = [s for s in right if _order(s) == list(numbers)]
        answer = rng.choice(usual if usual and rng.random() < skew else right)
        out.append(_guess(numbers, rng) if rng.random() < guesses else answer)
    return out


def _guess(numbers: Sequence[int], rng: random.Random) -> str:
    rest = rng.sample(list(numbers[:-1]), len(numbers) - 1)
    return _spelt([numbers[-1], *rest], [rng.randrange(3) for _ in rest])


def reordered(problem: Problem, copy: int) -> Problem:
    """The same problem with its numbers in another order, a function of (problem, copy)."""
    numbers = problem.meta["numbers"]
    gold = {
        "numbers": random.Random(repr(("order", copy, problem.id))).sample(numbers, len(numbers)),
        "target": problem.meta["target"],
    }
    text = LTR_QUESTION.format(numbers=", ".join(map(str, gold["numbers"])), target=gold["target"])
    return Problem(f"{problem.id}-{copy}", problem.task, text, json.dumps(gold), problem.meta | gold)


def _order(solution: str) -> list[int]:
    return [int(x) for x in solution.replace("+", " ").replace("-", " ").replace("*", " ").split()]


_HERE = {"train": (Source("generated"),), "test": (Source("generated"),)}
register_task(
    Task(
        name="countdown",
        description="reach a target with 3 or 4 numbers, + − × ÷ and brackets; any correct expression counts",
        kind="generated",
        scorer="countdown",
        licence="Apache-2.0 (made here)",
        splits=_HERE,
        generate=generate_countdown,
    )
)
_LTR = register_task(
    Task(
        name="countdown-ltr",
        description="reach a target with 4 digits and + − ×, read from left to right; every right answer is known",
        kind="generated",
        scorer="countdown-ltr",
        licence="Apache-2.0 (made here)",
        splits=_HERE,
        generate=generate_ltr,
    )
)
register_task(
    replace(
        _LTR,
        name=THREE,
        description="countdown-ltr with 3 digits: the demo's task",
        generate=generate_ltr_three,
        size=240,  # its test split has some 260 beyond those the demo was made on
    )
)
register_task(
    replace(
        _LTR,
        name=FIVE,
        description="countdown-ltr out of distribution: 5 digits, targets of 100 to 199",
        generate=generate_ltr_five,
    )
)
register_task(
    replace(
        _LTR,
        name=FAR,
        description="countdown-ltr out of distribution, within reach: 4 digits, targets of 100 to 199",
        generate=generate_ltr_far,
        size=500,  # its test split has some 700
    )
)
register_task(
    replace(
        _LTR,
        name=FRESH,
        description="countdown-ltr problems that no other study has seen: what a search found is confirmed on them",
        generate=generate_ltr_fresh,
    )
)
