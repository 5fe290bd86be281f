"""Countdown: the generators, the solver against brute force, the judges against Python's own parser."""

import ast
import itertools
import json
import math
import operator
import random
import re
from fractions import Fraction

import numpy as np
import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.tasks import (
    demonstrations,
    distinct_solution,
    expressions,
    generate_countdown,
    generate_ltr,
    get_task,
    load_task,
    make_scorer,
    solutions,
)
from sage_rlvr.tasks.countdown import DEVELOPMENT, HARD_USED, generate_hard, guess, reachable
from sage_rlvr.tasks.expressions import tokens_of

OPS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def by_ast(text: str) -> Fraction | None:
    """An independent evaluator: Python's parser, exact fractions, binary + − × ÷ only."""

    def walk(node):
        if isinstance(node, ast.Constant):
            return Fraction(node.value)
        return OPS[type(node.op)](walk(node.left), walk(node.right))

    try:
        return walk(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        return None


def random_expression(numbers: list[int], rng: random.Random) -> str:
    parts = [str(x) for x in numbers]
    while len(parts) > 1:
        a, b = parts.pop(rng.randrange(len(parts))), parts.pop(rng.randrange(len(parts)))
        text = f"{a} {rng.choice('+-*/')} {b}"
        parts.append(f"({text})" if rng.random() < 0.6 else text)
    return parts[0]


def gold(numbers, target) -> str:
    return json.dumps({"numbers": numbers, "target": target})


def verdict(task: str, answer: str, numbers, target):
    return make_scorer(task).score([f"<SOLUTION>{answer}</SOLUTION>"], [gold(numbers, target)])[0]


# ---- the judges --------------------------------------------------------------------------------------------------


def test_countdown_agrees_with_pythons_parser():
    rng = random.Random(1)
    seen = {0.0: 0, 1.0: 0}
    for _ in range(3000):
        numbers = [rng.randint(1, 20) for _ in range(rng.randint(2, 5))]
        text = random_expression(numbers, rng)
        value = by_ast(text)
        target = (
            int(value) if value is not None and value.denominator == 1 and rng.random() < 0.7 else rng.randint(0, 50)
        )
        want = float(value == target)
        assert verdict("countdown", text, numbers, target) == want, text
        seen[want] += 1
    assert min(seen.values()) > 500


def test_left_to_right_agrees_with_a_fold():
    rng = random.Random(2)
    for _ in range(2000):
        numbers = [rng.randint(1, 9) for _ in range(4)]
        ops = [rng.choice("+-*") for _ in range(3)]
        nested = f"((({numbers[0]} {ops[0]} {numbers[1]}) {ops[1]} {numbers[2]}) {ops[2]} {numbers[3]})"
        text = "".join(str(x) for pair in itertools.zip_longest(numbers, ops, fillvalue="") for x in pair)
        target = int(by_ast(nested)) + rng.choice([0, 0, 1])
        assert verdict("countdown-ltr", text, numbers, target) == float(by_ast(nested) == target), text


@pytest.mark.parametrize(
    "answer",
    [
        "3 + 4 × 5 − 1",
        "3+4*5-1",
        "$3 + 4 \\times 5 - 1$",
        "3 + 4 \\cdot 5 - 1 = 22",
        "3 + (4 · 5) – 1",
        "**3 + 4 x 5 - 1**",
        "\\(3 + 4 * 5 - 1\\).",
        "4×5+3−1",
        "[3 + 4*5] - 1",
        "\\left(3 + 4*5\\right) - 1",
    ],
)
def test_spellings_of_one_right_answer(answer):
    assert verdict("countdown", answer, [1, 3, 4, 5], 22) == 1.0


@pytest.mark.parametrize(
    "answer", ["8 ÷ (3 − 8 ÷ 3)", r"\frac{8}{3 - \frac{8}{3}}", r"\dfrac{8}{3-8/3} = 24", "8/(3-8/3)"]
)
def test_fractions_are_exact(answer):
    assert verdict("countdown", answer, [3, 3, 8, 8], 24) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "3+4*5",  # a number left out
        "3+4*5-1+1-1",  # one used twice
        "3+4*5-2",  # not given
        "3+4*5-1=23",  # its own claim is wrong
        "-1+3+4*5",  # a sign is no operator
        "3+4*(5-1",
        "3+4*5-1)",
        "3+45-1",
        "3 4 5 1",
        "3+4**5-1",
        "4(5)+3-1",
        "__import__('os').system('true')",
        "22",
        "",
        "3.0+4*5-1",
        "1e9",
        "3+4*5-1 or 22",
        "３+4*5-1",  # full-width digits are not digits here
    ],
)
def test_wrong_answers(answer):
    assert verdict("countdown", answer, [1, 3, 4, 5], 22) == 0.0


