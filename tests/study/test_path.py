"""The path of a run: its checkpoints evaluated beside its last weights, kept in the records and laid out from them again."""

import copy
import json

import pytest
import yaml

from benchmarks.gpu.records import pack, unpack
from sage_rlvr import UserError
from sage_rlvr.stats.counts import compact
from sage_rlvr.study import job
from sage_rlvr.study.plan import Study, load_study, open_folder

from .. import forked
from . import forking
from .small import SMALL


def along(path, **train):
    parts = copy.deepcopy(SMALL)
    parts["train"] |= {
        "save_total_limit": None,
        "weight_decay": 0.5,
        **train,
    }  # no right answer, and weights that change
    parts["evaluate"]["path"] = path
    parts["variants"] = {"grpo": {}}
    return parts


@pytest.mark.parametrize(
    ("path", "train"),
    [
        ({"steps": [2, 9]}, {}),  # beyond the last step
        ({"steps": [4]}, {}),  # the last weights themselves
        ({"steps": [3]}, {"save_steps": 2}),  # never written
        ({"steps": [2]}, {"save_total_limit": 2}),  # gone by then
        ({"steps": ["2"]}, {}),
        ({"n": 4}, {}),
        ([2], {}),
    ],
)
def test_a_path_that_no_run_leaves_is_refused_before_any(path, train):
    with pytest.raises(UserError, match="path"):
        Study("small", **along(path, **train))


def test_checkpoints_are_evaluated_and_kept(tmp_path):
    file, out = tmp_path / "small.yaml", tmp_path / "study"
    file.write_text(yaml.safe_dump(along({"steps": [1, 3], "n": 2, "limit": 5})))
    done = forked.run(forking.study, "run", file, "--out", out, "--jobs", "1", timeout=1200)
    assert done.returncode == 0, done.stderr
    evaluated = {step: compact(job.at_step(out / "grpo-s0" / "eval", step)) for step in (1, 3)}
    for step, record in evaluated.items():
        assert record["model"].endswith(f"checkpoint-{step}")
        (task,) = record["tasks"].values()
        assert (task["n"], len(task["problems"])) == (2, 5)
    assert (
        evaluated[1]["settings"]["model_weights"] != evaluated[3]["settings"]["model_weights"]
    )  # two models, not one twice
    assert not list((out / "base").glob("eval-*"))

    pack(out, tmp_path / "records")
    again = tmp_path / "again"
    open_folder(load_study(file), again)
    assert unpack([tmp_path / "records"], again) == ["base", "grpo-s0"]
    for step, record in evaluated.items():
        laid = json.loads((job.at_step(again / "grpo-s0" / "eval", step) / "counts.json").read_text())
        assert laid["tasks"] == record["tasks"]
