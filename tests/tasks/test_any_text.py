"""Whatever a model writes: no scorer of ours and no reader raises, works without end or fills the memory."""

import json
import logging
import sys
import tracemalloc
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sage_rlvr.tasks import distinct_solution, expressions, get_task, knights, make_scorer, scorers, task_reward
from sage_rlvr.tasks.registry import TASKS
from sage_rlvr.verify import extract as extract_module
from sage_rlvr.verify import extract_answer, verifiable_reward
from tests.slow import but_few

GOLDS = {
    "countdown": json.dumps({"numbers": [3, 12, 69], "target": 84}),
    "countdown-ltr": json.dumps({"numbers": [1, 2, 3, 4], "target": 13}),
    "knights-knaves": json.dumps({"names": ["Amelia", "Mia", "Ian"], "solution": [True, True, False]}),
}
PIECES = [
    "<SOLUTION>", "</SOLUTION>", "</SOLU", "\\boxed{", "{", "}", "\\", "(", ")", "[", "]", "\\frac{", "}{", "$", "**",
    "0", "3", "12", "69", "9" * 13, "+", "-", "*", "/", "=", "=84", "x", "×", "−", ".", ",", "1,", "%", "answer is",
    "####", "Amelia", "Mia", "MIA", "Mıa", "Ian", "İan", "knight", "knaves", "is a", "are", "isn't", "not", "neither",
    "nor", "none", "all", "others", "only", "or", "and", "says", "it is false that", "there are no", "->", "=>", "!=",
    "~", "¬", " ", "\n", "\n\n", "\t", "\r", "\x00", "\u200f", "\u202e", "\ud800", "\udfff", "٣", "３", "³", "½", "①",
    "𝟙", "ſ", "K", "’s",
]  # fmt: skip

anything = st.text(st.characters(exclude_categories=()), max_size=200)  # lone surrogates too
pieced = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
spaced = st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join)
tagged = st.one_of(pieced, spaced, anything).map(lambda text: f"<SOLUTION>{text}</SOLUTION>")
texts = st.one_of(anything, pieced, spaced, tagged)
thorough = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@pytest.fixture(autouse=True, scope="module")
def _nothing_caught():
    """What our own code raises is caught and said; here nothing may have been."""
    yield
    assert not scorers._logged


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("task", GOLDS)
def test_every_scorer_has_a_verdict(task, fallback):
    scorer = make_scorer(task, fallback=fallback)

    @thorough
    @given(texts)
    @example("<SOLUTION>3+12+69+</SOLUTION>")  # ended a training at its second step
    @example("<SOLUTION>Mıa is a knight</SOLUTION>")  # (?i) reads ı as i, and casefold does not
    @example("3+12+69+")
    def judged(text):
        assert scorer.score([text], [GOLDS[task]])[0] in (0.0, 1.0)
        assert scorer.errors == 0

    judged()


@pytest.mark.parametrize("task", [*GOLDS, "math500"])
def test_every_reader_answers(task):
    strict, lenient = task_reward(task), task_reward(task, "plain")

    @thorough
    @given(texts)
    @example("<SOLUTION>3+12+69+</SOLUTION>")
    def read(text):
        for fallback, block in product((False, True), repeat=2):
            found = scorers.final_answer(text, fallback, block)
            assert found is None or found in text
            assert found != ""
            assert extract_answer(text, fallback) != ""
        for reward in (strict, lenient):
            assert reward.extract(text) is None or reward.extract(text) in text
            assert isinstance(reward.key(text), str | None)
            assert isinstance(distinct_solution(task, text, reward.fallback), str | None)

    read()


@thorough
@given(st.lists(st.sampled_from([*"0123456789+-*/()", "12", "69"]), max_size=24))
@example(["3", "+", "12", "+", "69", "+"])
def test_an_expression_is_read_as_python_reads_it(tokens):
    """Whatever the tokens, our tree is there exactly where Python's parser finds a legal one without signs and calls."""
    import ast

    legal = (ast.Expression, ast.BinOp, ast.Constant, ast.operator)
    said = " ".join(str(int(t)) if t.isdigit() else t for t in tokens)
    try:
        python = all(isinstance(node, legal) for node in ast.walk(ast.parse(said, mode="eval")))
    except SyntaxError:
        python = False
    python &= "/ /" not in said and "* *" not in said
    assert (expressions.parse(tokens) is not None) == python


