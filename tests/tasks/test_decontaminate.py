"""Decontamination: on the real sets, and on cases made by hand for each rule and its limits."""

import json
import sys
from unittest.mock import patch

import pytest

from sage_rlvr.tasks import Problem, decontaminate, evaluation_problems, load_task
from sage_rlvr.tasks.decontaminate import normalise


def problems(task, *texts):
    return [Problem(f"{task}-{i}", task, text, "1") for i, text in enumerate(texts)]


def under(limits, train, evaluation):
    """The report under other limits than the module's."""
    module = sys.modules["sage_rlvr.tasks.decontaminate"]
    with patch.dict(vars(module), {name.upper(): value for name, value in limits.items()}):
        return decontaminate(train, {"eval": evaluation})


def reasons(train: str, evaluation: str, **settings) -> list[str]:
    report = under(settings, problems("train", train), problems("eval", evaluation))
    assert len(report.kept) + len(report.dropped) == 1
    return [pair.reason for pair in report.pairs]


@pytest.fixture(scope="module")
def dapo(shared):
    loaded, missing = evaluation_problems(shared)
    return decontaminate(load_task("dapo-math-17k", shared), loaded, missing=missing), loaded


def test_dapo_exact_copies(dapo):
    """The data folder's own caution: 4 MATH-500 and 6 AMC23 problems word for word, at least."""
    report, _ = dapo
    assert report.count("math500", "exact")[1] >= 4
    assert report.count("amc23", "exact")[1] >= 6
    assert report.count("gsm8k", "exact") == (0, 0)
    for pair in report.pairs:
        if pair.reason == "exact":
            assert (
                "".join(filter(str.isalnum, pair.train.question.lower()))[:40]
                == "".join(filter(str.isalnum, pair.evaluation.question.lower()))[:40]
            )


@pytest.mark.parametrize(("task", "known"), [("math500", 18), ("amc23", 21)])
def test_dapo_shared_openings(dapo, shared, task, known):
    """Evaluation problems that share 60 raw characters with a training one, counted here apart from the code."""
    report, loaded = dapo
    starts = {" ".join(p.question.split())[:60] for p in load_task("dapo-math-17k", shared)}
    sharing = {p.id for p in loaded[task] if " ".join(p.question.split())[:60] in starts}
    found = {pair.evaluation.id for pair in report.pairs if pair.against == task}
    assert len(sharing) >= known - 2
    assert (
        len(sharing - found) <= 3
    )  # read by hand, MATH-500: two other inequalities in x, y, z; one with other numbers
    assert len(found) >= known
    assert report.count(task, "opening")[1] >= 0.75 * (known - report.count(task, "exact")[1])


def test_dapo_says_what_it_did(dapo):
    report, loaded = dapo
    assert sum(map(len, loaded.values())) > 2000
    assert len(report.kept) + len(report.dropped) == 14026
    assert 50 < len(report.dropped) < 150
    text = report.summary()
    assert f"dropped {len(report.dropped)} of 14,026" in text
    assert "aime25: not compared" in text
    assert "gsm8k (1,319 problems): none" in text
    assert report.listing().count("opening: ") == sum(p.reason == "opening" for p in report.pairs)


def test_dapo_reworded_copies(dapo):
    """One more word and a request for an integer: amc23-8 in all but its spelling. Found by reading, not by the code."""
    report, _ = dapo
    pairs = [(p.train.id, p.evaluation.id) for p in report.pairs if p.reason == "reworded"]
    assert pairs == [("dapo_math_17k_en-13393", "amc23-8")]
    assert "reworded 0.90: dapo_math_17k_en-13393 rewords amc23-8" in report.listing()


def test_no_boilerplate_among_the_dropped(dapo):
    """A phrase that dozens of contest problems end with drops nothing: AIME 2024 shares many and is clean."""
    report, _ = dapo
    assert not [p for p in report.pairs if p.against == "aime24"]