@pytest.mark.parametrize("task", ["countdown", "countdown-ltr"])
@pytest.mark.parametrize("answer", ["4*5+3", "4*5+3-1+1", "4*5+2+1", "20+3"])
def test_the_right_value_from_the_wrong_numbers_is_wrong(task, answer):
    assert verdict(task, answer, [1, 3, 4, 5], 23) == 0.0
    assert verdict(task, "4*5+3*1", [1, 3, 4, 5], 23) == 1.0


def test_division_by_zero_is_wrong():
    assert verdict("countdown", "1/(2-2)", [1, 2, 2], 0) == 0.0
    assert verdict("countdown", "(2-2)/1", [1, 2, 2], 0) == 1.0


def test_precedence_differs_between_the_two():
    assert verdict("countdown", "3+4*2-1", [1, 2, 3, 4], 10) == 1.0
    assert verdict("countdown-ltr", "3+4*2-1", [1, 2, 3, 4], 10) == 0.0
    assert verdict("countdown-ltr", "3+4*2-1", [1, 2, 3, 4], 13) == 1.0


@pytest.mark.parametrize("answer", ["(3+4)*2-1", "3+4*2/1", "3+4*2-", "+3+4*2-1", "3+4*2-1=14"])
def test_left_to_right_allows_nothing_else(answer):
    assert verdict("countdown-ltr", answer, [1, 2, 3, 4], 13) == 0.0


def test_deep_but_legal_brackets_count():
    assert verdict("countdown", "(" * 50 + "1" + ")" * 50 + "+2", [1, 2], 3) == 1.0


@pytest.mark.parametrize("bad", ["", "{}", "[1]", '{"numbers": "x", "target": 1}', '{"numbers": [1]}', "null"])
def test_a_gold_that_is_none_is_not_scored(bad):
    assert make_scorer("countdown").score(["<SOLUTION>1</SOLUTION>"], [bad]) == [None]
    assert make_scorer("countdown-ltr").score(["no answer"], [bad]) == [None]


# ---- distinct solutions ------------------------------------------------------------------------------------------


def test_distinct_solutions():
    def form(task, text):
        return distinct_solution(task, f"<SOLUTION>{text}</SOLUTION>")

    assert form("countdown-ltr", "3 + 4 × 2 = 14") == "3+4*2"
    assert form("countdown-ltr", "4+3*2") == "4+3*2"  # the exact sequence counts
    same = ["1+2*3", "2*3+1", "3*2+1", "(1+(3*2))", "1 + 2×3 = 7"]
    assert len({form("countdown", s) for s in same}) == 1
    assert form("countdown", "5-(3-2)") == form("countdown", "5+2-3") == form("countdown", "(2-3)+5")
    assert form("countdown", "8/(4/2)") == form("countdown", "8*2/4")
    assert form("countdown", "(1+2)*3") != form("countdown", "1+2*3")
    assert form("countdown", "6/3") != form("countdown", "6*3")
    assert form("countdown", "nonsense") is None
    assert distinct_solution("amc23", r"\boxed{3}") is None


def test_canonical_forms_never_join_different_values():
    rng = random.Random(5)
    values: dict[str, Fraction | None] = {}
    for _ in range(3000):
        text = random_expression([1, 2, 3, 4], rng)
        value = by_ast(text)
        if value is not None:
            form = distinct_solution("countdown", f"<SOLUTION>{text}</SOLUTION>")
            assert values.setdefault(form, value) == value


# ---- the world ---------------------------------------------------------------------------------------------------


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
    assert len(brute_force([1, 2, 3, 4])) == 648  # METHOD section 10
    for _ in range(60):
        numbers = [rng.randint(0, rng.choice([2, 9, 20])) for _ in range(rng.randint(1, 4))]
        table = brute_force(numbers)
        for target in {rng.choice(list(table.values())), 0, rng.randint(-99, 999)}:
            assert solutions(numbers, target) == [text for text, value in table.items() if value == target]


@pytest.mark.parametrize(("low", "high"), [(0, 99), (200, 999), (-50, 50), (5, 5)])
def test_reachable_targets_are_brute_forces(low, high):
    rng = random.Random(6)
    for count in (1, 2, 3, 4, 5):
        numbers = [rng.randint(1, rng.choice([2, 9, 20, 60])) for _ in range(count)]
        values = set(brute_force(numbers).values())
        assert reachable(numbers, low, high) == sorted(v for v in values if low <= v <= high)


