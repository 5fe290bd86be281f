"""Heights above the references' curve, against curves that are known, numpy's own fit, and studies drawn again and again."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.claims import like_for_like
from sage_rlvr.stats.distance import Run, curve_at, excesses
from sage_rlvr.train import SAGEConfig


def cubic(kl, k):
    root = np.sqrt(kl)
    return 0.1 + 0.3 * root - 0.2 * root**3 if k == 1 else 0.99 - 0.9 * root**2


def on_the_curve(family, kls, seeds=3, shift=None, problems=6, spread=0.0, estimator="k3"):
    """An arm a KL; its seeds lie a little apart, on the curve lifted by ``shift`` {k: by how much}."""
    shift = shift or {}
    runs = []
    for variant in kls:
        for kl in variant * (1 + spread * np.arange(seeds)):
            height = {k: np.full(problems, cubic(kl, k) + shift.get(k, 0)) for k in (1, 8)}
            runs.append(Run(family, f"{family}+{variant}", estimator, kl, height))
    return runs


def test_what_lies_on_the_curve_has_no_excess_and_what_lies_above_has_its_height():
    runs = [
        *on_the_curve("a", (0.01, 0.05, 0.2), spread=0.1),
        *on_the_curve("b", (0.02, 0.1), spread=0.1),
        *on_the_curve("another beta", (0.03, 0.15)),
        *on_the_curve("better", (0.015, 0.06), shift={8: 0.03}),
        *on_the_curve("trade", (0.06,), shift={1: 0.02, 8: -0.02}),
    ]
    found = {f.family: f for f in excesses(runs, ["a", "b"])}
    assert found["another beta"].above[1] == pytest.approx((0, 0, 0), abs=1e-9)
    assert found["another beta"].above[8] == pytest.approx((0, 0, 0), abs=1e-9)
    assert found["better"].above[1] == pytest.approx((0, 0, 0), abs=1e-9)
    assert found["better"].above[8] == pytest.approx((0.03,) * 3)  # no spread: problems and seeds are alike
    assert (found["trade"].above[1].mean, found["trade"].above[8].mean) == pytest.approx((0.02, -0.02))
    assert (found["better"].runs, found["better"].kl) == (6, (pytest.approx(0.015), pytest.approx(0.06)))


def test_the_curve_is_numpys_fit_through_the_references_alone():
    rng = np.random.default_rng(0)
    runs = [
        Run(family, f"{family}{i // 4}", "k3", 0.01 + 0.2 * rng.random(), {4: rng.random(10)})
        for family in ("ref", "sage")
        for i in range(20)
    ]
    own = [r for r in runs if r.family == "ref"]
    fit = np.polyfit([r.kl**0.5 for r in own], [r.passes[4].mean() for r in own], 3)
    low, high = min(r.kl for r in own), max(r.kl for r in own)
    judged = [r for r in runs if r.family == "sage" and low <= r.kl <= high]
    sage = next(f for f in excesses(runs, ["ref"]) if f.family == "sage")
    assert sage.runs == len(judged)
    assert sage.above[4].mean == pytest.approx(
        np.mean([r.passes[4].mean() - np.polyval(fit, r.kl**0.5) for r in judged])
    )
    assert curve_at(own, 4, np.array([0.04])) == pytest.approx(np.polyval(fit, 0.2))


def test_runs_beyond_the_references_are_not_judged():
    runs = [
        *on_the_curve("ref", (0.01, 0.02, 0.05, 0.1, 0.2)),
        *on_the_curve("far", (0.1, 0.4)),
        *on_the_curve("beyond", (0.3,)),
    ]
    found = {f.family: f for f in excesses(runs, ["ref"])}
    assert found["far"].runs == 3
    assert "beyond" not in found


def test_too_few_references_are_no_curve():
    assert excesses([], ["ref"]) == []
    assert excesses(on_the_curve("ref", (0.01, 0.05, 0.1, 0.2)), ["ref"]) == []  # a cubic goes through any four heights


def test_references_that_have_not_moved_are_no_curve():
    """As after two steps at a rate that is still rising: a KL of 0 in every log."""
    height = {4: np.full(6, 0.5)}
    runs = [Run("grpo", f"grpo+{i}", "k3", 0.0, height) for i in range(8)]
    assert excesses(runs, ["grpo"]) == []


def test_the_interval_is_over_problems_too():
    """Seeds are alike; the family's height differs between problems by 0.1: their mean has an error of 0.1/√problems."""
    problems, rng = 100, np.random.default_rng(0)
    uneven = 0.1 * rng.standard_normal(problems)
    sage = [
        replace(r, passes={k: y + uneven for k, y in r.passes.items()})
        for r in on_the_curve("sage", (0.02, 0.1), problems=problems)
    ]
    runs = [*on_the_curve("ref", (0.01, 0.03, 0.06, 0.1, 0.2), problems=problems), *sage]
    above = excesses(runs, ["ref"])[1].above[8]
    assert above.mean == pytest.approx(uneven.mean())
    assert (above.high - above.low) / 2 == pytest.approx(1.98422 * uneven.std(ddof=1) / problems**0.5, rel=1e-4)


