import random
import time

import pytest

from sage_rlvr.verify import extract_answer
from tests.slow import but_few

SOLUTION = [
    ("work <SOLUTION>42</SOLUTION>", "42"),
    ("work <SOLUTION> 42 ", "42"),  # generation stopped at the closing tag, and the backend cut it off
    ("<SOLUTION>1</SOLUTION> no, <SOLUTION>2</SOLUTION> bye", "2"),
    ("<SOLUTION>1</SOLUTION> then <SOLUTION>2", "2"),
    ("<SOLUTION>\n\\frac{1}{2}\n</SOLUTION>", r"\frac{1}{2}"),
    (r"<SOLUTION>so \boxed{7}</SOLUTION>", "7"),
    (r"\boxed{3} <SOLUTION>4</SOLUTION>", "4"),  # the tag comes before the box
    (r"I use <SOLUTION> tags at the end. So it is \boxed{5}", "5"),
    ("<SOLUTION>42</SOLU", "42"),
    ("<SOLUTION>42</", "42"),
    ("<SOLUTION>x <", "x <"),
    (r"<SOLUTION>\{1, 2\}", r"\{1, 2\}"),  # escaped braces are characters
]


@pytest.mark.parametrize(("text", "answer"), SOLUTION)
def test_solution_tag(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    ["", "the answer is 42", "<SOLUTION></SOLUTION>", "<SOLUTION>  ", "<solution>4</solution>", r"\boxed{}", r"\boxed{4",
     r"\boxed 4", r"\boxed{4} and <SOLUTION></SOLUTION>"],
)  # fmt: skip
def test_no_answer(text):
    assert extract_answer(text) is None


def test_a_solution_cut_inside_its_latex_is_no_answer():
    assert extract_answer(r"<SOLUTION>\frac{1}{2") is None
    assert extract_answer(r"<SOLUTION>\boxed{1") is None
    assert extract_answer(r"<SOLUTION>\frac{1}{2</SOLUTION>") == r"\frac{1}{2"  # not cut: that is what it says


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1}, then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x : x > 0 \right\}}", r"\left\{ x : x > 0 \right\}"),
        (r"\boxed{\boxed{9}}", "9"),
        (r"\boxed {8}", "8"),
        (r"\boxed{1} and \boxed{2", "1"),  # the last one that is whole
        (r"a } b { \boxed{6} }", "6"),
        (r"\boxed{a \\} b", r"a \\"),
    ],
)
def test_boxed(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 42. I am sure.", "42"),
        ("The answer is 1. No, the answer is $x = 2$.\nDone", "$x = 2$"),
        ("**Answer:** 3.5", "3.5"),
        ("8 + 4 = 12\n#### 12", "12"),
        ("first 3, then -17 of 5 apples, 1,234 in all", "1,234"),
        ("it is -7", "-7"),
        ("10-7", "7"),
        ("3/4 of it", "3/4"),
        ("no number", None),
        (r"answer is 3, I mean \boxed{4}", "4"),
    ],
)
def test_fallback(text, answer):
    assert extract_answer(text, fallback=True) == answer


@pytest.mark.parametrize(("size", "seconds"), but_few([(100_000, 30), (400_000, 48)], fast=[0]))
def test_extraction_is_linear_on_hostile_text(size, seconds):
    # Quadratic work on so much of any of these would take minutes, or half an hour; the guard is generous, and of this process
    # alone. The larger finds work with a tenth of the smaller's constant, as a megabyte in 300 s would.
    units = [r"\boxed{", "<SOLUTION>", "{", "}", "\\", r"\boxed{1}", "answer is ", "answer ", "1", "1,", "-", "####", "</",
             "\x00", "\ud800", "1/", ".", " ", "\n"]  # fmt: skip
    start = time.process_time()
    for unit in units:
        text = unit * (size // len(unit))
        extract_answer(text, fallback=True)
        extract_answer("<SOLUTION>" + text)
        extract_answer(r"\boxed{" + text)
    assert extract_answer(r"\boxed{" * (10 * size // 7) + "<SOLUTION>5") == "5"  # 10 MB of the one
    assert extract_answer("a" * (10 * size) + r"\boxed{5}") == "5"
    assert time.process_time() - start < seconds


def test_any_text_gives_a_substring_or_nothing():
    rng = random.Random(0)
    pieces = ["<SOLUTION>", "</SOLUTION>", r"\boxed{", "{", "}", r"\{", "\\", "x", "7", " ", "\n", "answer is ", "####"]
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 12)))
        for fallback in (False, True):
            answer = extract_answer(text, fallback)
            assert answer is None or (answer and answer == answer.strip() and answer in text)