WORLDS = [("countdown-ltr", 4, 9, 0, 99), ("countdown-ltr-3", 3, 9, 0, 99), ("countdown-ltr-far", 4, 9, 100, 199),
          ("countdown-hard", 5, 20, 200, 999), ("countdown-hard-far", 5, 20, 200, 999)]  # fmt: skip


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("task", "count", "largest", "low", "high"), WORLDS)
def test_every_problem_is_solvable_and_every_solution_right(task, count, largest, low, high, split):
    scorer = make_scorer(task, fallback=True)
    for p in load_task(task, limit=60, seed=1, split=split):
        numbers, target = p.meta["numbers"], p.meta["target"]
        assert p.id.startswith(f"{task}-{split}-")
        assert (p.task, len(numbers), json.loads(p.answer)) == (task, count, {"numbers": numbers, "target": target})
        assert all(1 <= x <= largest for x in numbers)
        assert low <= target <= high
        if count == 5:
            assert (45 <= target % 100 <= 54) == (task == "countdown-hard-far")
        right = solutions(numbers, target)
        assert right
        assert scorer.score([*right, f"{right[0]}+1"], [p.answer] * (len(right) + 1)) == [1.0] * len(right) + [0.0]
        assert distinct_solution(task, right[0], fallback=True) == right[0]


def test_right_answers_a_problem_as_in_the_prototype():
    """METHOD section 10: 10.7 of the 648 candidates on average (repeated numbers counted as different)."""
    total, problems = 0, generate_ltr(1500, seed=0)
    for p in problems:
        for order in itertools.permutations(p.meta["numbers"]):
            heads = [order[0]]
            for x in order[1:]:
                heads = [w for v in heads for w in (v + x, v - x, v * x)]
            total += heads.count(p.meta["target"])
    assert 9 < total / len(problems) < 12.5


@pytest.mark.parametrize("name", ["countdown", "countdown-ltr"])
def test_a_problem_is_a_function_of_seed_and_index(name):
    assert load_task(name, limit=50, seed=7) == load_task(name, limit=200, seed=7)[:50]
    assert load_task(name, limit=50, seed=7) != load_task(name, limit=50, seed=8)


@pytest.mark.parametrize("make", [generate_countdown, generate_ltr])
def test_training_and_test_never_meet(make):
    def keys(split, seed, n):
        return {(tuple(sorted(p.meta["numbers"])), p.meta["target"]) for p in make(n, seed, split)}

    first = keys("train", 0, 2000)
    train = first | keys("train", 1, 500)
    test = keys("test", 0, 300) | keys("test", 9, 300)
    assert not train & test
    assert len(first) == 2000  # no problem twice


def test_countdown_problems_have_an_answer():
    """By trying every tree, for three numbers."""
    three = [p for p in generate_countdown(100, seed=2) if len(p.meta["numbers"]) == 3]
    assert len(three) > 30
    for p in three:
        assert _solvable([Fraction(x) for x in p.meta["numbers"]], p.meta["target"]), p


def _solvable(pool, target) -> bool:
    if len(pool) == 1:
        return pool[0] == target
    for i, j in itertools.permutations(range(len(pool)), 2):
        rest = [x for k, x in enumerate(pool) if k not in (i, j)]
        a, b = pool[i], pool[j]
        if any(_solvable([*rest, v], target) for v in [a + b, a - b, a * b, *([a / b] if b else [])]):
            return True
    return False


def test_a_world_that_is_used_up_says_so():
    with pytest.raises(UserError, match=r"countdown-ltr: only [\d,]+ different test problems"):
        generate_ltr(2000, split="test", count=2)


def test_demonstrations_are_right_and_skewed():
    problems = generate_ltr(600, seed=4)
    right = [solutions(p.meta["numbers"], p.meta["target"]) for p in problems]
    usual = [
        {s for s in r if [int(t) for t in tokens_of(s)[::2]] == p.meta["numbers"]} for p, r in zip(problems, right)
    ]

    def share_in_order(skew: float) -> float:
        shown = demonstrations(problems, skew=skew, seed=1)
        assert shown == demonstrations(problems, skew=skew, seed=1)
        assert all(text in r for text, r in zip(shown, right))
        return sum(text in u for text, u in zip(shown, usual)) / sum(map(bool, usual))

    chance = sum(len(u) / len(r) for u, r in zip(usual, right)) / sum(map(bool, usual))
    assert share_in_order(1.0) == 1.0
    for skew in (0.0, 0.5, 0.9):
        assert share_in_order(skew) == pytest.approx(skew + (1 - skew) * chance, abs=0.07)
    with pytest.raises(UserError, match="skew"):
        demonstrations(problems, skew=1.5)


# ---- the tasks a study is judged on beside countdown-ltr itself ------------------------------------------------------


