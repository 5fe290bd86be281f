"""An answer that only repeats the question earns nothing; a value that happens to stand there still does."""

import re

import pytest
from test_parity import golds, needs_data, rows

from sage_rlvr.errors import UserError
from sage_rlvr.verify import Verifier, verifiable_reward
from sage_rlvr.verify.question import read_for, repeats

TIMES = r"What is $54 \times 46$?"
FACTOR = "Factor $x^2 + 5x + 6$."
CASES = [  # question, gold, answer, score
    (TIMES, "2484", r"54 \times 46", 0.0),
    (TIMES, "2484", r"46 \cdot 54", 0.0),
    (TIMES, "2484", r"(54)(46)", 0.0),
    (TIMES, "2484", r"x = 54 \times 46", 0.0),
    (TIMES, "2484", r"54 \times 46 = 54 \cdot 46", 0.0),
    (TIMES, "2484", r"The answer is $54 \times 46$.", 0.0),
    (TIMES, "2484", "2484", 1.0),
    (TIMES, "2484", r"54 \times 46 = 2484", 1.0),
    ("What is 54*46?", "2484", "54*46", 0.0),
    (FACTOR, "(x+2)(x+3)", "x^2 + 5x + 6", 0.0),
    (FACTOR, "(x+2)(x+3)", "6+5x+x^2", 0.0),
    (FACTOR, "(x+2)(x+3)", "(x+3)(x+2)", 1.0),
    (r"Simplify $\frac{12}{18}$.", r"\frac{2}{3}", r"\frac{12}{18}", 0.0),
    (r"Simplify $\frac{12}{18}$.", r"\frac{2}{3}", "2/3", 1.0),
    (r"Write $\frac{3}{20}$ as a decimal.", "0.15", r"\frac{3}{20}", 0.0),
    (r"Is $\frac{3}{4}$ or $\frac{2}{3}$ larger?", r"\frac{3}{4}", "3/4", 1.0),
    ("Which of 3, 5, 7 is even plus one?", "5.0", "5", 1.0),
    ("Which of $x^2+1$ and $x^2-1$ has no real root?", "x^2+1", "x^2 + 1", 1.0),
    ("Which of $x^2+1$ and $x^2-1$ has no real root?", "x^2+1", "1+x^2", 1.0),
    (r"Simplify $\sqrt{8}$.", r"2\sqrt{2}", r"\sqrt{8}", 0.0),
    (r"Find the length if $AB = \sqrt{53}$.", r"\sqrt{53}", r"\sqrt{53}", 1.0),
    ("If $x = 5$ and $y = 7$, find the smaller.", "5", "x = 5", 1.0),
    ("If $x=3$, find $2x+1$.", "7", "2x+1 = 7", 1.0),
    ("If $x=3$, find $4x$.", "7", "2x+1 = 7", 0.0),
    ("What percent of 8 is 4?", "50", r"50\%", 1.0),
    ("What percent of 8 is 4?", "50", r"0.5\%", 0.0),
    ("Find 50% of 10 apples. How many are there?", "5", r"5\%", 0.0),
    ("", "2484", r"54 \times 46", 1.0),
]


@pytest.mark.parametrize(("question", "gold", "answer", "score"), CASES)
def test_cases(question, gold, answer, score, verifier):
    assert verifier.score([f"<SOLUTION>{answer}</SOLUTION>"], [gold], [question]) == [score]


def test_without_questions_it_is_judged_as_before_and_one_verdict_is_not_anothers(verifier):
    text = [r"\boxed{54 \times 46}"] * 3
    assert verifier.score(text, ["2484"] * 3) == [1.0] * 3
    judged = verifier.judge(text, ["2484"] * 3, [TIMES, None, "Another one?"])
    assert [(v.score, v.reason) for v in judged] == [(0.0, "repeats the question"), (1.0, "right"), (1.0, "right")]
    assert judged[0].answer == r"54 \times 46"
    with pytest.raises(UserError, match="2 questions"):
        verifier.score(text, ["2484"] * 3, [TIMES] * 2)


def test_an_unverifiable_gold_stays_one_whatever_is_repeated(verifier):
    assert verifier.score([r"\boxed{54 \times 46}"], [None], [TIMES]) == [None]


def test_trls_prompts_are_the_questions():
    chat = [{"role": "system", "content": "Use $1+1$."}, {"role": "user", "content": TIMES}]
    for prompt in (TIMES, chat):
        told = {"completions": [r"\boxed{54 \times 46}", r"\boxed{2484}"], "answer": ["2484"] * 2}
        assert verifiable_reward(**told, prompts=[prompt] * 2) == [0.0, 1.0]
    assert verifiable_reward([r"\boxed{1+1}"], ["2"], prompts=[chat]) == [1.0]  # the system turn asks nothing


@needs_data
@pytest.mark.slow
def test_echoes_of_a_benchmark_earn_next_to_nothing_and_golds_all_they_did(verifier):
    asked = [row["problem"] for row in rows("math500.jsonl")][:250]
    right = golds("math500.jsonl")[:250]
    longest = [max(re.findall(r"\$(.+?)\$", q, re.DOTALL) or ["none"], key=len) for q in asked]
    texts = [f"<SOLUTION>{formula}</SOLUTION>" for formula in longest]
    with Verifier(workers=2, timeout_s=2) as hasty:  # some formulas take SymPy forever, and earn nothing either way
        told = hasty.judge(texts, right, asked)
        assert sum(v.score for v in told) <= 2
        ends = [i for i, v in enumerate(told) if v.reason != "timeout"]  # the others would take as long again
        assert sum(hasty.score([texts[i] for i in ends], [right[i] for i in ends])) >= 6  # without the question
    assert verifier.score([f"<SOLUTION>{g}</SOLUTION>" for g in right], right, asked) == [1.0] * 250
    assert not any(repeats(q, g, g) for q, g in zip(asked, right))
    assert all(read_for(q, g, g) == g or "=" in g for q, g in zip(asked, right))
