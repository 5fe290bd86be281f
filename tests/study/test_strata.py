"""The primary measure by strata, against the strata one by one, simulated studies and two controls with a known answer."""

import json

import numpy as np
import pytest

from benchmarks.claims import pairs
from benchmarks.controls import HALF, MIXED, null, positive
from benchmarks.gpu.records import pack, read_records, unpack
from sage_rlvr import UserError
from sage_rlvr.evaluate.arguments import EvalArguments
from sage_rlvr.models import write_whole
from sage_rlvr.stats.counts import RIGHT, WRONG, TaskCounts
from sage_rlvr.stats.frontier import Planes, Point, frontiers
from sage_rlvr.stats.matched import matched
from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.study.job import PROBE, START, STATUS
from sage_rlvr.study.plan import Study, open_folder
from sage_rlvr.study.read import _strata, read_planes
from tests.evaluate.runs import make_run

EVALUATED = {"tasks": ["t"], "n": 4}


def counts(rights, n, evaluations=1):
    """(problems, evaluations) right of n each."""
    rights = np.asarray(rights).reshape(-1, evaluations)
    state = np.where(np.arange(n) < rights[..., None], RIGHT, WRONG).astype(np.int8)
    names = [str(i) for i in range(len(rights))]
    return TaskCounts("t", names, list(range(evaluations)), n, state, None, None, state * 0, rights * 0)


def line(name, rng, strata, raised=0.0, seeds=4, problems=60):
    """Four arms. In stratum i pass@1 goes from .1 to .4 (i + 1) / 2 and pass@n falls by as much; ``raised``: added to pass@n."""
    stratum = np.zeros(problems)
    for i, own in enumerate(strata):
        stratum[own] = i
    points = []
    for t in np.linspace(0, 1, 4):
        x = (0.1 + 0.3 * t) * (stratum + 1) / 2 + 0.01 * rng.standard_normal((seeds, problems))
        y = 0.9 - 0.2 * stratum - 0.3 * t + raised + 0.05 * rng.standard_normal((seeds, problems))
        points.append(Point(f"{name}+beta{t:.2f}", x, y, tuple(strata)))
    return points


def cut(points, own):
    return [Point(p.variant, p.x[:, own], p.y[:, own]) for p in points]


def test_gains_are_the_mean_of_the_strata_s_own():
    rng, strata = np.random.default_rng(0), (np.arange(0, 40), np.arange(40, 55))  # and five problems are in none
    families = {"b": line("b", rng, strata), "a": line("a", rng, strata, 0.04)}
    whole = frontiers(families, "b")[1]
    each = [frontiers({f: cut(p, own) for f, p in families.items()}, "b")[1] for own in strata]
    assert whole.gain.mean == pytest.approx(np.mean([f.gain.mean for f in each]), abs=1e-12)
    assert whole.height.mean == pytest.approx(np.mean([f.height.mean for f in each]), abs=1e-12)
    assert whole.over == pytest.approx(np.mean([f.over for f in each], axis=0))
    assert whole.points["a+beta0.00"] == pytest.approx(np.mean([f.points["a+beta0.00"] for f in each], axis=0))
    points = {p.variant: p for p in matched(families, "b")}
    apart = [{p.variant: p for p in matched({f: cut(p, own) for f, p in families.items()}, "b")} for own in strata]
    for variant in ("a+beta0.33", "a+beta0.67"):
        for part in ("pass_1", "pass_n", "gain"):
            expected = np.mean([getattr(found[variant], part).mean for found in apart])
            assert getattr(points[variant], part).mean == pytest.approx(expected, abs=1e-12)
    (first, *_), (one, *_), (two, *_) = (
        pairs(of, "b") for of in (families, *({f: cut(p, own) for f, p in families.items()} for own in strata))
    )
    assert first.pass_n.mean == pytest.approx((one.pass_n.mean + two.pass_n.mean) / 2)


def test_without_a_shared_range_in_one_stratum_nothing_is_judged():
    rng, strata = np.random.default_rng(0), (np.arange(30), np.arange(30, 60))
    moved = [
        Point(p.variant, p.x + np.where(np.arange(60) < 30, 0, 2.0), p.y, p.strata) for p in line("a", rng, strata)
    ]
    families = {"b": line("b", rng, strata), "a": moved}
    assert frontiers(families, "b")[1].gain is None
    assert {p.gain for p in matched(families, "b")} == {None}


