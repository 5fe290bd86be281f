"""countdown-hard: its problems, what is held out, and the guess line, each against brute force."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.tasks import load_task, make_scorer, solutions
from sage_rlvr.tasks.countdown_hard import (
    HARD,
    HARD_FAR,
    HARD_FRESH,
    USED,
    generate_hard,
    generate_hard_far,
    generate_hard_fresh,
    guess,
)


def brute_force(numbers: list[int]) -> dict[str, int]:
    """Every expression and its value, by nested loops over orders and signs."""
    out = {}
    for order in itertools.permutations(numbers):
        for signs in itertools.product("+-*", repeat=len(numbers) - 1):
            value, text = order[0], str(order[0])
            for sign, b in zip(signs, order[1:]):
                value = {"+": value + b, "-": value - b, "*": value * b}[sign]
                text += f"{sign}{b}"
            out.setdefault(text, value)
    return out


def test_solutions_are_brute_forces_in_its_order():
    rng = random.Random(5)
    for _ in range(60):
        numbers = [rng.randint(0, rng.choice([2, 9, 20])) for _ in range(rng.randint(1, 4))]
        table = brute_force(numbers)
        for target in {rng.choice(list(table.values())), 0, rng.randint(-99, 999)}:
            assert solutions(numbers, target) == [text for text, value in table.items() if value == target]


@pytest.mark.parametrize("name", [HARD, HARD_FAR])
def test_problems_can_be_solved_and_are_judged(name):
    scorer = make_scorer(name, fallback=True)
    for problem in load_task(name, limit=40, split="test"):
        numbers, target = problem.meta["numbers"], problem.meta["target"]
        low, high = (100, 199) if name == HARD_FAR else (200, 999)
        assert low <= target <= high
        assert len(numbers) == 5
        assert max(numbers) <= 20
        right = solutions(numbers, target)
        verdicts = scorer.score([*right, f"{right[0]}+1"], [problem.answer] * (len(right) + 1))
        assert verdicts == [1.0] * len(right) + [0.0]


def test_test_numbers_are_never_trained_on():
    """Whole multisets are held out: for any seed, the five numbers of a test problem stand in no training problem."""
    train = {tuple(sorted(p.meta["numbers"])) for seed in (0, 1) for p in generate_hard(600, seed)}
    made = [*generate_hard(300, 0, "test"), *generate_hard(300, 1, "test"), *generate_hard_far(100, 0, "test")]
    test = {tuple(sorted(p.meta["numbers"])) for p in made}
    assert not train & test
    assert 0.13 < len(test) / (len(train) + len(test)) < 0.55  # both are there


def test_fresh_problems_have_numbers_that_no_search_saw():
    seen = {tuple(sorted(p.meta["numbers"])) for p in generate_hard(USED, split="test")}
    fresh = generate_hard_fresh(150, split="test")
    assert len(fresh) == 150 == len({p.id for p in fresh})
    assert {p.task for p in fresh} == {HARD_FRESH}
    assert not seen & {tuple(sorted(p.meta["numbers"])) for p in fresh}
    assert [p.id for p in generate_hard_fresh(40, split="test")] == [p.id for p in fresh[:40]]


def test_guess_line_is_brute_forces_share():
    problems = generate_hard(4, split="test")
    for problem, at_1, at_64 in zip(problems, guess(problems, 1), guess(problems, 64)):
        values = list(brute_force(problem.meta["numbers"]).values())
        share = Fraction(values.count(problem.meta["target"]), len(values))
        assert at_1 == pytest.approx(float(share))
        drawn = np.random.default_rng(0).random((4000, 64)) < float(share)
        assert at_64 == pytest.approx(drawn.any(1).mean(), abs=0.03)
        assert at_64 <= pass_at_k(len(values), values.count(problem.meta["target"]), 64) + 1e-12  # without replacement
