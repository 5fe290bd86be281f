"""The demo: the committed record shows RL that learns, and the sentence says what came out, whatever that is."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from sage_rlvr.demo import Difference, sentence
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.study.plan import load_study

RECORD = json.loads((Path(__file__).parents[2] / "results" / "cpu" / "demo.json").read_text())
FREE = "grpo_no_kl"


def differences():
    return [
        Difference(d["variant"], d["reference"], Interval(*d["pass_1"]), Interval(*d["pass_n"]))
        for d in RECORD["differences"]
    ]


def points():
    return {r["variant"]: (r["pass_at"]["1"][0], r["pass_at"]["64"][0]) for r in RECORD["table"]}


def test_the_demo_learns():
    """Without KL pass@1 rises and pass@64 falls, by intervals. The anchored arms have more pass@1 than the base and more pass@64
    than the one without KL, by intervals, and on neither number are they detectably beyond these two."""
    by = {(d.variant, d.reference): d for d in differences()}
    assert by[FREE, "base"].pass_1.low > 0
    assert by[FREE, "base"].pass_n.high < 0
    variants = set(load_study("demo").variants)
    assert points().keys() == {"base", *variants}
    at = points()
    for variant in variants - {FREE}:
        assert at["base"][0] < at[variant][0] < at[FREE][0]
        assert at[FREE][1] < at[variant][1] < at["base"][1]
        assert by[variant, "base"].pass_1.low > 0
        assert by[variant, FREE].pass_n.low > 0
        assert by[variant, FREE].pass_1.low <= 0
        assert by[variant, "base"].pass_n.low <= 0
    assert (
        f"with an anchor ({', '.join(v for v in points() if v not in ('base', FREE))}), both numbers lie between"
        in RECORD["sentence"]
    )


def test_the_record_agrees_with_itself():
    """Differences are those of the table's means, and the sentence is the one that these numbers give."""
    at = points()
    for d in differences():
        for i, x in enumerate((d.pass_1, d.pass_n)):
            assert x.mean == pytest.approx(at[d.variant][i] - at[d.reference][i], abs=1e-9)
            assert x.low <= x.mean <= x.high
    assert RECORD["sentence"] == sentence(differences(), FREE, 64)
    assert RECORD["tried"]
    assert asdict(differences()[0]).keys() == RECORD["differences"][0].keys()


UP, DOWN, FLAT = Interval(0.1, 0.05, 0.15), Interval(-0.1, -0.15, -0.05), Interval(0.01, -0.02, 0.04)


@pytest.mark.parametrize(
    ("one", "many", "said"),
    [
        (UP, DOWN, "raised pass@1 (+0.100 [+0.050, +0.150]) and lowered pass@64 (-0.100 [-0.150, -0.050])"),
        (DOWN, UP, "lowered pass@1 (-0.100 [-0.150, -0.050]) and raised pass@64 (+0.100 [+0.050, +0.150])"),
        (FLAT, DOWN, "changed pass@1 by no detectable amount (+0.010 [-0.020, +0.040]) and lowered pass@64"),
    ],
)
def test_the_sentence_says_what_came_out(one, many, said):
    assert f"Without KL, RL {said}" in sentence([Difference("free", "base", one, many)], "free", 64)
    assert "nothing is compared" in sentence([], "free", 64)


@pytest.mark.parametrize(
    ("over_base", "over_free", "inside"),
    [
        ((UP, DOWN), (DOWN, UP), True),
        ((FLAT, FLAT), (FLAT, FLAT), True),
        ((UP, DOWN), (UP, UP), False),  # more pass@1 than without KL
        ((DOWN, DOWN), (DOWN, UP), False),  # less than the base
        ((UP, UP), (DOWN, UP), False),  # more pass@64 than the base
        ((UP, DOWN), (DOWN, DOWN), False),  # less than without KL
    ],
)
def test_between_is_judged_by_intervals(over_base, over_free, inside):
    found = [
        Difference("free", "base", UP, DOWN),
        Difference("a", "base", *over_base),
        Difference("a", "free", *over_free),
    ]
    told = sentence(found, "free", 64)
    assert told.endswith(
        "with an anchor (a), both numbers lie between the base and no KL, within the 95% intervals."
        if inside
        else "; a: not between."
    )