@pytest.mark.parametrize("task", ["countdown-ltr", "countdown-ltr-3", "countdown-ltr-far", "countdown-ltr-fresh"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_generated_task_has_as_many_as_it_says(task, split):
    """Whoever asks for no number, as an analysis does that looks a problem up, gets them all and no error."""
    problems = load_task(task, split=split)
    assert len({p.id for p in problems}) == get_task(task).size


def test_the_demo_shows_problems_on_which_nothing_was_chosen():
    """countdown-ltr-3: test problems are neither those of development nor any that training can have."""

    def keys(problems):
        return {(tuple(sorted(p.meta["numbers"])), p.meta["target"]) for p in problems}

    shown = load_task("countdown-ltr-3", split="test")
    assert len(keys(shown)) == 240
    assert not keys(shown) & keys(generate_ltr(DEVELOPMENT, split="test", count=3))
    assert not keys(shown) & keys(load_task("countdown-ltr-3", limit=1560, split="train"))


def test_fresh_problems_are_no_others():
    def keys(problems):
        return {(tuple(sorted(p.meta["numbers"])), p.meta["target"]) for p in problems}

    fresh = load_task("countdown-ltr-fresh", limit=300, split="test")
    assert len(keys(fresh)) == 300
    assert not keys(fresh) & keys(load_task("countdown-ltr", limit=1000, split="test"))
    assert not keys(fresh) & keys(load_task("countdown-ltr", limit=3000, split="train"))
    assert {p.task for p in fresh} == {"countdown-ltr-fresh"}
    assert fresh[:40] == load_task("countdown-ltr-fresh", limit=40, split="test")


def test_plain_answers_skip_the_spellings_and_nothing_changes(monkeypatch):
    rng = random.Random(4)
    texts = ["".join(rng.choices("0123456789+-*/()=. _\n\t", k=rng.randint(0, 14))) for _ in range(3000)]
    texts += ["".join(rng.choices("0123456789+-*/", k=rng.randint(1, 30))) for _ in range(3000)]
    texts += ["+".join("1" * n) for n in (9, 10, 11, 12)] + ["9999+1", "10000+1", "1" * 13, "03+4"]
    texts += [" 3+4*2 ", "**3+4**", "(3+4)/2 = 7.", "3 x 4", "$3+4$", "3\u00a0+\u00a04"]
    quick = [(tokens_of(t), tokens_of(t, 7)) for t in texts]
    assert sum(expressions._BARE.fullmatch(t) is not None for t in texts) > 100
    for name in ("_BARE", "_PLAIN"):
        monkeypatch.setattr(expressions, name, re.compile("(?!)"))
    assert quick == [(tokens_of(t), tokens_of(t, 7)) for t in texts]
    assert sum(found is not None for found, _ in quick) > 100


# ---- countdown-hard: what is held out, and the guess line ----------------------------------------------------------


def test_test_numbers_are_never_trained_on():
    """Whole multisets are held out: for any seed, the five numbers of a test problem stand in no training problem."""
    train = {tuple(sorted(p.meta["numbers"])) for seed in (0, 1) for p in generate_hard(600, seed)}
    made = [
        *generate_hard(300, 0, "test"),
        *generate_hard(300, 1, "test"),
        *load_task("countdown-hard-far", limit=100, split="test"),
    ]
    test = {tuple(sorted(p.meta["numbers"])) for p in made}
    assert not train & test
    assert 0.13 < len(test) / (len(train) + len(test)) < 0.55  # both are there


def test_fresh_problems_have_numbers_that_no_search_saw():
    seen = {tuple(sorted(p.meta["numbers"])) for p in generate_hard(HARD_USED, split="test")}
    fresh = load_task("countdown-hard-fresh", limit=150, split="test")
    assert len(fresh) == 150 == len({p.id for p in fresh})
    assert {p.task for p in fresh} == {"countdown-hard-fresh"}
    assert not seen & {tuple(sorted(p.meta["numbers"])) for p in fresh}
    assert [p.id for p in load_task("countdown-hard-fresh", limit=40, split="test")] == [p.id for p in fresh[:40]]


def test_guess_line_is_brute_forces_share():
    problems = generate_hard(4, split="test")
    for problem, at_1, at_64 in zip(problems, guess(problems, 1), guess(problems, 64)):
        values = list(brute_force(problem.meta["numbers"]).values())
        share = Fraction(values.count(problem.meta["target"]), len(values))
        assert at_1 == pytest.approx(float(share))
        drawn = np.random.default_rng(0).random((4000, 64)) < float(share)
        assert at_64 == pytest.approx(drawn.any(1).mean(), abs=0.03)
        wrong = len(values) - values.count(problem.meta["target"])
        assert at_64 <= 1 - math.comb(wrong, 64) / math.comb(len(values), 64) + 1e-12  # without replacement
