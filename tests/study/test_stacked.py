"""A study by the stacked engine: the same folder as by the other, resumed after a kill, refused where it has no code."""

import json
import multiprocessing as mp
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file

from benchmarks.gpu.records import ONE, keep, pack, unpack
from sage_rlvr.errors import Failed, UserError
from sage_rlvr.processes import alive
from sage_rlvr.stats.counts import counts_of
from sage_rlvr.study import stacked
from sage_rlvr.study.job import PROBE, at_step, start_model
from sage_rlvr.study.plan import load_study
from sage_rlvr.study.read import read_planes, read_runs, study_rows
from sage_rlvr.study.run import _unfinished, finished_runs
from sage_rlvr.study.stacked import run_stacked
from sage_rlvr.tasks import load_task
from tests import forked

STUDY = {
    "base": {
        "scratch": {"characters": "0123456789+-*=: ", "width": 32, "layers": 2},
        "demonstrations": {"task": "countdown-ltr-3", "problems": 100, "after": 60, "guesses": 0.3},
        "sft": {"max_steps": 60, "per_device_train_batch_size": 32, "learning_rate": 5e-3},
    },
    "train": {
        "task": "countdown-ltr-3", "rows": 60, "prompt_format": "symbols", "decontaminate": False, "max_steps": 6,
        "per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 10, "learning_rate": 1e-3,
        "loss_type": "bnpo", "guide": "none", "bf16": False, "logging_steps": 2, "save_steps": 2,
    },
    "variants": {"grpo": {"sweep": {"beta": [0.0, 0.05]}}, "branch": {"guide": "branch", "seeds": [0]},
                 "part": {"blend_of": "grpo+beta0.05", "weight": 0.5}},
    "seeds": [0, 1],
    "evaluate": {
        "tasks": ["countdown-ltr-3"], "n": 8, "seeds": 2, "limit": 20, "max_tokens": 10,
        "path": {"steps": [2, 4], "n": 4, "seeds": 1}, "primary": {"k": 4, "strata": [8]},
    },
}  # fmt: skip
RUNS = {
    "grpo+beta0.0-s0", "grpo+beta0.0-s1", "grpo+beta0.05-s0", "grpo+beta0.05-s1", "branch-s0", "part-s0", "part-s1",
}  # fmt: skip


def written(tmp_path, **more):
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(STUDY | more))
    return file


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stacked")
    study, left = run_stacked(written(folder), folder / "out", jobs=3)
    assert left == []
    return study, folder / "out"


def with_its_base(done, out):
    """A folder in which the base is made."""
    shutil.copytree(done[1] / "base", out / "base")
    return out


def test_its_folder_is_read_as_any_studys(done, tmp_path):
    _, out = done
    assert set(finished_runs(out)) == {"base", *RUNS}
    counts = counts_of(out / "branch-s0" / "eval").tasks["countdown-ltr-3"]
    assert (counts.n, counts.seeds, len(counts.problems)) == (8, [0, 1], 20)
    assert (counts.totals == 16).all()
    assert counts_of(at_step(out / "branch-s0" / "eval", 2)).tasks["countdown-ltr-3"].n == 4
    assert {row.variant for row in study_rows(out)} == {"base", "grpo+beta0.0", "grpo+beta0.05", "branch", "part"}
    assert set(read_planes(out, "countdown-ltr-3").families()) == {"grpo", "branch", "part"}
    assert {run.family for run in read_runs(out, "countdown-ltr-3")} == {"grpo", "branch"}, "their logs say the KL"
    steps = [
        json.loads(line)["step"] for line in (out / "grpo+beta0.0-s1" / "train" / "log.jsonl").read_text().splitlines()
    ]
    assert steps == [2, 4, 6]
    assert pack(out, tmp_path / "records") == 8
    assert set(unpack([tmp_path / "records"], tmp_path / "again")) == {"base", *RUNS}


def test_the_probe_is_the_base_s_with_draws_of_its_own_and_is_made_where_it_lacks(done, tmp_path):
    study, out = done
    there = shutil.copytree(out, tmp_path / "out")
    shutil.rmtree(there / "base" / PROBE)
    (there / "base" / ONE).unlink(missing_ok=True)
    assert "probe" not in keep(there, "base"), "a record that was made before"
    assert run_stacked(written(tmp_path), there, only="none")[1] == []
    for folder in (out, there):
        probe = counts_of(folder / "base" / PROBE).tasks["countdown-ltr-3"]
        own = counts_of(folder / "base" / "eval").tasks["countdown-ltr-3"]
        assert (probe.seeds, own.seeds, probe.n) == ([study.probe_seed], [0, 1], 8)
        assert all((probe.tokens[:, 0] != own.tokens[:, w]).any() for w in (0, 1)), "other draws"
        assert abs(probe.tokens.mean() - own.tokens.mean()) < 4, "of the same model"
    assert len(read_planes(there, "countdown-ltr-3").strata[0]) == 20
    assert keep(there, "base")["probe"] == keep(out, "base")["probe"]