@thorough
@given(st.one_of(anything, st.text('{}[]":,0123456789eE.-+ numbersptagniol', max_size=80)))
@example('{"numbers": [1], "target": Infinity}')
@example('{"names": [1, 2], "solution": [1, 0]}')
@example('{"names": [""], "solution": [1]}')
@example("[" * 100_000)
def test_no_gold_raises_either(gold):
    for task in GOLDS:
        scorer = make_scorer(task)
        assert scorer.score(["<SOLUTION>1</SOLUTION>"], [gold])[0] in (None, 0.0, 1.0)
        assert scorer.errors == 0


# ---- huge ----------------------------------------------------------------------------------------------------------

LONG = 1_000_000
HUGE = [
    piece * (LONG // len(piece))
    for piece in ["(", ")", "9", "9+", "\\boxed{", "{", "}", "\\", "\0", "\ud800", "\n", " "]
]
HUGE += [
    piece * (LONG // len(piece))
    for piece in ["<SOLUTION>", "answer ", "1,", "a\n\n", "\n \n", "Amelia,", "knight ", "-", "٣"]
]
FULL = [f"<SOLUTION>{piece * (19_900 // len(piece))}</SOLUTION>" for piece in PIECES]  # just short enough to be read
FULL += [f"<SOLUTION>x{'-' * 19_000}</SOLUTION>"]
FULL += [
    f"<SOLUTION>{'Amelia,' * 1_500}{'knight,' * 1_300}</SOLUTION>"
]  # every name times every role: 2 million claims
FULL += [f"<SOLUTION>{'9+' * 990}9</SOLUTION>", f"<SOLUTION>{'(' * 99}9{')' * 99}</SOLUTION>"]


def lines_run(call) -> int:
    """Lines of our own code that a call runs: its work, by count and not by the clock."""
    ours = {module.__file__ for module in (expressions, knights, scorers, extract_module)}
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if frame.f_code.co_filename not in ours:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("task", but_few(GOLDS, fast=[0]))
def test_huge_text_is_read_in_proportion_to_its_length(task):
    scorer = make_scorer(task, fallback=True)
    tracemalloc.start()
    try:
        for text in HUGE + FULL:
            tracemalloc.reset_peak()
            at_rest = tracemalloc.get_traced_memory()[0]
            assert scorer.score([text], [GOLDS[task]])[0] in (0.0, 1.0)
            distinct_solution(task, text, fallback=True)
            assert tracemalloc.get_traced_memory()[1] - at_rest < 200 * len(text) + 20_000_000
    finally:
        tracemalloc.stop()
    for text in FULL[-4:] + FULL[:: len(GOLDS) * 2]:
        assert lines_run(lambda text=text: scorer.score([text], [GOLDS[task]])) < 60 * len(text) + 5_000
    assert scorer.errors == 0


def test_work_grows_with_the_text_and_not_with_its_square():
    def work(n):
        half = n // 14
        return lines_run(lambda: knights.read_assignment("Amelia," * half + "knight," * (half - 1), ["Amelia", "Mia"]))

    assert work(16_000) < 2.2 * work(8_000)


def test_a_longer_text_is_not_looked_at(monkeypatch):
    def must_not(*_):
        raise AssertionError("looked at")

    right = "<SOLUTION>4+2*1+3</SOLUTION>"
    gold = json.dumps({"numbers": [1, 2, 3, 4], "target": 9})
    with make_scorer("countdown-ltr", fallback=True) as scorer:
        fits = " " * (scorers.MAX_CHARACTERS - len(right)) + right
        assert scorer.score([fits], [gold]) == [1.0]
        monkeypatch.setattr(scorers, "_final_answer", must_not)
        assert scorer.score([" " + fits], [gold]) == [0.0]
        assert scorer.errors == 0
        assert scorer.score([fits], [gold]) == [0.0]
        assert scorer.errors == 0  # the reader's failure is no answer, and said
    scorers._logged.clear()


def test_a_judge_of_ones_own_is_shown_no_endless_answer(monkeypatch):
    seen = []
    _register(monkeypatch, lambda answer, gold: seen.append(len(answer)) or 1.0)
    limit = scorers.MAX_ANSWER_CHARACTERS
    make_scorer("odd").score([f"<SOLUTION>{'x' * n}</SOLUTION>" for n in (limit, limit + 1)], ["", ""])
    assert seen == [limit, 0]


# ---- and if it raises all the same ---------------------------------------------------------------------------------


def _register(monkeypatch, judge):
    from dataclasses import replace

    monkeypatch.setitem(scorers.SCORERS, "odd", judge)
    monkeypatch.setitem(TASKS, "odd", replace(get_task("countdown"), name="odd", scorer="odd"))


def test_a_scorer_of_ours_that_raises_costs_one_completion(monkeypatch, caplog):
    honest = expressions.parse

    def breaks(tokens):
        return honest(tokens) if "69" in tokens else [].pop()

    monkeypatch.setattr(expressions, "parse", breaks)
    gold, logged = json.dumps({"numbers": [3, 12], "target": 15}), []
    bad, good = "<SOLUTION>3+12</SOLUTION>", "<SOLUTION>3+12+69</SOLUTION>"
    reward = task_reward("countdown")
    columns = {"log_metric": lambda name, value: logged.append((name, value))}
    with caplog.at_level(logging.WARNING):
        assert reward([bad, good, bad], [gold, GOLDS["countdown"], gold], **columns) == [0.0, 1.0, 0.0]
        assert reward([good, bad], [GOLDS["countdown"], gold], **columns) == [1.0, 0.0]
        assert reward([good], [GOLDS["countdown"]], **columns) == [1.0]
    assert logged == [("errors", 2.0), ("errors", 1.0), ("errors", 0.0)]
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert "scorer countdown raised IndexError" in said[0]
    assert reward.key(bad) is None  # its own solution, not another's
    scorers._logged.clear()


def test_a_judge_of_ones_own_that_raises_is_ones_own_to_fix(monkeypatch):
    def broken(answer, gold):
        raise KeyError("mine")

    _register(monkeypatch, broken)
    with pytest.raises(KeyError, match="mine"):
        make_scorer("odd").score(["<SOLUTION>1</SOLUTION>"], ["1"])
    assert not task_reward("odd").built_in
    assert task_reward("countdown").built_in


# ---- which solution it is ------------------------------------------------------------------------------------------


def test_one_solution_however_it_is_spelt():
    reward = task_reward("countdown-ltr", "plain")
    spelt = ["3+4*2-1", "03+4*2-1", " 3+4*2-1", "3 + 4 × 2 − 1", "3+4*2-1=13", "$3+4*2-1$", "so\n3+4*2-1."]
    assert reward(spelt, [GOLDS["countdown-ltr"]] * len(spelt)) == [1.0] * len(spelt)
    assert {reward.key(text) for text in spelt} == {"3+4*2-1"}
    assert reward.key("4+3*2-1") != reward.key("3+4*2-1")
    sums = task_reward("countdown", "plain")
    assert sums.key("3+12+69") == sums.key("(69 + 12) + 3") != sums.key("3*12+69")
    assert sums.key("3+12+69+") is None


def test_right_answers_of_mathematics_are_one():
    same = [r"\boxed{\frac{1}{2}}", "<SOLUTION>0.5</SOLUTION>", r"\boxed{1/2}"]
    for reward in (task_reward("math500"), verifiable_reward):
        assert len({scorers.solution_key(reward, text) for text in same}) == 1
    assert len({task_reward("knights-knaves").key(text) for text in ("A: knight", "A isn't a knave")}) == 1


def test_the_solution_as_a_plain_reward_gives_it():
    class Reads:
        def extract(self, completion):
            return completion[:1] or None

    assert scorers.solution_key(Reads(), "abc") == "a"
    assert scorers.solution_key(Reads(), "") is None
    assert scorers.solution_key(len, "no answer in here") is None
    assert scorers.solution_key(None, r"\boxed{3}") == "3"
