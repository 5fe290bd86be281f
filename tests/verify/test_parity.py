"""Verdicts against Math-Verify's own, on pairs made from the real benchmarks. The reference never sees our code."""

import gzip
import json
import logging
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sage_rlvr.verify import Verifier
from sage_rlvr.verify.judge import compare_integers

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the benchmarks are not at ../shared/data")


def rows(name):
    data = (DATA / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    return [json.loads(line) for line in text.decode().strip().split("\n")]


def golds(name):
    field = "solution" if name.startswith("dapo") else "answer"
    return [str(row[field]).rpartition("####")[2].strip() for row in rows(name)]


REFERENCE = r"""
import json, logging, sys
from math_verify import parse, verify

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
box = lambda text: parse(r"\boxed{" + text + "}", parsing_timeout=120)
print(json.dumps([float(verify(box(gold), box(answer), timeout_seconds=120)) for gold, answer in json.load(sys.stdin)]))
"""


def math_verify_says(pairs):
    """In a process of its own: our judge, once made, takes short cuts through Math-Verify that hold for the whole process. With
    time: by itself it gives up after five seconds, which on a busy machine any answer may take."""
    command = [sys.executable, "-c", REFERENCE]
    done = subprocess.run(command, input=json.dumps(pairs), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def ours(pairs):
    with Verifier(workers=2, timeout_s=120) as verifier:
        return verifier.judge([f"<SOLUTION>{answer}</SOLUTION>" for _, answer in pairs], [gold for gold, _ in pairs])


def other_forms(gold, rng):
    """Other spellings of a gold, and near misses."""
    yield gold
    yield f"${gold}$"
    yield gold.replace(r"\frac", r"\dfrac")
    yield gold.replace(r"\left", "").replace(r"\right", "")
    yield re.sub(r"\\frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", gold)
    yield re.sub(r"\\text\{\s*([^{}]*)\}", r"\1", gold)
    yield f"x = {gold}"
    yield gold.replace("(", "[").replace(")", "]")
    yield gold.replace(", ", ",").replace(",", ", ")
    yield gold + "1"
    yield f"-{gold}"
    if re.fullmatch(r"-?\d+", gold):
        n = int(gold)
        yield from (
            f"{n}.0",
            f"0{n}",
            rf"{n}\%",
            rf"{n}^\circ",
            rf"{n} \text{{ cm}}",
            f"{n} apples",
            str(n + rng.randint(1, 9)),
        )
        yield from (rf"\frac{{{2 * n}}}{{2}}", f"{n:,}", rf"\${n}", f"{n}.", f"**{n}**", f"{n} .")
    if m := re.fullmatch(r"\\frac\{(-?\d+)\}\{(\d+)\}", gold):
        a, b = int(m[1]), int(m[2])
        yield from (
            f"{a / b:.8f}",
            f"{a / b:.2f}",
            rf"\frac{{{2 * a}}}{{{2 * b}}}",
            rf"\frac{{{b}}}{{{a}}}",
            rf"{100 * a / b:.4f}\%",
        )
    if "," in gold and not gold.startswith(("(", "[", "\\")):
        parts = [part.strip() for part in gold.split(",")]
        yield from (
            ", ".join(reversed(parts)),
            rf"\{{{gold}\}}",
            f"({gold})",
            " and ".join(parts),
            ", ".join(parts[:-1]),
        )
    if m := re.fullmatch(r"(-?[\d.]+)e(-?\d+)", gold):
        yield from (
            rf"{m[1]} \times 10^{{{m[2]}}}",
            rf"{m[1]} \cdot 10^{{{m[2]}}}",
            f"{float(gold):f}",
            rf"1{m[1]} \times 10^{{{m[2]}}}",
        )
        yield from (gold.upper(), f"{m[1]}e{int(m[2]) + 1}")


STRICTER = (
    "a percent sign the gold does not have: 5% is not 5",
    "a text that cannot be read as a whole: Math-Verify takes a part of it",
)


def why(gold, answer):
    """Why we may differ from Math-Verify on this pair, in the test's own words; None if we may not."""
    if re.fullmatch(r"0*(\d+)", gold) and re.fullmatch(r"\d+\\%", answer):
        return STRICTER[0]
    if gold.startswith(r"\frac{1}{3} E_{1}"):
        return STRICTER[1]
    if r"\!" in gold:
        return "grouped digits: Math-Verify reads 10,\\!080 as a pair"
    if re.sub(r"\s", "", gold) == re.sub(r"\s", "", answer):
        return "the same spelling but for spaces, which Math-Verify lost (it takes the c of 'a + b + c' for a unit)"
    if re.fullmatch(r"[\d.]+e-?\d+", gold):
        return "scientific notation: Math-Verify reads the e as Euler's number"
    if answer.startswith("**"):
        return "bold marks around the answer"
    if re.search(r"[.,;:]$", answer) or re.search(r"[.,;:]$", gold):
        return "punctuation after the answer"
    if re.search(r"\d\.(?!\d)", gold):
        return "a decimal point with no decimals inside (-3./2)"
    return None


@needs_data
@pytest.mark.slow
def test_verdicts_equal_math_verifys_but_for_what_is_explained():
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    rng = random.Random(0)
    chosen = golds("minerva_sample.jsonl") + golds("aime24.jsonl")[:10] + golds("amc23.jsonl")[:10]
    math = list(dict.fromkeys(golds("math500.jsonl")))
    chosen += [g for g in math if re.search(r"text|circ|%|\$|,|cup|in ", g)][:40] + rng.sample(math, 50)
    chosen += ["a + b + c", r"\text{(E)},", "43_5."]  # of MATH's training set; Math-Verify can only spell these
    pairs = []
    for n, gold in enumerate(dict.fromkeys(chosen)):
        forms = [form for form in dict.fromkeys(other_forms(gold, rng)) if form.strip()]
        if re.fullmatch(r"-?\d+", gold):  # nearly all have the same twenty: each of them with every other number
            forms = forms[n % 2 :: 2]
        pairs += [(gold, form) for form in forms]
    pairs += [(g, other) for g, other in zip(chosen, chosen[7:])]
    pairs = list(dict.fromkeys(pairs))
    assert len(pairs) >= 1000

    verdicts = ours(pairs)
    explained = {}
    for (gold, answer), verdict, reference in zip(pairs, verdicts, math_verify_says(pairs)):
        if verdict.score != reference:
            reason = why(gold, answer)
            assert reason, f"{gold!r} against {answer!r}: we say {verdict}, Math-Verify {reference}"
            assert verdict.score == float(reason not in STRICTER), f"{gold!r} against {answer!r}: we say {verdict}"
            explained.setdefault(reason, []).append((gold, answer))
    assert len(explained) == 8, sorted(explained)  # every exception is needed
    assert 0.2 < sum(v.score for v in verdicts) / len(verdicts) < 0.8  # both verdicts are well tried
    assert sum(map(len, explained.values())) < 0.15 * len(pairs)


SHORT_CUTS = """
import json, sys
from math_verify import parse
from math_verify.parser import parse_latex_cached
from sympy import srepr
from sage_rlvr.verify.judge import MathJudge
golds = json.load(sys.stdin)
def read():
    parse_latex_cached.cache_clear()
    return [[x if isinstance(x, str) else srepr(x) for x in parse("\\boxed{" + gold + "}")] for gold in golds]
before = read()
MathJudge()  # takes the short cuts from here on
print(sum(a != b for a, b in zip(before, read())))
"""


@needs_data
@pytest.mark.slow
def test_the_judges_short_cuts_change_no_parse():
    sample = random.Random(1).sample([g for g in dict.fromkeys(golds("math_train.jsonl.gz")) if not g.isdigit()], 300)
    sample += (
        [f"{gold}, {gold}" for gold in sample[:50]] + [f"y = {gold}" for gold in sample[:50]] + ["007", "1,234", "0.50"]
    )
    command = [sys.executable, "-c", SHORT_CUTS]
    done = subprocess.run(command, input=json.dumps(sample), capture_output=True, text=True, timeout=1200, check=True)
    assert done.stdout == "0\n"


def test_plain_integers_need_no_math_verify():
    rng = random.Random(0)
    texts = ["0", "-0", "00", "7", "007", "-7", "10", "999999999999999999", "1000000"]
    texts += [str(rng.randint(-(10**k), 10**k)) for k in range(1, 18)]
    pairs = [(rng.choice(texts), rng.choice(texts)) for _ in range(300)]
    for (gold, answer), reference in zip(pairs, math_verify_says(pairs)):
        assert compare_integers(gold, answer) == reference, (gold, answer)
    assert compare_integers("7", "7.0") is None
    assert compare_integers("٣", "3") is None  # other scripts' digits are Math-Verify's affair


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    [
        ("27.0", "27", 1.0),
        ("8.7e8", "870000000", 1.0),
        ("8.7e8", r"8.7 \times 10^8", 1.0),
        ("8.7e8", "8.7e9", 0.0),
        ("7.4e-12", r"7.4 \cdot 10^{-12}", 1.0),
        ("7.4e-12", "0", 0.0),
        (r"\text{east}", "west", 0.0),
        (r"\text{east}", "East", 1.0),
        ("2", "1 or 2", 0.0),  # hedging does not pay
        ("2", "1, 2, 3", 0.0),
        ("(3,4]", "(3,4)", 0.0),
        (r"\frac{1}{3}", "0.333333", 1.0),
        (r"\frac{1}{3}", "0.33", 0.0),
        ("5", r"5} \boxed{6", 0.0),
        ("1 < x < 2", "(1, 2)", 1.0),
        ("(1, 2)", "1 < x < 2", 1.0),
        ("(1, 2)", "1 < x \\le 2", 0.0),
        (r"0.\overline{3}", r"0.\overline{3}", 1.0),  # the point is not dangling
        (r"0.\overline{3}", r"0.\overline{7}", 0.0),
        (r"0.\overline{3}", "0", 0.0),
        ("0", r"0.\overline{7}", 0.0),
        ("15", "1. 5", 0.0),
        ("15", r"1.\,5", 0.0),
        ("-3./2", r"-\frac{3}{2}", 1.0),  # here it is
        ("43_5.", "43_5", 1.0),
        ("5", r"5.\text{ cm}", 1.0),
        ("5, 6", "5., 6.", 1.0),
        ("11/2", "1 1/2", 0.0),  # one and a half is not five and a half
        ("21/4", "2 1/4", 0.0),
        ("1 1/2", "11/2", 0.0),
        ("12", "1 2", 0.0),
        ("x + 12", "x+ 12", 1.0),
    ],
)
def test_known_verdicts(gold, answer, score, verifier):
    assert verifier.score([f"<SOLUTION>{answer}</SOLUTION>"], [gold]) == [score]
