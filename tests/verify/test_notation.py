"""What counts as an answer, in all the ways it may be written, and what only looks like one."""

import logging
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sage_rlvr.verify import Verifier, extract_answer
from sage_rlvr.verify.judge import MathJudge
from sage_rlvr.verify.notation import as_share, equations, plain, tidy, without_percent, without_unit
from sage_rlvr.verify.question import read_for, repeats

STEADY = settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
NOT_FIVE = [
    "1+1=5", "6 = 5", "0=5", "1+1=2=5", "x+1=5", r"\sqrt{4}=5", r"\pi=5", "6 | 5", r"6 \mid 5", r"6 \lor 5", r"6 \land 5",
    r"6 \to 5", r"6 \implies 5", r"\neg 5", r"\le 5", r"\ge 5", "6 & 5", r"6 \\ 5", r"6 \lor \frac{5}{1}", r"5\%", "5%",
    "5 percent", r"5 \text{ percent}", "5 million", r"5 \text{ million}", r"5 \text{ thousand dollars}", "5 dozen",
    r"5 \text{ or more}", r"5 \text{ and a half}", r"5 \text{ halves}", r"5 \text{ squared}", "5 theta", "6, 5", "5, 6",
    "1, 2, 3, 4, 5", r"\{5, 6\}", r"5 \text{ or } 6", r"\pm 5", "x<5", r"x \neq 5", "5–6", "1+1=5, 2+3=5",
]  # fmt: skip
FIVE = [
    "x=5", "x = 5", "f(2)=5", "AB = 5", "m+n=5", r"\text{Area} = 5", r"\angle ABC = 5", r"\theta=5", "x_1=5", "a_{10} = 5",
    r"\frac{a}{b}=5", "2+3=5", "x=y=5", "x=4+1=5", "5=5", r"\frac{10}{2} = 5", "5 dollars", "5 eggs", r"5 \text{ eggs}",
    "5 square feet", r"5 \text{ times}", r"5\text{ cm}^2", "5°", r"5^\circ", r"\$5", "5 apples each", r"\approx 5", "+5",
    r"500\%", r"x \in \{5\}", "|-5|", "5.0", "05",
]  # fmt: skip
PAIRS = [
    ("18", "18 dollars", True), ("18", "18 eggs", True), ("18", "19 eggs", False), ("30", "30°", True),
    (r"30^\circ", "30 °", True), ("1000", r"1\,000", True), ("1000", r"1,\!000", True), ("1000000", r"1\,000\,000", True),
    ("1000", r"1\,00", False), ("-3", "–3", True), ("3", "–3", False), ("(-3, 1)", "(–3, 1)", True),
    ("(1,2)", r"\langle 1,2\rangle", True), (r"\langle 1, 2 \rangle", "(1,2)", True), ("(2,1)", r"\langle 1,2\rangle", False),
    (r"[0,\infty)", r"x\ge 0", True), (r"[0,\infty)", r"x \geq 0", True), (r"[0,\infty)", "x > 0", False),
    (r"(-\infty,3)", "3 > x", True), ("5000000", "5 million", True), ("5000000", r"5 \text{ million}", True),
    ("24", "2 dozen eggs", True), ("1, 2", "x=1, x=2", True), ("1, 2", "1+1=1, 2=2", False),
    (r"50\%", "50", True), (r"50\%", r"50\%", True), (r"50\%", "0.5", True), (r"50\%", r"0.5\%", False),
    (r"50\%", r"50.0\%", True), (r"50\%", r"5000\%", False), (r"12.5\%", "12.5", True),
    ("0.5", r"50\%", True), (r"\frac{1}{2}", "50%", True), (r"\frac{2}{3}", r"66.6667\%", True), ("50", r"50\%", False),
    ("1e-7", "0", False), ("1e-7", "0.0", False), ("0.0000001", "0.0", False), ("1e-7", "0.0000002", False),
    ("1.3e-23", "2e-23", False), ("1.3e-23", r"1.3 \times 10^{-23}", True), ("0", "0.0000001", False), ("0", "0.0", True),
    (r"\frac{1}{3}", "0.333333", True), (r"\frac{1}{70}", "0.014286", True), (r"\pi", "3.141593", True), (r"\pi", "3.14", False),
]  # fmt: skip


def right(judge, gold, answer):
    return judge.is_right(judge.parse_gold(gold), answer)


