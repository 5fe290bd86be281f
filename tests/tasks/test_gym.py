"""gym:NAME: what may be asked for, what counts as right, and that an answer is data whatever it says."""

import importlib
import json
import logging
import subprocess
import sys
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("reasoning_gym", reason="the extra gym is not installed: pip install -e '.[gym]'")

from sage_rlvr.doctor import recipe
from sage_rlvr.errors import UserError
from sage_rlvr.tasks import console as page
from sage_rlvr.tasks import get_task, gym, gym_rules, load_task, make_scorer, trivial
from sage_rlvr.tasks.gym_rules import EVALUATES
from sage_rlvr.verify import Verifier
from tests.slow import but_few

RECORD = Path(__file__).parents[2] / "results" / "cpu" / "trivial.json"


@pytest.fixture(scope="module")
def scorer():
    """One for all: a gold names its generator."""
    with Verifier(workers=2, timeout_s=120, judge_path=gym.judge_path("gym:gcd"), untrusted=True) as v:
        yield v


@pytest.fixture(scope="module")
def short():
    """The same as make_scorer makes it, for what may take all its time."""
    with make_scorer("gym:countdown+code") as s:
        s.timeout_s = 2
        yield s


def named(generator):
    return f"gym:{generator}{gym.CODE if generator in EVALUATES else ''}"


def entry_of(problem):
    address = json.loads(problem.answer)
    return gym._dataset(address["gym"], address["seed"], address["size"])[address["index"]]


def tagged(answers):
    return [f"<SOLUTION>{answer}</SOLUTION>" for answer in answers]


# ---- what may be asked for -----------------------------------------------------------------------------------------


def test_problems_and_verdicts(scorer):
    problems = load_task("gym:countdown+code", limit=4)
    assert problems == load_task("gym:countdown+code", limit=4)
    assert problems[0].question != load_task("gym:countdown+code", limit=1, split="test")[0].question
    assert {p.task for p in problems} == {"gym:countdown+code"}
    golds = [p.answer for p in problems]
    right = tagged(json.loads(g)["answer"] for g in golds)
    stale = json.dumps({**json.loads(golds[0]), "answer": "another version's"})
    assert scorer.score(right, golds) == [1.0] * 4
    assert scorer.score([*right[1:], right[0]], golds) == [0.0] * 4
    assert scorer.score([right[0], right[0]], [stale, "not JSON"]) == [None, None]


def test_make_scorer_lends_limits_and_closes_the_doors():
    with Verifier(workers=2, timeout_s=7) as lender, make_scorer("gym:gcd", lender) as ours:
        assert (ours.workers, ours.timeout_s, ours.untrusted) == (2, 7, True)
    with make_scorer("gym:countdown+code") as ours:
        assert (ours.timeout_s, ours.untrusted, ours.judge_path) == (5, True, "sage_rlvr.tasks.gym:GymJudge:countdown")


@pytest.mark.parametrize("generator", sorted(EVALUATES))
def test_a_generator_that_evaluates_is_refused_unless_asked_for(generator, caplog):
    with pytest.raises(UserError, match=rf"evaluates its answers as code.*write gym:{generator}\+code"):
        get_task(f"gym:{generator}")
    gym._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert get_task(f"gym:{generator}+code").name == get_task(f"gym:{generator}+code").name
    assert [r.message.count(f"gym:{generator}+code") for r in caplog.records] == [1]  # said once


def test_wrong_names():
    with pytest.raises(UserError, match="basic_arithmetic"):
        get_task("gym:basic_arithmetics")
    with pytest.raises(UserError, match=r"write gym:gcd\."):
        get_task("gym:gcd+code")
    with pytest.raises(UserError, match="no generator 'composite'"):
        get_task("gym:composite")


def test_the_library_is_there_before_an_answers_clock_starts():
    there = "print('reasoning_gym' in sys.modules)"
    code = f"import sys; from sage_rlvr.tasks.gym import GymJudge; {there}; GymJudge('gcd'); {there}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "True"]


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=r"sage-rlvr\[gym\]"):
        get_task("gym:gcd")


# ---- an answer is data ---------------------------------------------------------------------------------------------

PAYLOADS = (
    "__import__('os').remove({file!r})",
    "[open({file!r}, 'w').write('x')]",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "exec('import os; os._exit(0)')",
    "sin(open({file!r}, 'w'))",
    "x.__class__",
    "lambda: 0",
    "Integral(x, x)",
    "factorial(10**9)",
    "9**9**9",
    "1" + "+1" * 4000,
    "(" * 4000 + "1" + ")" * 4000,
)


# Those that spend the time of an answer; simple_integration does the same work.
LONG = {"polynomial_multiplication", "intermediate_integration"}
ASKED = sorted(EVALUATES)