def test_training_sets_against_their_own_tests(shared):
    """MATH-500 is of MATH's test set: of 7,498 training problems hardly any may fall to the rules."""
    report = decontaminate(load_task("math", shared), {"math500": load_task("math500", shared)})
    assert report.count("math500", "exact")[0] <= 5
    assert len(report.dropped) < 0.05 * 7498
    (pair,) = [p for p in report.pairs if p.reason == "reworded"]
    assert "How many integers are there in the solution set of $|x-2|" in pair.train.question
    assert "How many integers are in the solution set of $|x-2|" in pair.evaluation.question


@pytest.mark.slow  # the same rule finds one pair in math, above, and one in dapo
def test_gsm8k_has_no_reworded_copies(shared):
    report = decontaminate(load_task("gsm8k", shared), {"gsm8k": load_task("gsm8k", shared, split="test")})
    assert not [p for p in report.pairs if p.reason == "reworded"]


# ---- by hand -----------------------------------------------------------------------------------------------------

LONG = (
    "A farmer has $12$ cows and twice as many sheep in a meadow by the river, and every third animal wears a brass bell "
    "around its neck. How many animals wear a bell, if no cow does?"
)


@pytest.mark.parametrize(
    "copy",
    [
        LONG.upper(),
        LONG.replace("$12$", "12").replace(",", ""),
        "  " + LONG.replace(" ", "\n  ") + "\n",
        LONG.replace("$12$", r"$\text{12}$\,").replace("?", " ?"),
        LONG.replace("$12$", r"\(12\)"),
    ],
)
def test_copies_in_another_dress_are_exact(copy):
    assert reasons(copy, LONG) == ["exact"]


def test_markup_is_not_meaning_but_operators_are():
    assert normalise(r"$\dfrac{1}{2} \left( x + 1 \right)$") == normalise(r"$\frac12(x+1)$".replace("12", "{1}{2}"))
    assert normalise("Find $x+1$.") != normalise("Find $x-1$.")
    assert reasons("Find $x+1$.", "Find $x-1$.") == []


def test_a_reworded_end_is_an_opening():
    assert reasons(LONG.split(" and every")[0] + ". Find the number of legs of all of them together.", LONG) == [
        "opening"
    ]


def test_a_reworded_beginning_is_an_overlap():
    assert reasons("Consider this. In Kent there is " + LONG[2:], LONG) == ["overlap"]


def test_other_problems_are_kept():
    assert reasons("A farmer has $12$ cows. How many legs do they have?", LONG) == []
    other = "A baker has 12 loaves and twice as many rolls on a shelf by the door. How many does he sell, if no loaf is sold?"
    assert reasons(other, LONG) == []


def test_the_share_decides():
    words = [f"w{i}" for i in range(60)]
    half = " ".join([*words[:36], *(f"v{i}" for i in range(24))])  # 24 of 48 runs of 13 are shared
    swapped = "new start " + half
    assert reasons(swapped, " ".join(words), opening=0, share=0.45) == ["overlap"]
    assert reasons(swapped, " ".join(words), opening=0, share=0.55) == []
    assert reasons(" ".join(words), " ".join(words), share=2.0) == ["exact"]


def reworded(train: Problem, evaluation: Problem, **settings) -> list[float]:
    report = under(settings, [train], [evaluation])
    assert {pair.reason for pair in report.pairs} <= {"reworded"}
    return [pair.share for pair in report.pairs]


def test_one_more_word_and_the_same_gold_is_reworded():
    asked = r"How many integers are in the solution set of $|x-2|\leq5.6$ ?"
    again, other = asked.replace("are in", "are there in"), asked.replace("the solution set", "the range")
    original = Problem("e", "eval", asked, "11")
    # joined, 43 characters and 36 runs; the new word breaks the 7 across its place, but "re" is on both sides of it: 5
    assert reworded(Problem("t", "train", again, "11"), original) == [31 / 36]
    assert reworded(Problem("t", "train", again, "12"), original) == []  # another gold: another problem
    assert reworded(Problem("t", "train", other, "11"), original) == []
    assert reworded(Problem("t", "train", again, "11"), original, reworded=1.1) == []


