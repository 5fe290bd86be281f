"""Countdown: the generators, the solver against brute force, the judges against Python's own parser."""

import ast
import itertools
import json
import operator
import random
import re
from fractions import Fraction

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
from sage_rlvr.tasks.countdown import DEVELOPMENT, reachable
from sage_rlvr.tasks.expressions import left_to_right, parse, tokens_of

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


HOSTILE = [
    "(" * 10**6,
    "(" * 10**6 + "1" + ")" * 10**6,
    "(" * 90 + "1" + ")" * 90,
    "9" * 10**6,
    "9" * 1999,
    "1+" * 10**5 + "1",
    "1*" * 900 + "1",
    "\\frac{" * 300,
    "}{" * 900,
    " " * 1900 + "1",
    "9**9**9**9",
    "\0" * 1000,
    "\ud800" * 10,
    "((((((1)+2)*3)-4",
    "3+12+69+",
    "1+3+4+5+",
]


@pytest.mark.parametrize("task", ["countdown", "countdown-ltr"])
def test_hostile_answers_are_wrong(task):
    for text in HOSTILE:
        assert verdict(task, text, [1, 3, 4, 5], 22) == 0.0
        distinct_solution(task, f"<SOLUTION>{text}</SOLUTION>")
    assert verdict(task, "4*5+3-1", [1, 3, 4, 5], 22) == 1.0


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


def test_the_solver_against_brute_force():
    rng = random.Random(3)
    for count in (2, 3, 4, 4, 4, 5):
        numbers = [rng.randint(1, 9) for _ in range(count)]
        brute: dict[int, set[str]] = {}
        total = 0
        for order in itertools.permutations(numbers):
            for ops in itertools.product("+-*", repeat=count - 1):
                text = str(order[0]) + "".join(f"{o}{x}" for o, x in zip(ops, order[1:]))
                value = left_to_right(tokens_of(text))
                brute.setdefault(value, set()).add(text)
                total += 1
        assert total == {2: 6, 3: 54, 4: 648, 5: 9720}[count]  # METHOD section 10 has 648
        assert reachable(numbers) == sorted(v for v in brute if 0 <= v <= 99)
        for target in range(-5, 105):
            assert set(solutions(numbers, target)) == brute.get(target, set())


def test_every_problem_is_solvable_and_every_solution_right():
    problems = generate_ltr(300, seed=1)
    scorer = make_scorer("countdown-ltr", fallback=True)
    for p in problems:
        right = solutions(p.meta["numbers"], p.meta["target"])
        assert right
        assert scorer.score(right, [p.answer] * len(right)) == [1.0] * len(right)
        assert len(p.meta["numbers"]) == 4
        assert all(1 <= x <= 9 for x in p.meta["numbers"])
        assert 0 <= p.meta["target"] <= 99


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

    train = keys("train", 0, 2000) | keys("train", 1, 500)
    test = keys("test", 0, 300) | keys("test", 9, 300)
    assert not train & test
    assert len(keys("train", 0, 2000)) == 2000  # no problem twice


def test_countdown_problems_have_an_answer():
    """By trying every tree, for three numbers."""
    for p in generate_countdown(60, seed=2, counts=(3, 3)):
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


def test_five_numbers_and_other_ranges():
    for p in generate_ltr(20, seed=0, split="test", count=5, max_number=12, targets=(100, 200)):
        assert len(p.meta["numbers"]) == 5
        assert 100 <= p.meta["target"] <= 200
        assert solutions(p.meta["numbers"], p.meta["target"])


def test_a_world_that_is_used_up_says_so():
    with pytest.raises(UserError, match="different ones"):
        generate_ltr(500, count=2, max_number=2)


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


def test_parse_is_flat():
    assert parse(["("] * 100_000) is None
    assert parse(["(", ")"]) is None
    assert parse([]) is None
    assert parse(["3", "+", "12", "+", "69", "+"]) is None  # ended a training


# ---- the tasks a study is judged on beside countdown-ltr itself ------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("task", "count"), [("countdown-ltr-5", 5), ("countdown-ltr-far", 4)])
def test_harder_ones_are_tasks_of_their_own(task, count, split):
    problems = load_task(task, limit=30, split=split)
    assert len({p.id for p in problems}) == 30
    for p in problems:
        assert (p.task, len(p.meta["numbers"])) == (task, count)
        assert p.id.startswith(f"{task}-{split}-")
        assert 100 <= p.meta["target"] <= 199
        assert json.loads(p.answer) == {"numbers": p.meta["numbers"], "target": p.meta["target"]}
    right = solutions(problems[0].meta["numbers"], problems[0].meta["target"])
    assert right
    assert all(len(text) < 12 for text in right), "9 characters and the end fit into 12 tokens"
    with make_scorer(task, fallback=True) as scorer:
        assert scorer.score([right[0], right[0] + "+1"], [problems[0].answer] * 2) == [1.0, 0.0]
    assert distinct_solution(task, right[0], fallback=True) == right[0]


@pytest.mark.parametrize(
    "task", ["countdown-ltr", "countdown-ltr-3", "countdown-ltr-5", "countdown-ltr-far", "countdown-ltr-fresh"]
)
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