@pytest.mark.parametrize("generator", but_few(ASKED, {i for i, name in enumerate(ASKED) if name not in LONG}))
def test_payloads_are_wrong_and_do_nothing(short, generator, tmp_path):
    file = tmp_path / "victim"
    file.write_text("untouched")
    (problem,) = load_task(named(generator), limit=1)
    payloads = [p.format(file=str(file)) if "{file" in p else p for p in PAYLOADS]
    verdicts = short.judge(tagged(payloads), [problem.answer] * len(payloads))
    if late := [
        p for p, v in zip(payloads, verdicts) if v.reason == "gold timeout"
    ]:  # a busy machine: they were not judged
        with make_scorer("gym:countdown+code") as patient:
            patient.timeout_s = 60
            verdicts += patient.judge(tagged(late), [problem.answer] * len(late))
    judged = [v.score for v in verdicts if v.reason != "gold timeout"]
    assert judged == [0.0] * len(payloads)
    assert file.read_text() == "untouched"


RIGHT = sorted(gym.generators() - {"knight_swap"})
FAST = {i for i, name in enumerate(RIGHT) if name in (gym.HASHED | set(EVALUATES)) - LONG or i % 8 == 0}


@pytest.mark.parametrize("generator", but_few(RIGHT, FAST))
def test_behind_closed_doors_a_right_answer_is_right(scorer, generator):
    """After junk, in the same process: nothing it needs is refused, and nothing before it was left lying about.

    An entry without an answer of its own cannot be asked. One that follows the order of sets is another in this process: its
    gold says what it answers.
    """
    (problem,) = load_task(named(generator), limit=1)
    answer = json.loads(problem.answer)["answer"] if generator in gym.HASHED else entry_of(problem)["answer"]
    junk = tagged(["x y", "__import__('os')._exit(0)", "{}"])
    verdicts = scorer.judge([*junk, *tagged([answer])], [problem.answer] * 4)
    assert all(v.score in (0.0, None) for v in verdicts[:3])
    assert verdicts[3].reason == ("right" if answer is not None else "wrong")


# ---- rules against enumeration and SymPy ---------------------------------------------------------------------------


def right(generator, entry, answer):
    return gym_rules.is_right(generator, gym._dataset(generator, 1, 1), entry, answer)


@pytest.mark.parametrize("generator", ["countdown", "puzzle24"])
def test_arithmetic_against_python(generator):
    """Every order of the numbers under every choice of operators: right exactly where Python's own value is the target."""
    numbers, target = [3, 8, 2, 6], 24
    entry = {"answer": "", "metadata": {"numbers": numbers, "target": target}}
    hits = 0
    for order in permutations(numbers):
        for ops in product("+-*/", repeat=3):
            text = "".join(f"{n}{op}" for n, op in zip(order, (*ops, "")))
            value = eval("".join(f"Fraction({n}){op}" for n, op in zip(order, (*ops, ""))))
            assert right(generator, entry, text) == (value == target), text
            hits += value == target
    assert hits > 0
    cheats = [
        "4*6*1*1",
        "24",
        "3*8",
        "3*8*2*6*0+24",
        "ord('a')-73",
        "len('38')*3*8*6/2/6",
        "-(-3*8)+2*6-12",
        "3*8+2-6+4",
    ]
    for cheat in cheats:
        assert not right(generator, entry, cheat), cheat
    assert right(generator, entry, "-6+3*8+6") is False
    assert right(generator, {**entry, "metadata": {"numbers": [6, 30], "target": 24}}, "-6 + 30") is True


@pytest.mark.parametrize("seed", range(3))
def test_coin_flips_against_the_binomial(seed):
    generator = gym._dataset("coin_flip", seed, 20)
    for i in range(20):
        entry = generator[i]
        n, k, kind = (entry["metadata"][key] for key in ("num_trials", "k_heads", "problem_type"))
        heads = [sum(c) for c in product((0, 1), repeat=n)] if n <= 10 else None
        if heads:
            exact = Fraction(sum(h == k if kind == "exact" else h >= k for h in heads), 2**n)
            assert right("coin_flip", entry, str(exact))
            assert right("coin_flip", entry, f"{float(exact):.10g}")
        assert right("coin_flip", entry, entry["answer"])
        assert not right("coin_flip", entry, "0")
        assert not right("coin_flip", entry, "nan")
        assert right("coin_flip", entry, "1") == (Fraction(entry["answer"]) == 1)


def test_integrals_against_sympy():
    import sympy

    x = sympy.Symbol("x")
    texts = ("x**2", "sin(x)*exp(x)", "log(x)", "sqrt(2*x + 5)", "atan(3*x)", "x**3*cos(x)", "1/(1 + x**2)")
    for text in texts:
        entry = {"answer": "", "metadata": {"variable": "x", "integrand": text}}
        whole = sympy.integrate(sympy.sympify(text), x)
        for form in (whole, sympy.expand(whole), sympy.factor(whole), whole + 5):
            assert right("intermediate_integration", entry, f"{form} + C"), form
        for wrong in (whole + x, 2 * whole, sympy.sympify(text), sympy.Integer(0)):
            assert not right("intermediate_integration", entry, f"{wrong} + C"), wrong
        for cheat in (f"Integral({text}, x)", f"integrate({text}, x)", f"C*({whole})", "nan", "zoo*x"):
            assert not right("intermediate_integration", entry, cheat), cheat