def test_the_share_of_the_shorter_decides_what_is_reworded():
    """Twenty words of five letters, joined: 93 runs of eight. A letter changed in the middle breaks eight of them."""
    words = ["".join(chr(97 + (7 * i + j * j) % 26) for j in range(5)) for i in range(20)]
    text = "".join(words)
    assert len({text[at : at + 8] for at in range(93)}) == 93
    changed = [*words[:9], words[9][:2] + "é" + words[9][3:], *words[10:]]
    train, original = (Problem("p", "x", " ".join(w), r"\dfrac{1}{2}") for w in (["and", *changed], words))
    spelt = Problem("e", "eval", original.question, r"\frac{1}{2}")
    assert reworded(train, spelt, opening=0, share=2.0) == [85 / 93]
    assert reworded(train, spelt, opening=0, share=2.0, reworded=0.92) == []


def test_phrases_that_many_training_problems_have_do_not_count():
    phrase = "the answer can be written as m over n where m and n are relatively prime positive integers find m plus n"
    train = problems("train", *(f"Number {i} of {i * 7} things: {phrase}" for i in range(30)))
    report = decontaminate(train, {"eval": problems("eval", f"Some cubes are stacked: {phrase}")})
    assert report.pairs == []
    few = decontaminate(train[:3], {"eval": problems("eval", f"Some cubes are stacked: {phrase}")})
    assert len(few.pairs) == 3  # in a small set it is no phrase yet


def test_short_problems():
    eight = "What is the greatest prime factor of 1221?"
    assert reasons(f"Here is one. {eight} Give it in base ten.", eight) == ["overlap"]
    other = Problem("t", "train", "What is the greatest prime factor of 1222?", "47")
    assert decontaminate([other], {"eval": [Problem("e", "eval", eight, "37")]}).pairs == []
    assert reasons("Compute 3 + 4 for me and then add five to it.", "Compute 3 + 4") == []
    assert reasons("compute  $3+4$", "Compute 3 + 4") == ["exact"]
    assert reasons("Find the integers below twelve please now", "Find the integers below twelve please") == []


def test_short_texts_have_no_opening():
    assert reasons("Find the sum of all primes below twenty and then square it", "Find the sum") == []


def test_drawings_do_not_hide_a_copy():
    text = "In the figure below, what is the area of the shaded region between the two concentric circles of radius 3 and 5"
    assert reasons(text, text + "? [asy] draw((0,0)--(1,1)); [/asy]") == ["opening"]
    assert reasons(f"{text} [asy] fill(a); [/asy]", f"Hint: {text} [asy] draw((0,0)--(1,1)--(2,0)--cycle); [/asy]") == [
        "overlap"
    ]


def test_one_training_problem_against_several(capsys):
    train = problems("train", LONG, "Something else entirely, of which nobody has ever heard.")
    report = decontaminate(train, {"a": problems("a", LONG), "b": problems("b", LONG, LONG.upper())})
    assert len(report.pairs) == 3
    assert report.dropped == [train[0]]
    assert report.kept == [train[1]]
    assert report.count("b", "exact") == (1, 2)
    assert decontaminate(train, {}).kept == train
    assert decontaminate([], {"a": problems("a", LONG)}).summary().startswith("decontamination: dropped 0 of 0")


def test_what_cannot_be_loaded_is_said(tmp_path, caplog):
    (tmp_path / "amc23.jsonl").write_text(json.dumps({"question": LONG, "answer": 3.0}))
    loaded, missing = evaluation_problems(tmp_path)
    assert list(loaded) == ["amc23"]
    assert {"math500", "aime24", "aime25", "minerva", "gsm8k", "knights-knaves"} == set(missing)
    assert "cannot compare with aime25" in caplog.text
