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
    """Without KL pass@1 rises and pass@64 falls, with intervals that say so; the anchored arms lie between."""
    moved = next(d for d in differences() if (d.variant, d.reference) == (FREE, "base"))
    assert moved.pass_1.low > 0
    assert moved.pass_n.high < 0
    at = points()
    assert at.keys() == {"base", *load_study("demo").variants}
    for variant in at.keys() - {"base", FREE}:
        assert at["base"][0] <= at[variant][0] <= at[FREE][0]
        assert at[FREE][1] <= at[variant][1] <= at["base"][1]


def test_the_record_agrees_with_itself():
    """Differences are those of the table's means, and the sentence is the one that these numbers give."""
    at = points()
    for d in differences():
        for i, x in enumerate((d.pass_1, d.pass_n)):
            assert x.mean == pytest.approx(at[d.variant][i] - at[d.reference][i], abs=1e-9)
            assert x.low <= x.mean <= x.high
    assert RECORD["sentence"] == sentence(at, differences(), FREE, 64)
    assert RECORD["tried"]
    assert asdict(differences()[0]).keys() == RECORD["differences"][0].keys()


UP, DOWN, FLAT = Interval(0.1, 0.05, 0.15), Interval(-0.1, -0.15, -0.05), Interval(0.01, -0.02, 0.04)


@pytest.mark.parametrize(
    ("one", "many", "said"),
    [
        (UP, DOWN, "raised pass@1 (+0.100 [+0.050, +0.150]) and lowered pass@64 (-0.100"),
        (DOWN, UP, "lowered pass@1 (-0.100 [-0.150, -0.050]) and raised pass@64"),
        (FLAT, FLAT, "changed pass@1 by no detectable amount (+0.010 [-0.020, +0.040]) and changed pass@64 by no"),
    ],
)
def test_the_sentence_says_what_came_out(one, many, said):
    at = {"base": (0.1, 0.9), "free": (0.3, 0.7), "a": (0.2, 0.8), "b": (0.2, 0.95), "c": (0.25, 0.75)}
    found = [Difference("free", "base", one, many)]
    told = sentence(at, found, "free", 64)
    assert f"Without KL, RL {said}" in told
    assert told.endswith("; a, c lie between the base and that on both, b does not.")
    assert sentence({k: at[k] for k in ("base", "free", "a")}, found, "free", 64).endswith(
        "; the variants with an anchor (a) lie between the base and that on both."
    )
    assert "nothing is compared" in sentence(at, [], "free", 64)