@pytest.mark.slow
def test_the_interval_holds_95_times_in_100():
    """Two strata of unlike size. Seeds move pass@n by .02 in both at once, problems differ, true gain .03."""
    rng, studies, strata = np.random.default_rng(1), 300, (np.arange(0, 45), np.arange(45, 60))
    held = 0
    for _ in range(studies):
        hard = rng.uniform(-0.1, 0.1, 60)
        families = {}
        for name, raised in (("b", 0.0), ("a", 0.03)):
            own = line(name, rng, strata, raised)
            luck = rng.standard_normal((4, 4, 1)) * 0.02
            families[name] = [Point(p.variant, p.x, p.y + hard + more, p.strata) for p, more in zip(own, luck)]
        gain = frontiers(families, "b")[1].gain
        held += gain.low <= 0.03 <= gain.high
    assert 0.93 - 0.025 <= held / studies <= 0.97 + 0.02


def test_the_problems_are_sorted_at_the_edges():
    rights = np.array([0, 1, 2, 3, 8, 0, 9])
    assert [own.tolist() for own in _strata(rights, [0, 2, 8])] == [[0, 5], [1, 2], [3, 4]]
    with pytest.raises(UserError, match="fewer than two problems up to 1 right"):
        _strata(rights, [0, 1, 8])


@pytest.mark.parametrize(("seeds", "probe"), [(None, 1), (1, 1), (2, 2), ([3], 3), ([3, 7], 8)])
def test_the_probe_has_a_seed_that_no_run_is_evaluated_with(seeds, probe):
    """As ``EvalArguments`` reads them: a single number is how many."""
    asked = {**EVALUATED, "primary": {"k": 2, "strata": [0, 1]}, **({} if seeds is None else {"seeds": seeds})}
    study = Study("s", {"model_name_or_path": "m"}, {}, {"grpo": {}}, [0], asked)
    assert study.probe_seed == probe
    own = EvalArguments(model="m", out="o", **{k: v for k, v in asked.items() if k != "primary"}).seeds
    assert probe not in own
    assert EvalArguments(model="m", out="o", tasks=["t"], seeds=[probe, probe]).seeds == [probe]
    assert (
        Study("s", {"model_name_or_path": "m"}, {}, {"grpo": {}}, [0], asked | {"primary": {"k": 2}}).probe_seed is None
    )


def test_a_study_s_folder_is_read_by_its_primary_measure(tmp_path):
    """Four samples in two evaluations of two. By the probe: p0 and p1 have none right, p2 and p3 one, p4 two: left out."""
    evaluated = {**EVALUATED, "primary": {"k": 2, "strata": [0, 1]}}
    parts = {"base": {"model_name_or_path": "m"}, "train": {}, "seeds": [0]}
    open_folder(Study("s", variants={"grpo+beta1": {}, "grpo+beta2": {}}, evaluate=evaluated, **parts), tmp_path)
    words = {
        "base": [["00", "11"], ["00", "00"], ["10", "01"], ["01", "00"], ["11", "11"]],
        "grpo+beta1-s0": [["10", "11"], ["00", "00"], ["10", "11"], ["00", "10"], ["11", "11"]],
        "grpo+beta2-s0": [["11", "11"], ["11", "00"], ["11", "11"], ["00", "00"], ["00", "00"]],
    }
    for run, own in words.items():
        make_run(tmp_path / run / "eval", {"t": {f"p{i}": word for i, word in enumerate(own)}})
        write_whole(tmp_path / run / STATUS, json.dumps({"state": "done", "stage": "eval", "pid": 1}))
    with pytest.raises(UserError, match=r"the strata need the base's probe.*remove base/status\.json"):
        read_planes(tmp_path, "t")
    probe = {f"p{i}": [word] for i, word in enumerate(["00", "00", "01", "10", "11"])}
    make_run(tmp_path / "base" / PROBE, {"t": probe})
    planes = read_planes(tmp_path, "t")
    assert [own.tolist() for own in planes.strata] == [[0, 1], [2, 3]]
    assert (planes.base.tolist(), planes.sorts) == ([0, 0, 1, 1, 2], 2)
    assert planes.start == pytest.approx(((1 / 4 + 3 / 8) / 2, (5 / 12 + 2 / 3) / 2)), "of all of its own samples"
    write_whole(tmp_path / "base" / START, json.dumps({"model": "m"}))
    pack(tmp_path, tmp_path / "records")
    assert unpack([tmp_path / "records"], tmp_path / "there") == ["base", "grpo+beta1-s0", "grpo+beta2-s0"]
    for again in (read_records(tmp_path / "records"), tmp_path / "there"):
        assert [own.tolist() for own in read_planes(again, "t").strata] == [[0, 1], [2, 3]]
    first, second = (p.mean for p in planes.families()["grpo"])
    assert first == pytest.approx(((3 / 8 + 4 / 8) / 2, (1 / 2 + (1 + 1 / 2) / 2) / 2))
    assert second == pytest.approx(((6 / 8 + 4 / 8) / 2, ((1 + 5 / 6) / 2 + 1 / 2) / 2))
    assert planes.families(2)["grpo"][0].x.shape == (1, 5), "at a k of one's own: all problems"


