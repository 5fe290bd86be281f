"""Variants on several tasks and against one of them: means by hand, widths by theory, a seed that is one model on all tasks."""

import json

import numpy as np
import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.models import write_whole
from sage_rlvr.stats.against import MEAN, Standing, Standings, detectable
from sage_rlvr.stats.intervals import Interval, crossed
from sage_rlvr.study.job import STATUS
from sage_rlvr.study.plan import Study, open_folder
from sage_rlvr.study.read import read_standings
from tests.evaluate.runs import make_run

N = 8


def study_of(out, rights, seeds):
    """``rights[variant][seed][task]``: right samples of 8, a number a problem."""
    tasks = list(rights["base"][0])
    variants = {v: {} if v == "grpo" else {"guide": v} for v in rights if v != "base"}
    parts = {"base": {"model_name_or_path": "m"}, "train": {}, "seeds": seeds}
    open_folder(Study("s", variants=variants, evaluate={"tasks": tasks, "n": N}, **parts), out)
    for variant, runs in rights.items():
        for seed, by in enumerate(runs):
            run = "base" if variant == "base" else f"{variant}-s{seed}"
            words = {t: {f"p{i}": ["1" * k + "0" * (N - k)] for i, k in enumerate(right)} for t, right in by.items()}
            make_run(out / run / "eval", words)
            write_whole(out / run / STATUS, json.dumps({"state": "done", "stage": "eval", "pid": 1}))
    return out


def test_means_and_differences_by_hand(tmp_path):
    rights = {
        "base": [{"t": [0, 8], "u": [0, 0, 4]}],
        "grpo": [{"t": [0, 8], "u": [2, 2, 8]}],
        "branch": [{"t": [4, 8], "u": [0, 4, 8]}, {"t": [0, 8], "u": [0, 0, 8]}],
    }
    found = read_standings(study_of(tmp_path, rights, [0, 1]))
    means = {(x.task, x.variant): (x.pass_1.mean, x.pass_n.mean, x.seeds) for x in found.standing()}
    assert means["t", "base"] == (0.5, 0.5, 1)
    assert means["u", "grpo"] == pytest.approx((0.5, 1.0, 1))
    assert means["t", "branch"] == (0.625, 0.75, 2)
    assert means["u", "branch"] == pytest.approx((20 / 48, 0.5, 2))
    assert means[MEAN, "branch"] == pytest.approx(((0.625 + 20 / 48) / 2, 0.625, 2))
    (less,) = (x for x in found.less("grpo") if x.task == MEAN)
    assert (less.variant, less.seeds) == ("branch", 1)
    assert (less.pass_1.mean, less.pass_n.mean) == pytest.approx(((0.125 - 4 / 48) / 2, (0.25 - 0.5) / 2))
    by_hand = {("u", "grpo"): (1 / 3, 2 / 3, 1), ("u", "branch"): (1 / 4, 1 / 6, 2)}
    over_base = {(x.task, x.variant): (x.pass_1.mean, x.pass_n.mean, x.seeds) for x in found.less("base")}
    assert {place: pytest.approx(over_base[place]) for place in by_hand} == by_hand
    with pytest.raises(UserError, match="no run of tempered is finished; there are base, grpo, branch"):
        found.less("tempered")


def test_a_mean_without_a_task_is_that_of_the_others(tmp_path):
    rights = {
        "base": [{"t": [0, 8], "u": [0, 4], "w": [8, 8]}],
        "grpo": [{"t": [0, 8], "u": [2, 8], "w": [0, 0]}],
        "branch": [{"t": [4, 8], "u": [0, 4], "w": [8, 0]}],
    }
    whole = read_standings(study_of(tmp_path, rights, [0]))
    found = Standings(whole.n, {at: grid for at, grid in whole.grids.items() if at[0] != "w"})
    assert found.tasks == ["t", "u", MEAN]
    (less,) = (x for x in found.less("grpo") if x.task == MEAN)
    assert less.pass_1.mean == pytest.approx((0.25 - 0.375) / 2)  # (6 − 4)/8 on t, (2 − 5)/8 on u
    two = crossed(*([whole.grids[t, "branch"][0] / 2, -whole.grids[t, "grpo"][0] / 2] for t in ("t", "u"))).interval()
    assert less.pass_1 == two
    assert [x for x in found.standing() if x.task == "t"] == [x for x in whole.standing() if x.task == "t"]