def test_trained_weights_are_a_model_that_answers_as_it_was_counted(done):
    """The other engine's own evaluation of the saved weights, at a budget where chance is small."""
    from sage_rlvr.evaluate.arguments import EvalArguments
    from sage_rlvr.evaluate.run import evaluate

    _, out = done
    run = "grpo+beta0.05-s1"
    asked = {"tasks": ["countdown-ltr-3"], "n": 64, "seeds": 1, "limit": 20, "temperature": 1.0, "min_p": 0.0}
    asked |= {"max_tokens": 10, "prompt_format": "symbols", "backend": "transformers", "batch_size": 512}
    evaluate(EvalArguments(model=str(out / run / "train"), out=str(out / run / "theirs"), **asked))
    theirs, mine = (counts_of(out / run / name).tasks["countdown-ltr-3"] for name in ("theirs", "eval"))
    assert theirs.problems == mine.problems
    assert abs(theirs.tokens.sum() / theirs.totals.sum() - mine.tokens.sum() / mine.totals.sum()) < 0.3
    p, q = theirs.rights.sum() / theirs.totals.sum(), mine.rights.sum() / mine.totals.sum()
    assert abs(p - q) < 4 * (q * (1 - q) * (1 / theirs.totals.sum() + 1 / mine.totals.sum())) ** 0.5 + 0.01


def test_a_blend_lies_between_the_base_and_what_was_trained(done, tmp_path):
    """With weight 0 it answers as the base, with 1 as the trained run: the draws are the same. Half way its weights are means."""
    _, out = done
    there = shutil.copytree(out, tmp_path / "out")
    more = STUDY["variants"] | {"late": {"blend_of": "grpo+beta0.05", "sweep": {"weight": [0.0, 1.0]}}}
    file = written(tmp_path, variants=more)
    assert run_stacked(file, there, only="late*", jobs=3)[1] == []

    def cells(run):
        return json.loads((there / run / "eval" / "counts.json").read_text())["tasks"]

    assert cells("late+weight0.0-s1") == cells("base")
    assert cells("late+weight1.0-s1") == cells("grpo+beta0.05-s1")
    assert cells("part-s1") not in (cells("base"), cells("grpo+beta0.05-s1"))
    base, trained, part = (
        load_file(folder / "model.safetensors")
        for folder in (Path(start_model(out)), out / "grpo+beta0.05-s1" / "train", out / "part-s1" / "train")
    )
    for name, w in part.items():
        torch.testing.assert_close(w, (base[name] + trained[name]) / 2, atol=1e-6, rtol=0)
    shutil.rmtree(there / "grpo+beta0.05-s0" / "train")
    shutil.rmtree(there / "late+weight1.0-s0")
    with pytest.raises(
        UserError, match=r"late\+weight1.0-s0 is made of the weights of grpo\+beta0.05-s0, and .* is not there"
    ):
        run_stacked(file, there)


def test_it_trains_on_the_training_problems(done, tmp_path, monkeypatch):
    """Of one run, up to its first step: with those of the evaluation a study would be better than it is."""

    class Begun(Exception):
        pass

    def begun(runs, stack, base, world, problems, at):
        raise Begun(problems)

    study, out = done
    monkeypatch.setattr(stacked, "train", begun)
    engine = stacked._Engine(study, shutil.copytree(out, tmp_path / "out"), lambda study, out: None)
    with pytest.raises(Begun) as said:
        engine.run(["branch-s0"])
    trained = [p.id for p in said.value.args[0].all]
    assert trained == [p.id for p in load_task("countdown-ltr-3", limit=60, split="train")]
    assert not {*trained} & {p.id for p in engine.tests["countdown-ltr-3"][1].all}


def test_each_run_of_a_stack_has_its_own_weights_and_counts(done, tmp_path, monkeypatch):
    study, out = done
    one, other = ((out / run / "train" / "model.safetensors").read_bytes() for run in ("grpo+beta0.05-s0", "branch-s0"))
    assert one != other, "the two were one stack"
    engine = stacked._Engine(study, shutil.copytree(out, tmp_path / "out"), lambda study, out: None)
    monkeypatch.setattr(stacked, "measure", lambda *_: SimpleNamespace(cells=lambda r: r))
    engine._measure(None, ["first", "second"])
    found = [json.loads((engine.out / run / "eval" / "counts.json").read_text()) for run in ("first", "second")]
    assert [(counts["run"], counts["tasks"]["countdown-ltr-3"]) for counts in found] == [("first", 0), ("second", 1)]