@pytest.mark.parametrize("answer", NOT_FIVE)
def test_what_is_not_five(answer, judge):
    assert not right(judge, "5", answer)


@pytest.mark.parametrize("answer", FIVE)
def test_what_is_five(answer, judge):
    assert right(judge, "5", answer)
    assert not right(judge, "6", answer)


@pytest.mark.parametrize(("gold", "answer", "verdict"), PAIRS)
def test_pairs(gold, answer, verdict, judge):
    assert right(judge, gold, answer) == verdict


# ---- properties ------------------------------------------------------------------------------------------------------

INTEGERS = st.integers(-(10**12), 10**12)
SPELLED = [
    "{}",
    "{}.0",
    "x = {}",
    "${}$",
    r"\({}\)",
    "**{}**",
    "{}.",
    r"\frac{{{}}}{{1}}",
    "{} eggs",
    r"{} \text{{ cm}}",
]


@STEADY
@given(INTEGERS, st.sampled_from(SPELLED), st.sampled_from(SPELLED), st.sampled_from([-1, 1, 7]))
def test_an_integer_equals_itself_in_any_spelling_and_no_neighbour(n, one, other, step):
    judge = _judge()
    assert right(judge, one.format(n), other.format(n))
    assert not right(judge, one.format(n), other.format(n + step))
    assert not right(judge, one.format(n + step), other.format(n))


@STEADY
@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6), st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_rationals_are_equal_exactly_when_they_are(a, b, c, d):
    same = Fraction(a, b) == Fraction(c, d)
    left, other = rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{c}}}{{{d}}}"
    assert right(_judge(), left, other) == same == right(_judge(), other, left)
    assert right(_judge(), left, f"{3 * a}/{3 * b}")


@STEADY
@given(st.integers(1, 999), st.integers(1, 999), st.integers(4, 25))
def test_small_values_are_equal_only_when_near(a, b, power):
    gold, answer = f"{a}e-{power}", rf"{b} \times 10^{{-{power}}}"
    assert right(_judge(), gold, answer) == (a == b)


_JUDGE = []


def _judge():
    if not _JUDGE:
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        _JUDGE.append(MathJudge())
    return _JUDGE[0]


PIECES = st.sampled_from(
    ["\\", "{", "}", "$", "=", "%", r"\%", r"\text{", r"\frac", r"\boxed{", r"\langle", r"\rangle", "<SOLUTION>", "</SOLUTION>",
     "million", " or ", "–", "°", "5", "1\\,000", "x", "(", ")", "[", "^", "_", ",", " ", "\n", "~", "\ud800", "٣", "∞"]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=60).map("".join))


@settings(STEADY, max_examples=300)
@given(TEXTS, TEXTS, TEXTS)
def test_no_text_raises_outside_the_pool(question, gold, answer):
    """These run in the trainer's own process, without a limit."""
    extract_answer(answer, fallback=True)
    read_for(question, gold, answer)
    repeats(question, gold, answer)
    for read in (tidy, plain, without_unit, without_percent, as_share, equations):
        read(answer)


@settings(STEADY, max_examples=3)
@given(
    st.lists(
        st.tuples(TEXTS, st.sampled_from(["5", r"\frac{1}{2}", "x^2", "(1,2)", r"50\%"])), min_size=20, max_size=20
    )
)
def test_no_text_raises_or_hangs_the_pool(pairs):
    texts, golds = zip(*pairs)
    verdicts = _verifier().judge([f"<SOLUTION>{t}</SOLUTION>" for t in texts], golds, ["What is $5+x^2$?"] * 20)
    assert all(v.score in (0.0, 1.0) for v in verdicts)


@pytest.mark.parametrize(
    "text",
    ["5" * 1990, "{" * 1990, r"\langle" * 280, "x=" * 990, "5 " + "ab " * 600, "1\\,000" * 300, "(" * 1990, "$" * 1990],
)
def test_reading_a_long_answer_takes_no_time_to_speak_of(text):
    """2,000 characters, the longest answer that is read: steps that grow with the square of that would still end."""
    repeats(text, text, text)
    read_for(text, "5", text)


def _verifier():
    if len(_JUDGE) < 2:
        _judge()
        _JUDGE.append(Verifier(workers=2, timeout_s=10))
    return _JUDGE[1]


@pytest.fixture(scope="module", autouse=True)
def _closed():
    yield
    if len(_JUDGE) > 1:
        _JUDGE.pop().close()
