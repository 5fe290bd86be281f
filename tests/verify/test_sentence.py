"""Answers given as a sentence: those Math-Verify itself reads in the bare text are right, and no way of hedging pays."""

import pytest
from math_verify import parse, verify

from sage_rlvr.verify.sentence import stated

SENTENCES = [
    ("5", "The answer is 5."),
    ("5", "The answer is 5"),
    ("5", "Answer: 5"),
    ("5", "**Answer:** 5"),
    ("5", "The final answer is $5$."),
    ("5", r"The final answer is: \(5\)."),
    ("5", "There are 5 such numbers."),
    ("5", "There are $5$ such numbers."),
    ("5", "Therefore, the answer is 5."),
    ("5", "Thus, $m+n=5$."),
    ("5", "The value of $x$ is $5$."),
    ("5", "The least possible value is 5."),
    ("5", "So x = 5"),
    ("-5", "The answer is -5."),
    ("204", "The walk takes 204 minutes."),
    ("1000", "There are 1,000 of them."),
    ("36", "36 is the answer."),
]
TURNED = [
    "The answer is not 5.",
    "The answer isn't 5.",
    "It cannot be 5.",
    "5 or 7",
    "The answer is 5 or 7.",
    "It is either 5, or it is seven.",
    "Maybe it is 5",
    "The answer might be 5",
    "5 and 7",
    "between 5 and 7",
    "It lies between five and 5",
    "at least 5",
    "There are at least 5 such numbers.",
    "The answer is more than 5.",
    "It is about 5 km",
    "It takes up to 5 minutes",
    "5 if n is odd",
    "The answer is 5. No, it is six.",
    "5 is wrong, the answer is 6.",
    "There are 5 numbers and the answer is 6.",
    "The answer for n=5 is 6.",
    "The answers are 5, 6, 7.",
    "$5$, then $7$",
    "The answer is $5$ in case 7",
    r"The answer is $5$ \pm 1",
    "A multiple of 5 will do",
    "The square root of $5$ it is",
    "The answer is negative 5",
    "The answer is 5 million",
    "The answer is 5 and a half",
    "It is 5 halves",
    "The area is 5 pi square units",
    "The answer is 5 x",
    "The answer is 5 squared",
    "The answer is 5!",
    "The answer is 5^2",
    "The answer is ≥ 5",
    r"The answer is \ge 5",
    "It is the 5th one",
    "5 cd",
    r"\text{The answer is 5 or 7}",
]


@pytest.mark.parametrize(("gold", "answer"), SENTENCES)
def test_a_sentence_is_an_answer(gold, answer, judge):
    assert verify(parse(gold), parse(answer))  # the peer, on the bare text
    assert judge.is_right(judge.parse_gold(gold), answer)
    assert not judge.is_right(judge.parse_gold(str(int(gold) + 2)), answer)


@pytest.mark.parametrize(
    "answer", [r"The probability is $\frac{3}{4}$.", "The probability is 3/4.", r"It is \frac{3}{4}."]
)
def test_and_what_it_states_need_not_be_an_integer(answer, judge):
    assert judge.is_right(judge.parse_gold("0.75"), answer)


@pytest.mark.parametrize("answer", TURNED)
def test_hedging_does_not_pay(answer, judge):
    assert not judge.is_right(judge.parse_gold("5"), answer)


def test_an_answer_is_read_one_way(judge):
    """Whatever stands in a sentence, at most one of different golds is met, and none that the thing alone would not meet."""
    golds = {gold: judge.parse_gold(gold) for gold in ("5", "7", "-2", "12", "57", "35", "x", r"\frac{5}{7}")}
    terms = ["5", "x", "5-7", "5=7", "5/7", "5,7", "5, 7", "5 7", "5^7", "(5,7)", "5:7", "5*7", "5_7", r"\frac{5}{7}"]
    frames = [
        "The answer is %s.",
        "The answer is $%s$.",
        "seven is $%s$ here",
        "$x$ is %s here",
        r"\text{It is } %s",
    ]
    for term in terms:
        alone = {gold for gold, parsed in golds.items() if judge.is_right(parsed, term)}
        for frame in frames:
            met = {gold for gold, parsed in golds.items() if judge.is_right(parsed, frame % term)}
            assert len(met) <= 1, (frame % term, met)
            assert met <= alone, (frame % term, met)


def test_a_formula_is_no_sentence():
    for text in ("x^2 - 3x", r"\frac{1}{2}", "5", "5 cm", r"12 \text{ cm}", "(1, 2)", r"\text{even}", "a + b + c", ""):
        assert stated(text) is None


def test_through_the_whole_verifier(verifier):
    answers = ["The walk takes 204 minutes.", "The walk takes 205 minutes.", "The answer is not 204."]
    scores = verifier.score([f"<SOLUTION>{answer}</SOLUTION>" for answer in answers], ["204"] * 3)
    assert scores == [1.0, 0.0, 0.0]