def test_the_next_stack_starts_from_the_base_again(done, tmp_path):
    study, out = done
    engine = stacked._Engine(study, shutil.copytree(out, tmp_path / "out"), lambda study, out: None)
    before = {name: x.clone() for name, x in engine.model.state_dict().items()}
    engine.run(["branch-s0"])
    assert all(torch.equal(x, before[name]) for name, x in engine.model.state_dict().items())


def test_a_run_that_diverges_is_failed_and_the_one_beside_it_done(done, tmp_path):
    """At a rate of 1e30 every weight is infinite after a step."""
    variants = {"wild": {"guide": "branch", "learning_rate": 1e30}, "grpo": {"beta": 0.05}}
    evaluated = STUDY["evaluate"] | {"path": {}}
    file = written(tmp_path, variants=variants, seeds=[0], evaluate=evaluated)
    _, left = run_stacked(file, with_its_base(done, tmp_path / "out"))
    assert left == ["wild-s0"]
    status = json.loads((tmp_path / "out" / "wild-s0" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "a number was not finite at step" in status["error"]
    assert not (tmp_path / "out" / "wild-s0" / "train" / "model.safetensors").exists(), "weights nobody should use"
    assert set(finished_runs(tmp_path / "out")) == {"base", "grpo-s0"}
    assert {row.variant for row in study_rows(tmp_path / "out")} == {"base", "grpo"}, "it counts nowhere"


def test_what_is_done_stays_and_the_other_engine_would_leave_it(done, tmp_path):
    study, out = done
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    run_stacked(written(tmp_path), out)
    after = {path: path.stat().st_mtime_ns for path in before}
    assert {p: t for p, t in after.items() if p.name != "study.json"} == {
        path: at for path, at in before.items() if path.name != "study.json"
    }
    assert _unfinished(out, study.runs()) == []


def _stacked_study(file, out):
    run_stacked(file, out, jobs=1)


def test_killed_it_goes_on_with_the_next_stack(tmp_path):
    file, out = written(tmp_path), tmp_path / "out"
    process = forked.Started(_stacked_study, str(file), str(out))
    first = out / "grpo+beta0.0-s0" / "status.json"
    while not (first.is_file() and json.loads(first.read_text())["state"] == "done"):
        assert process.poll() is None, process.end()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.end()
    weights = {path: path.read_bytes() for path in (out / "base").rglob("*.safetensors")}
    assert len(finished_runs(out)) < 1 + len(RUNS)
    kept = os.stat(first).st_mtime_ns
    _, left = run_stacked(file, out, jobs=3)
    assert left == []
    assert set(finished_runs(out)) == {"base", *RUNS}
    assert os.stat(first).st_mtime_ns == kept, "what was done is not done again"
    assert {path: path.read_bytes() for path in (out / "base").rglob("*.safetensors")} == weights


@pytest.mark.slow
def test_stacks_side_by_side_are_done_by_processes_of_their_own(done, tmp_path, monkeypatch):
    monkeypatch.setitem(stacked.PROCESSES, "cpu", 2)
    out = tmp_path / "out"
    _, left = run_stacked(written(tmp_path), out, jobs=1)
    assert left == []
    assert set(finished_runs(out)) == {"base", *RUNS}
    pids = {json.loads((out / run / "status.json").read_text())["pid"] for run in RUNS}
    assert len(pids) == 2
    assert os.getpid() not in pids
    _, alone = done
    for run in RUNS:  # the same draws from a base that is the same but for rounding
        found, theirs = (counts_of(x / run / "eval").tasks["countdown-ltr-3"].rights.mean() for x in (out, alone))
        assert found == pytest.approx(theirs, abs=0.5)


def _forks_two(file, out, watch=lambda study, out: None):
    """Two processes as above, forked (tests/forked.py): they import nothing anew. Nothing may have trained in this one."""
    stacked.PROCESSES["cpu"] = 2
    stacked.get_context = lambda _: mp.get_context("fork")
    run_stacked(file, out, 1, watch)


def _kills_one(file, out):
    def kill_one(study, out):
        for run in RUNS:
            who = stacked.status_of(out, run)
            if who["state"] == "running" and who["pid"] != os.getpid():
                os.kill(who["pid"], signal.SIGKILL)

    with pytest.raises(Failed, match="smaller --jobs"):
        _forks_two(file, out, kill_one)


@pytest.mark.slow
def test_a_process_that_dies_ends_the_study_with_a_sentence(done, tmp_path):
    file, out = written(tmp_path), with_its_base(done, tmp_path / "out")
    ended = forked.run(_kills_one, file, out)
    assert ended.returncode == 0, ended.stderr
    assert len(finished_runs(out)) < 1 + len(RUNS)
    assert run_stacked(file, out, jobs=3)[1] == []


def test_products_are_in_bf16_where_the_study_says_so(done, tmp_path):
    """Its policy is the same but for rounding."""
    out, only = tmp_path / "out", {"branch": {"guide": "branch", "seeds": [0]}}
    run_stacked(written(tmp_path, train=STUDY["train"] | {"bf16": True}, variants=only), out)
    found, theirs = (
        json.loads((x / "branch-s0" / "train" / "log.jsonl").read_text().splitlines()[0])["entropy"]
        for x in (out, done[1])
    )
    assert found != theirs
    assert found == pytest.approx(theirs, rel=0.1)


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(done, tmp_path):
    """Killed, it cannot tell them; whoever goes on with the study would meet them in the same runs."""
    file = written(tmp_path, train=STUDY["train"] | {"max_steps": 100_000})
    out = with_its_base(done, tmp_path / "out")
    process = forked.Started(_forks_two, file, out)

    def trained_by():
        states = [stacked.status_of(out, run) for run in RUNS] if (out / "study.json").is_file() else []
        return {who["pid"] for who in states if who["state"] == "running"} - {process.pid}

    process.wait_for(lambda: len(trained_by()) == 2, "the start of two")
    pids = trained_by()
    process.send_signal(signal.SIGKILL)
    process.end()
    waited = 0
    while any(map(alive, pids)):
        assert (waited := waited + 1) < 600, f"{pids} still train"
        time.sleep(0.1)


def test_a_stack_that_would_not_end_in_time_is_not_begun(tmp_path, monkeypatch):
    clock = iter(range(0, 100_000, 100))
    monkeypatch.setattr(stacked.time, "monotonic", lambda: next(clock))
    began = []
    monkeypatch.setattr(
        stacked,
        "_Engine",
        lambda *args: type("E", (), {"device": "cpu", "run": lambda self, names: began.append(names)})(),
    )
    _, left = run_stacked(written(tmp_path), tmp_path / "out", jobs=1, minutes=10)
    assert 0 < len(began) < len(RUNS)
    assert len(left) == len(RUNS), "none of them is done"


def test_seeds_come_one_after_the_other_and_only_what_is_alike_is_stacked(tmp_path):
    variants = STUDY["variants"] | {"longer": {"max_steps": 7}, "fewer": {"rows": 30}}
    study = load_study(written(tmp_path, variants=variants))
    trained = [run for run in study.runs()[1:] if not study.blend_of(run)]
    groups = list(stacked._stacks(study, trained, most=2))
    assert sorted(run for group in groups for run in group) == sorted(trained)
    assert max(map(len, groups)) == 2
    seeds = [min(int(run[-1]) for run in group) for group in groups]
    assert seeds == sorted(seeds)
    for group in groups:
        assert len({(s["max_steps"], s["rows"]) for s in map(study.settings_of, group)}) == 1


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [("use_vllm", True, "use_vllm"), ("dynamic_sampling", 2, "dynamic_sampling"), ("sft", {}, "sft")],
)
def test_what_it_has_no_code_for_is_one_sentence(done, tmp_path, setting, value, said):
    with pytest.raises(UserError, match=f"stacked engine has no {said}"):
        run_stacked(written(tmp_path, train=STUDY["train"] | {setting: value}), with_its_base(done, tmp_path / "out"))


@pytest.mark.parametrize(
    ("part", "changed", "said"),
    [
        ("evaluate", {"temperature": 0.3}, "evaluate: temperature: 0.3"),
        ("evaluate", {"min_p": 0.01}, "evaluate: min_p: 0.01"),
        ("evaluate", {"seeds": [3, 4]}, "evaluate: seeds:"),
        ("train", {"prompt_format": "boxed"}, "prompt_format: 'boxed'"),
    ],
)
def test_samples_that_it_would_not_draw_as_asked_are_refused(tmp_path, part, changed, said):
    with pytest.raises(UserError, match=said):
        run_stacked(written(tmp_path, **{part: STUDY[part] | changed}), tmp_path / "out")