def test_problems_are_paired_and_a_seed_is_one_model_on_all_tasks(tmp_path):
    """Problems that are hard for both take nothing from a difference; a good seed is good on both tasks, so that their mean is as
    unsure as each."""
    hard, easy = [0, 1, 2, 3], [2, 3, 4, 5]
    rights = {
        "base": [{"t": hard, "u": hard}],
        "grpo": [{"t": hard, "u": hard}],
        "branch": [{"t": easy, "u": easy}],
        "tempered": [{"t": [k] * 4, "u": [k] * 4} for k in (1, 3, 5, 7)],
    }
    found = read_standings(study_of(tmp_path, rights, [0, 1, 2, 3]))
    level = {(x.task, x.variant): x for x in found.standing()}
    less = {(x.task, x.variant): x for x in found.less("grpo")}
    assert level["t", "grpo"].pass_1.high - level["t", "grpo"].pass_1.low > 0.2
    assert less["t", "branch"].pass_1 == pytest.approx((0.25, 0.25, 0.25))
    widths = [x.high - x.low for x in (level[task, "tempered"].pass_1 for task in ("t", "u", MEAN))]
    student = 3.18245  # 97.5%, four seeds
    ends = 0.5 + student * np.std([1, 3, 5, 7], ddof=1) / 8 / 2 * np.array([-1, 1])
    assert widths == pytest.approx([float(np.diff(ends.clip(0, 1))[0])] * 3), "not narrower by the root of two"


def test_one_task_has_no_mean(tmp_path):
    out = study_of(tmp_path, {"base": [{"t": [1, 2]}], "grpo": [{"t": [2, 3]}]}, [0])
    assert read_standings(out).tasks == ["t"]


UP, DOWN, UNSURE = Interval(0.05, 0.02, 0.08), Interval(-0.05, -0.08, -0.02), Interval(0.01, -0.02, 0.04)


@pytest.mark.parametrize(
    ("seeds", "one", "many", "said"),
    [
        (3, UP, UP, "better on both"),
        (3, DOWN, DOWN, "worse on both"),
        (3, UNSURE, UNSURE, "no detectable difference"),
        (3, UP, DOWN, "not better on both: pass@1 above, pass@n below"),
        (3, UNSURE, UP, "not better on both: pass@1 not detected, pass@n above"),
        (2, UP, UP, "not judged (2 seeds of 3)"),
        (1, UP, UP, "not judged (1 seed of 3)"),
    ],
)
def test_better_means_both_numbers_and_three_seeds(seeds, one, many, said):
    assert Standing("t", "branch", seeds, one, many).verdict() == said


def test_several_variants_are_judged_by_wider_intervals():
    """Three judged variants: each verdict is by 1 − .05/3, while the table has 95%."""
    rng = np.random.default_rng(0)
    grids = {("t", v): np.stack([rng.random((3, 40))] * 2) for v in ("grpo", "a", "b", "c")}
    found = Standings(64, grids).less("grpo")
    assert {x.comparisons for x in found} == {3}
    for x in found:
        difference = crossed([grids["t", x.variant][0], -grids["t", "grpo"][0]])
        assert (x.pass_1, x.corrected[0]) == (difference.interval(), difference.interval(1 - 0.05 / 3))
        assert x.corrected[0].low < x.pass_1.low
    up, unsure = (UP, UP), (UP, UNSURE)
    assert Standing("t", "a", 3, UP, UP, up, 3).verdict() == "better on both"
    assert Standing("t", "a", 3, UP, UP, unsure, 3).verdict().startswith("not better on both")


def test_a_difference_of_that_size_is_found_four_times_in_five():
    found = np.random.default_rng(0).normal(detectable(Interval(0, -1, 1)), 1 / 1.96, 100_000) > 1
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_tasks_that_some_run_lacks_are_left_out_and_none_is_said(tmp_path):
    rights = {"base": [{"t": [1, 2], "u": [1]}], "grpo": [{"t": [2, 3]}]}
    out = study_of(tmp_path / "one", rights, [0])
    assert read_standings(out).tasks == ["t"]
    nothing = study_of(tmp_path / "two", {"base": [{"t": [1]}], "grpo": [{"u": [1]}]}, [0])
    with pytest.raises(UserError, match="no task has a problem that every finished run has whole"):
        read_standings(nothing)