@pytest.mark.parametrize(
    "primary", [{"k": 1}, {"strata": [0, 2]}, {"k": 64, "strata": [2, 0]}, {"k": 8, "strata": "all"}, 64]
)
def test_a_primary_measure_that_means_nothing_is_refused(primary):
    with pytest.raises(UserError, match="name k and rising numbers"):
        Study("s", {"model_name_or_path": "m"}, {}, {"grpo": {}}, [0], {**EVALUATED, "primary": primary})


def planes(rng, apart, seeds=12, problems=150, n=64):
    """Four arms of one family; a seed's success on a problem differs from another seed's by ``apart`` logits."""
    ease = rng.normal(-3, 1, problems)
    runs, draws = {}, rng.random((problems, 2, n // 2))  # each run's, as evaluation seeds are: paired
    for beta, shift in ((0.01, 1.5), (0.05, 1.0), (0.1, 0.5), (0.2, 0.0)):
        rate = 1 / (1 + np.exp(-(ease + shift + apart * rng.standard_normal((seeds, problems)))))
        runs[f"grpo+beta{beta}"] = [counts((draws < row[:, None, None]).sum(2), n // 2, 2) for row in rate]
    strata = tuple(np.array_split(np.argsort(ease), 3))
    return Planes([str(i) for i in range(problems)], n, None, {"grpo": runs}, 16, strata)


def test_the_positive_control_is_found_and_the_null_is_not():
    rng = np.random.default_rng(2)
    plane = planes(rng, apart=1.0)
    mixed = positive(plane, "grpo")
    of = mixed.families()
    a, b = ((run.state == RIGHT).sum(2) for run in plane.runs["grpo"]["grpo+beta0.05"][:2])
    assert of[MIXED][1].x[0] == pytest.approx((a[:, 0] + b[:, 1]) / 64), "half of the samples of each"
    assert of[MIXED][1].y[0] == pytest.approx(pass_at_k(np.full(150, 64), a[:, 0] + b[:, 1], 16))
    assert frontiers(of, "grpo")[1].gain.low > 0.01
    assert frontiers(positive(planes(rng, apart=0.0), "grpo").families(), "grpo")[1].gain.low < 0.002
    all_seeds, (even, odd) = plane.runs["grpo"], null(plane, "grpo").runs.values()
    for own, a, b in zip(all_seeds.values(), even.values(), odd.values()):
        assert [*map(id, a)] == [*map(id, own[::2])]
        assert [*map(id, b)] == [*map(id, own[1::2])], "no seed is in both halves"
    wrong = 0
    for _ in range(40):
        gain = {f.family: f for f in frontiers(null(planes(rng, 1.0, 8, 60), "grpo").families(), "grpo")}[HALF].gain
        wrong += not gain.low <= 0 <= gain.high
    assert wrong <= 5  # 2 expected