def test_the_interval_covers_the_truth_and_is_narrow_enough_to_be_of_use():
    """200 studies: 5 seeds, 100 problems that differ much in difficulty. A true excess of 0.02 lies in it about as often as
    it says, and 0 does not."""
    rng = np.random.default_rng(0)

    def family(name, kls, ease, shift=0.0):
        runs = []
        for kl in kls:
            for _ in range(5):
                at, seed = kl * (1 + 0.05 * rng.standard_normal()), 0.005 * rng.standard_normal()
                height = cubic(at, 8) + shift + seed + ease + 0.05 * rng.standard_normal(100)
                runs.append(Run(name, f"{name}{kl}", "k3", at, {8: height}))
        return runs

    held = without_0 = 0
    for _ in range(200):
        ease = 0.2 * rng.standard_normal(100)
        runs = family("ref", (0.01, 0.03, 0.06, 0.1, 0.15, 0.2), ease) + family("sage", (0.02, 0.08, 0.12), ease, 0.02)
        above = excesses(runs, ["ref"])[1].above[8]
        held += above.low <= 0.02 <= above.high
        without_0 += above.low > 0
    assert 0.91 <= held / 200 <= 0.99
    assert without_0 >= 190


def test_a_family_is_held_to_the_references_that_share_its_estimator():
    """The curve of k1 lies 0.02 above that of k3: so does a family with k1, which is another β all the same."""
    five = (0.01, 0.03, 0.06, 0.12, 0.2)
    runs = [
        *on_the_curve("a", five, estimator="k3"),
        *on_the_curve("b", five, estimator="k1", shift={8: 0.02}),
        *on_the_curve("another beta", (0.02, 0.1), estimator="k1", shift={8: 0.02}),
        *on_the_curve("better", (0.02, 0.1), estimator="k1", shift={8: 0.05}),
        *on_the_curve("plain", (0.02, 0.1), estimator="k3"),
        *on_the_curve("alone", (0.02, 0.1), estimator="forward", shift={8: 0.01}),  # halfway: on the curve of both
    ]
    found = {f.family: f for f in like_for_like(runs, ["a", "b"])}
    assert {name: f.against for name, f in found.items()} == {
        "another beta": ("b",), "better": ("b",), "plain": ("a",), "alone": ("a", "b"),
    }  # fmt: skip
    assert [f.above[8].mean for f in found.values()] == pytest.approx([0, 0.03, 0, 0], abs=1e-9)
    pooled = {f.family: f.above[8].mean for f in excesses(runs, ["a", "b"])}
    assert pooled["another beta"] == pytest.approx(0.01), "one curve for both would call it better"


def test_an_estimator_that_is_not_named_is_the_default():
    assert SAGEConfig.__dataclass_fields__["anchor_estimator"].default == "k3"


def test_too_few_references_of_an_estimator_are_held_to_all():
    runs = [
        *on_the_curve("a", (0.01, 0.03, 0.06, 0.12, 0.2)),
        *on_the_curve("b", (0.02, 0.1), estimator="k1"),
        *on_the_curve("sage", (0.05,), estimator="k1"),
    ]
    (sage,) = like_for_like(runs, ["a", "b"])
    assert sage.against == ("a", "b")
    assert like_for_like(runs[15:], ["b"]) == []
