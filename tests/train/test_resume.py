"""Real processes, really killed: what follows a resume is what would have followed without the kill."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sage_rlvr import UserError
from sage_rlvr.runs.checkpoint import last_complete, load_state
from sage_rlvr.store import SampleStore

from .. import forked
from . import keeping, run_tiny, tiny

TIMES = {*tiny.TIMES, "train_runtime", "train_samples_per_second", "train_steps_per_second"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """Metrics of the uninterrupted run of a case, run once."""
    done = {}

    def get(case):
        if case not in done:
            place = tmp_path_factory.mktemp("whole")
            out = run(model, place / "run", place / "run.json", **CASES[case])
            assert out.returncode == 0, out.stderr
            done[case] = metrics(place / "run.json")
        return done[case]

    return get


@pytest.fixture(scope="module", autouse=True)
def kept(model):
    return keeping.folder(Path(model, "kept"), model)


def run(model, out, history, **options):
    options = {
        "model": model,
        "out": str(out),
        "history": str(history),
        "save_strategy": "steps",
        "save_steps": 1,
    } | options
    if "keep_from" in options:
        options["keep_from"] = str(Path(model, options["keep_from"]))
    return forked.run(run_tiny.main, options)


def metrics(path):
    """What was logged at each step, without the clock."""
    entries = [e for e in json.loads(Path(path).read_text()) if "loss" in e]
    return {e["step"]: {k: v for k, v in e.items() if k not in TIMES} for e in entries}


# 12 prompts, 1 a step: 7 steps of (2, 4, 2) pass through 1.75 rollout batches; 26 of (1, 1, 1) through two epochs
CASES = {
    "aligned": {"max_steps": 6, "guide": "token"},
    "inside the rollout buffer": {
        "max_steps": 7, "guide": "token", "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2,
    },
    "held at first use": {"max_steps": 5, "guide": "random", "guide_args": {"epsilon": 1.0}, "gradient_accumulation_steps": 2,
                          "steps_per_generation": 2},
    "second epoch": {"max_steps": 16, "guide": "branch"},
    "an advantage that moves, inside the rollout buffer": {
        "max_steps": 7, "guide": "none", "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2,
        "advantage": ["unlikely", "focal"], "dynamic_sampling": 1,
    },
    "k falls with the step": {"max_steps": 6, "guide": "none", "advantage": "pkpo", "advantage_args": {"k": 3, "anneal": 1.0}},
    "tokens held, inside the rollout buffer": {
        "max_steps": 7, "guide": "none", "advantage": "kl_cov", "advantage_args": {"share": 0.2},
        "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2,
    },
    "tokens clipped": {
        "max_steps": 5, "guide": "none", "advantage": "clip_cov", "advantage_args": {"share": 0.2, "low": 0.05},
    },
    "kept answers": {"max_steps": 6, "guide": "none", "keep_from": "kept", "keep_divergence": "js", "keep_batch": 5,
                     "keep_coef": 1.0, "tokens_per_microbatch": 40},
    "exact credit": {"max_steps": 5, "guide": "branch", "anchor_estimator": "k1-reward"},
    "after an anchor reset": {"max_steps": 5, "guide": "branch", "anchor_reset": 2},
    "a head that learns, inside the rollout buffer": {
        "max_steps": 7, "guide": "value", "guide_args": {"width": 3, "rate": 0.3, "kappa": 30.0},
        "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2,
    },
}  # fmt: skip


QUICK = {"inside the rollout buffer", "kept answers"}


# "aligned" is killed and goes on in the tests below.
@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in CASES if n != "aligned"]
)
def test_kill_and_resume_changes_nothing(model, whole, tmp_path, case):
    options = CASES[case]
    die_at = options["max_steps"] - 2
    killed = run(model, tmp_path / "cut", tmp_path / "cut.json", die_at=["step", die_at], **options)
    assert killed.returncode == -signal.SIGKILL
    assert last_complete(tmp_path / "cut").endswith(f"checkpoint-{die_at}")
    if "inside the rollout buffer" in case:
        state = load_state(tmp_path / "cut" / f"checkpoint-{die_at}", 0)
        assert state["buffer"] is not None, "the kill fell inside a buffer"
    resumed = run(model, tmp_path / "cut", tmp_path / "cut.json", resume=True, **options)
    assert resumed.returncode == 0, resumed.stderr
    expected, got = whole(case), metrics(tmp_path / "cut.json")
    assert sorted(got) == sorted(expected) == list(range(1, options["max_steps"] + 1))
    assert got == expected
    lines = [json.loads(line) for line in (tmp_path / "cut" / "log.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines if "loss" in x] == list(range(1, options["max_steps"] + 1)), "no step twice"
    assert len({json.dumps(e.get("reward")) + json.dumps(e["loss"]) for e in expected.values()}) > 2, (
        "the run does move"
    )


@pytest.mark.parametrize("where", ["save", "list"])
def test_a_checkpoint_cut_short_is_passed_over(model, whole, tmp_path, where):
    """Before the random states are written, and before the list: another process may not have written its part then."""
    options = CASES["aligned"]
    killed = run(model, tmp_path / "cut", tmp_path / "cut.json", die_at=[where, 4], **options)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "cut" / "checkpoint-4").is_dir()
    assert last_complete(tmp_path / "cut").endswith("checkpoint-3")
    resumed = run(model, tmp_path / "cut", tmp_path / "cut.json", resume=True, **options)
    assert "checkpoint-4 was cut short while it was written; going on from checkpoint-3" in resumed.stdout
    assert metrics(tmp_path / "cut.json") == whole("aligned")


@pytest.mark.parametrize(("how", "code"), [("term", 143), ("int", 130)])
def test_a_signal_writes_a_checkpoint_first(model, whole, tmp_path, how, code):
    options = CASES["aligned"] | {"save_steps": 1000}
    told = run(model, tmp_path / "run", tmp_path / "run.json", die_at=[how, 2], **options)
    assert told.returncode == code, told.stderr
    assert f"interrupted after step 3 of 6; saved in {tmp_path / 'run' / 'checkpoint-3'}\n" in told.stdout
    assert "to go on, run the script again with trainer.train(resume_from_checkpoint=True)\n" in told.stdout
    assert last_complete(tmp_path / "run").endswith("checkpoint-3")
    assert not (tmp_path / "run.json").exists()
    assert run(model, tmp_path / "run", tmp_path / "run.json", resume=True, **options).returncode == 0
    assert metrics(tmp_path / "run.json") == whole("aligned")


def test_a_run_with_all_its_steps_takes_no_more(model, whole, tmp_path):
    """Killed between its last checkpoint and its end, or told to end during its last step."""
    options = CASES["aligned"]
    told = run(model, tmp_path / "run", tmp_path / "run.json", die_at=["term", options["max_steps"] - 1], **options)
    assert told.returncode == 0, told.stderr
    assert metrics(tmp_path / "run.json") == whole("aligned")
    again = run(model, tmp_path / "run", tmp_path / "again.json", resume=True, **options)
    assert again.returncode == 0, again.stderr
    assert metrics(tmp_path / "again.json") == whole("aligned")
    assert sorted(p.name for p in (tmp_path / "run").glob("checkpoint-*"))[-1] == f"checkpoint-{options['max_steps']}"
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert max(json.loads(line)["step"] for line in log) == options["max_steps"]


def test_another_guide_and_a_foreign_checkpoint_are_refused(model, tmp_path):
    options = CASES["aligned"] | {"max_steps": 2}
    assert run(model, tmp_path / "run", tmp_path / "run.json", **options).returncode == 0
    other = run(
        model, tmp_path / "run", tmp_path / "x.json", resume=True, **(options | {"max_steps": 4, "guide": "branch"})
    )
    assert "the checkpoint's guide is 'token', this run's is 'branch'" in other.stderr
    (tmp_path / "run" / "checkpoint-2" / "sage_state_0.pt").unlink()
    with pytest.raises(UserError, match="was not written by SAGETrainer on this many processes"):
        load_state(tmp_path / "run" / "checkpoint-2", 0)
    assert last_complete(tmp_path / "run").endswith("checkpoint-1")
    assert last_complete(tmp_path / "nothing") is None


def test_a_folder_of_kept_answers_that_has_grown_is_refused(model, tmp_path):
    options = {"max_steps": 1, "guide": "none", "keep_from": str(tmp_path / "kept")}
    keeping.folder(tmp_path / "kept", model)
    assert run(model, tmp_path / "run", tmp_path / "run.json", **options).returncode == 0
    with SampleStore(tmp_path / "kept", keeping.settings(model)) as store:
        store.append([keeping.sample("sums-3", 3)])
    again = run(model, tmp_path / "run", tmp_path / "x.json", resume=True, **(options | {"max_steps": 2}))
    assert "checkpoint-1 was trained with other kept answers than" in again.stderr


def test_a_second_training_in_the_same_folder_is_refused_while_the_first_lives(model, whole, tmp_path):
    """A real one, stopped in the middle; killed, its folder is free, and the run ends as if there had been one alone."""
    options = CASES["aligned"]
    with ThreadPoolExecutor(1) as other:
        first = other.submit(run, model, tmp_path / "run", tmp_path / "1.json", die_at=["stop", 3], **options)
        while not (tmp_path / "run" / "stopped").exists():
            assert not first.done(), first.result().stderr
            time.sleep(0.02)
        pid = int((tmp_path / "run" / "stopped").read_text())
        second = run(model, tmp_path / "run", tmp_path / "2.json", resume=True, **options)
        assert second.returncode == 1
        assert f"run is being written by process {pid} on " in second.stderr
        os.kill(pid, signal.SIGKILL)
        assert first.result().returncode == -signal.SIGKILL
    third = run(model, tmp_path / "run", tmp_path / "3.json", resume=True, **options)
    assert f"the lock of process {pid}, which is gone, is taken over" in third.stderr
    assert metrics(tmp_path / "3.json") == whole("aligned")
    assert not list((tmp_path / "run").glob("*.lock"))


def test_the_sampler_starts_at_any_epoch_where_trl_would_be():
    from trl.trainer.utils import RepeatSampler

    from sage_rlvr.runs.checkpoint import ResumableSampler

    how = {"data_source": list(range(12)), "mini_repeat_count": 2, "batch_size": 3, "repeat_count": 2, "seed": 5}
    theirs = RepeatSampler(**how)
    epochs = [list(theirs) for _ in range(3)]
    for start in range(3):
        ours = ResumableSampler(**how)
        for epoch in range(start, 3):
            ours.set_epoch(epoch)
            assert list(ours) == epochs[epoch]
    assert epochs[0] != epochs[1]