@pytest.mark.parametrize(
    "text", ["x**2/3 - 4.5*y", "-sin(x)**2 + E**x", "sqrt(pi)*atan(2*x)", "Abs(x - 1)", "+3", "exp(-x)/(1 - x)"]
)
def test_a_formula_is_what_sympy_makes_of_it(text):
    import sympy

    assert gym_rules.formula(text) == sympy.sympify(text)


@pytest.mark.parametrize(
    "text",
    ["", "x =", "True", "'a'", "[1]", "x.y", "f(x)", "sin(x, 2)", "sin(x=2)", "__a__", "x if x else 1", "1j", "eval(x)", "xxx",
     "print", "lambda: 1", "sin", "(x", "x;y", "é", "x[0]", "*x", "f'{x}'", "x and y", "1 < 2", "\x00", "1/01"],
)  # fmt: skip
def test_anything_else_is_no_formula(text):
    assert gym_rules.formula(text) is None


def test_halting_is_not_paid_for_any_text():
    entry = {"answer": "False", "metadata": {}}
    assert right("game_of_life_halting", entry, "False")
    assert right("game_of_life_halting", entry, " false ")
    assert not any(right("game_of_life_halting", entry, text) for text in ("True", "0", "x", "yes"))


@pytest.mark.parametrize("said", ["nan", "NaN + nani", "nan+nanj", "inf", "-Infinity", "[NaN, nan]", "(nan)"])
def test_nan_is_no_number(said):
    for name in ("complex_arithmetic", "decimal_arithmetic", "number_sorting", "number_format", "pool_matrix"):
        entry = gym._dataset(name, 1, 1)[0]
        assert not right(name, entry, said)
        if name == "number_sorting":
            length = len(
                entry["metadata"]["sorted_numbers"] if "sorted_numbers" in entry["metadata"] else eval(entry["answer"])
            )
            assert not right(name, entry, json.dumps([float("nan")] * length))
    word = {"answer": "INF,INK", "metadata": {}}
    assert not gym_rules._NO_NUMBER.search("infant nanny banana")
    assert gym_rules._NO_NUMBER.search(word["answer"])  # but a gold without a digit is no number either


# ---- trivial answers -----------------------------------------------------------------------------------------------


def test_policies(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    trivial_answers = importlib.import_module("trivial_policies").trivial_answers
    answers = trivial_answers("Take 3 and -4.5.\nWhat is 7 more?")
    assert answers["echo"].startswith("Take 3")
    assert (answers["last number"], answers["list of all"]) == ("7", "[3, -4.5, 7]")
    assert {"constant nan", "constant 0", "constant []", "constant len('a')"} <= set(answers)
    assert trivial_answers("no digits")["last number"] == ""
    assert trivial_answers("What is $1+1$, or $54 \\times 46$?")["longest formula"] == "54 \\times 46"


def test_the_table_in_the_package_is_the_records():
    record = json.loads(RECORD.read_text())
    above = {name: (row["best"], row["share"]) for name, row in record["tasks"].items() if row["share"] > trivial.LIMIT}
    assert trivial.paid() == above
    assert set(map(named, gym.generators())) <= set(record["tasks"])  # measured, every one
    for name in ("gym:complex_arithmetic", "gym:puzzle24+code", "gym:countdown+code", "gym:coin_flip"):
        assert record["tasks"][name]["best"] != "constant nan"
    for name in ("gym:puzzle24+code", "gym:countdown+code", "gym:complex_arithmetic"):
        assert name not in above  # what upstream pays a constant for


def test_a_task_that_pays_is_named_by_show_and_doctor(monkeypatch, tmp_path):
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    page.show_problems("gym:syllogism", 1, console=console)
    said = console.export_text()
    _, share = trivial.paid()["gym:syllogism"]
    assert "gym:syllogism pays trivial answers" in said
    assert f"{share:.0%}" in said
    quiet = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    page.show_problems("gym:gcd" if "gym:gcd" not in trivial.paid() else "gym:ab", 1, console=quiet)
    assert "pays trivial answers" not in quiet.export_text()
    config = tmp_path / "c.yaml"
    config.write_text("task: gym:syllogism\nmodel_name_or_path: nowhere\noutput_dir: " + str(tmp_path / "run") + "\n")
    monkeypatch.setattr(recipe, "_plan_checks", lambda argv: [])
    checks = {check.name: check for check in recipe.config_checks(str(config))}
    assert checks["trivial answers"].ok is None
    assert "gym:syllogism" in checks["trivial answers"].found
