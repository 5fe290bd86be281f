"""Eq. 13 counted by hand."""

import time

import pytest

from sage_rlvr.analysis.patterns import HINTS, PATTERNS, TABLE, chosen_patterns, has_pattern, patterns, register_pattern
from sage_rlvr.errors import UserError
from tests.analysis.stores import make_store

LET, FORM, NO = "Let x be the number.", "It is of the form 2k+1.", "Seven."
THIS = "Assume for contradiction that it is odd. This leads to a contradiction."


@pytest.fixture
def store(tmp_path):
    rows = [
        ("aime", "a", 0, 0, LET, 1.0), ("aime", "a", 0, 1, NO, 1.0),
        ("aime", "a", 0, 2, NO, 1.0), ("aime", "a", 0, 3, LET + THIS, 1.0),
        ("aime", "b", 0, 0, LET, 1.0), ("aime", "b", 0, 1, LET, 0.0), ("aime", "b", 0, 2, FORM, 0.0),
        ("aime", "c", 0, 0, LET + FORM + THIS, 0.0),  # never right: not in N
        ("aime", "d", 0, 0, LET, None),  # unverifiable: not there at all
    ]  # fmt: skip
    return make_store(tmp_path / "run", rows)


def test_frequency_is_a_mean_over_problems_of_shares_among_right_solutions(store):
    found = patterns(store)["aime"]
    assert (found.problems, found.unsolved, found.solutions) == (2, 1, 5)
    assert found.n == {"a": 4, "b": 1}
    setup, contradiction = found.frequency["constraint set-up"], found.frequency["contradiction"]
    assert setup.per_problem == pytest.approx((2 / 4 + 1 / 1) / 2)
    assert setup.pooled == pytest.approx(3 / 5)
    assert setup.count == 3
    assert contradiction.per_problem == pytest.approx((1 / 4 + 0) / 2)
    assert contradiction.pooled == pytest.approx(1 / 5)
    assert found.frequency["structural"].count == 0
    assert found.hits["constraint set-up"] == {"a": 2, "b": 1}
    assert setup.low <= setup.per_problem <= setup.high


def test_first_cuts_by_index(store):
    found = patterns(store, first=1)["aime"]
    assert found.n == {"a": 1, "b": 1}
    assert found.frequency["constraint set-up"].per_problem == 1.0


@pytest.mark.parametrize(
    ("name", "text", "there"),
    [
        ("constraint set-up", "let $x$ be a side", True),
        ("constraint set-up", "LET\n y = 3", True),
        ("constraint set-up", "we denote by s the sum", True),
        ("constraint set-up", "Outlet x", False),
        ("constraint set-up", "the bullet list", False),
        ("constraint set-up", "3 + 4 = 7", False),
        ("structural", "numbers of  the form 4k", True),
        ("structural", "we decompose 12 into primes", True),
        ("structural", "split the sum into two parts", True),
        ("structural", "a form letter", False),
        ("contradiction", "Suppose for the sake of contradiction", True),
        ("contradiction", "which is a contradiction.", True),
        ("contradiction", "this contradicts the minimality", True),
        ("contradiction", "there is no contradiction", False),
    ],
)
def test_detectors(name, text, there):
    assert bool(PATTERNS[name].search(text)) is there
    assert has_pattern(text, name, PATTERNS[name]) is there


@pytest.mark.parametrize(
    "text", ["let" + " " * 10**6, "let " * 250_000, "split " + "w" * 10**6, "suppose a b " * 80_000, "$ " * 500_000]
)
def test_no_text_takes_long(text):
    start = time.monotonic()
    for detector in PATTERNS.values():
        detector.search(text)
    assert time.monotonic() - start < 300  # a quadratic one takes hours: no machine is too busy for this guard


@pytest.mark.parametrize("name", HINTS)
def test_every_phrase_of_a_pattern_holds_one_of_its_hints(name):
    for phrase in TABLE[name]["phrases"]:
        for part in phrase.split("|\\b"):
            assert any(hint in part for hint in HINTS[name]), part


def test_users_add_theirs(store, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("seven: \\bseven\\b\n")
    found = patterns(store, chosen_patterns({"number": "number"}, file))["aime"]
    assert found.frequency["seven"].pooled == pytest.approx(2 / 5)
    assert found.frequency["number"].pooled == pytest.approx(3 / 5)
    assert set(PATTERNS) == {"constraint set-up", "structural", "contradiction"}
    register_pattern("seven", "seven")
    try:
        assert patterns(store)["aime"].frequency["seven"].count == 2
        with pytest.raises(UserError, match="registered already"):
            register_pattern("seven", "7")
    finally:
        del PATTERNS["seven"]


@pytest.mark.parametrize(("regex", "said"), [("(", "not a regular expression"), ("a*", "matches the empty text")])
def test_a_bad_regex_is_refused(regex, said):
    with pytest.raises(UserError, match=said):
        chosen_patterns({"bad": regex})
