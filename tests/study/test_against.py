"""Variants on several tasks and against one of them: means by hand, widths by theory, a seed that is one model on all tasks."""

import json

import numpy as np
import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.models import write_whole
from sage_rlvr.study.against import MEAN, draw
from sage_rlvr.study.job import STATUS
from sage_rlvr.study.plan import Study, open_folder
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
    found = draw(study_of(tmp_path, rights, [0, 1]), draws=50)
    means = {(x.task, x.variant): (x.pass_1.mean, x.pass_n.mean, x.seeds) for x in found.standing()}
    assert means["t", "base"] == (0.5, 0.5, 1)
    assert means["u", "grpo"] == pytest.approx((0.5, 1.0, 1))
    assert means["t", "branch"] == (0.625, 0.75, 2)
    assert means["u", "branch"] == pytest.approx((20 / 48, 0.5, 2))
    assert means[MEAN, "branch"] == pytest.approx(((0.625 + 20 / 48) / 2, 0.625, 2))
    (less,) = (x for x in found.less("grpo") if x.task == MEAN)
    assert (less.variant, less.seeds) == ("branch", 1)
    assert (less.pass_1.mean, less.pass_n.mean) == pytest.approx(((0.125 - 4 / 48) / 2, (0.25 - 0.5) / 2))
    with pytest.raises(UserError, match="no run of tempered is finished; there are base, grpo, branch"):
        found.less("tempered")


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
    found = draw(study_of(tmp_path, rights, [0, 1, 2, 3]), draws=4000)
    level = {(x.task, x.variant): x for x in found.standing()}
    less = {(x.task, x.variant): x for x in found.less("grpo")}
    assert level["t", "grpo"].pass_1.high - level["t", "grpo"].pass_1.low > 0.2
    assert less["t", "branch"].pass_1 == pytest.approx((0.25, 0.25, 0.25))
    widths = [x.high - x.low for x in (level[task, "tempered"].pass_1 for task in ("t", "u", MEAN))]
    shares = np.array([1, 3, 5, 7]) / 8
    assert widths == pytest.approx([2 * 1.96 * shares.std() / 2] * 3, rel=0.15)
    assert widths[0] == widths[2], "not narrower by the root of two"


def test_one_task_has_no_mean_and_draws_are_the_same_each_time(tmp_path):
    out = study_of(tmp_path, {"base": [{"t": [1, 2]}], "grpo": [{"t": [2, 3]}]}, [0])
    assert draw(out, draws=10).tasks == ["t"]
    assert draw(out, draws=10).standing() == draw(out, draws=10).standing()
