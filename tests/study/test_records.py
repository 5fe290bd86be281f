"""Records: a study's counts without its samples, laid into another folder, give the same tables and go on from there."""

import json
import lzma
import os
import runpy
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.beside import support_rows, training_curves
from benchmarks.gpu.records import BASE, RUNS, borrow_base, keep, pack, read_records, unpack
from sage_rlvr import UserError
from sage_rlvr.evaluate.results import results
from sage_rlvr.models import write_whole
from sage_rlvr.stats.counts import RIGHT, compact, counts_of, from_compact
from sage_rlvr.stats.estimates import rates
from sage_rlvr.stats.table import as_json
from sage_rlvr.study import job
from sage_rlvr.study.job import STATUS, start_model
from sage_rlvr.study.plan import Study, load_study, open_folder, read_folder
from sage_rlvr.study.read import finished, read_planes, study_rows
from sage_rlvr.study.run import finished_runs, status_of
from tests.evaluate.runs import make_run

from .. import forked
from . import forking
from .small import SMALL

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "study.py"
VARIANTS = {"grpo+beta0.1": {"beta": 0.1}, "grpo+beta0.4": {"beta": 0.4}, "sage+beta0.1": {}, "sage+beta0.4": {}}
PROBLEMS = [f"p{i}" for i in range(12)]


@pytest.fixture(autouse=True)
def neighbours(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)  # as Python itself does for a script


def study(seeds=(0, 1), variants=VARIANTS):
    parts = {"base": {"model_name_or_path": "m"}, "train": {"max_steps": 3}, "evaluate": {"tasks": ["t"], "n": 8}}
    return Study("small", variants=dict(variants), seeds=list(seeds), **parts)


def finish(out, run, rng, rate):
    """As a run that is done leaves it: a store, a training log, a status."""
    words = {p: ["".join(rng.choice(list("10xt"), 8, p=[rate, 0.8 - rate, 0.1, 0.1]))] for p in PROBLEMS}
    make_run(out / run / "eval", {"t": words}, solutions=True)
    (out / run / "train").mkdir()
    (out / run / "train" / "log.jsonl").write_text('{"step": 1, "loss": 0.5, "reward": 0.25}\n')
    now = {"state": "done", "stage": "eval", "pid": 1, "started": 10.0, "updated": 70.0, "model": "x"}
    write_whole(out / run / STATUS, json.dumps(now))


@pytest.fixture
def folder(tmp_path):
    out, rng = tmp_path / "study", np.random.default_rng(0)
    open_folder(study(), out)
    finish(out, "base", rng, 0.1)
    model = out / "base" / "sft" / "model"
    (model / "checkpoint-5").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "optimizer.pt", "checkpoint-5/model.safetensors"):
        (model / name).write_text(name)
    write_whole(out / "base" / "start.json", json.dumps({"model": str(model)}))
    for i, run in enumerate(study().runs()[1:-1]):  # the last one is not done
        finish(out, run, rng, 0.2 + 0.05 * i)
    return out


def test_a_compact_run_counts_the_same(tmp_path):
    words = {"a": ["11x0", "1t.1"], "b": ["0000", "hhhh"], "c": ["l?10", "1111"], "d": ["....", "0xxx"]}
    store = make_run(tmp_path / "eval", {"t": words}, solutions=True)
    record = json.loads(json.dumps(compact(store)))
    there, back = counts_of(store).tasks["t"], from_compact(record).tasks["t"]
    assert (there.problems, there.seeds, there.n, there.unverifiable) == (
        back.problems, back.seeds, back.n, back.unverifiable,
    )  # fmt: skip
    for name in ("rights", "totals", "whole", "tokens"):
        assert np.array_equal(getattr(there, name), getattr(back, name)), name
    assert record["tasks"]["t"]["problems"]["a"] == [[2, {"s0": 1, "s1": 1}, 46], [1, {"s0": 2}, 34]]
    assert record["tasks"]["t"]["truncated"] == 1
    for cell in np.ndindex(len(there.problems), len(there.seeds)):  # right solutions by name, each as often
        was, now = (sorted(t.solution[cell][t.state[cell] == RIGHT]) for t in (there, back))
        assert was == now
    with pytest.raises(UserError, match="is of version 9"):
        from_compact(record | {"version": 9})


def test_what_counts_alone_do_not_know_is_not_told_as_nothing(tmp_path):
    store = make_run(tmp_path / "eval", {"t": {"a": ["11l0", "1tl-"], "b": ["0000", "l1x1"]}}, solutions=True)
    kept = from_compact(json.loads(json.dumps(compact(store))))
    own, left = results(store).tasks["t"], results(kept).tasks["t"]
    assert 0 < own.rates["truncated"] < own.rates["answered"] < 1
    assert left.rates == {key: own.rates[key] for key in ("tokens", "truncated")}
    assert "truncated" not in rates(kept.tasks["t"].only(["a"])), "whose it was is not kept"
    assert (left.pass_at, left.distinct_solutions) == (own.pass_at, own.distinct_solutions)
    assert own.majority_at
    assert own.distinct_answers
    assert (left.majority_at, left.distinct_answers) == ({}, None)
    assert (results(kept).average.pass_at, results(kept).average.majority_at) == (results(store).average.pass_at, {})


def test_another_folder_gives_the_same_tables(folder, tmp_path):
    assert pack(folder, tmp_path / "records") == 8
    new = unpack([tmp_path / "records"], tmp_path / "there")
    assert new == list(finished_runs(folder)) == list(finished_runs(tmp_path / "there"))
    assert as_json(study_rows(tmp_path / "there")) == as_json(study_rows(folder))
    for family, points in read_planes(folder, "t").families().items():
        for p, q in zip(points, read_planes(tmp_path / "there", "t").families()[family], strict=True):
            assert np.array_equal(p.x, q.x)
            assert np.array_equal(p.y, q.y)
    there = status_of(tmp_path / "there", "base")
    assert (there["started"], there["updated"], there["reward"]) == (10.0, 70.0, 0.25)


def test_records_are_read_as_the_folder_that_they_are_unpacked_into(folder, tmp_path):
    pack(folder, tmp_path / "records")
    unpack([tmp_path / "records"], tmp_path / "there")
    here, there = read_records(tmp_path / "records"), finished(tmp_path / "there")
    assert here.study == there.study
    assert list(here.runs) == list(there.runs)
    assert [here.log(run) for run in here.runs] == [there.log(run) for run in there.runs] != [[]] * 8
    assert as_json(study_rows(here)) == as_json(study_rows(there))
    assert finished(here) is here


@pytest.mark.parametrize("state", ["running", "interrupted", "failed"])
def test_a_run_that_is_not_done_counts_nowhere(folder, tmp_path, state):
    """Though its evaluation is there: a part of its samples would pass for all of them."""
    run = list(finished_runs(folder))[-1]
    status = json.loads((folder / run / STATUS).read_text())
    write_whole(folder / run / STATUS, json.dumps(status | {"state": state}))
    assert (folder / run / "eval").is_dir()
    assert run not in finished_runs(folder)
    assert run not in finished(folder).runs
    assert pack(folder, tmp_path / "records") == 7
    assert run not in read_records(tmp_path / "records").runs


def test_the_base_travels_without_what_only_training_needs(folder, tmp_path):
    pack(folder, tmp_path / "records")
    unpack([tmp_path / "records"], tmp_path / "there")
    model = Path(start_model(tmp_path / "there"))
    assert model.parent == tmp_path / "there" / "base"
    assert {f.name: f.read_text() for f in model.iterdir()} == {
        "config.json": "config.json",
        "model.safetensors": "model.safetensors",
    }


def test_records_add_up_and_come_back_as_they_were(folder, tmp_path):
    pack(folder, tmp_path / "first")
    unpack([tmp_path / "first"], tmp_path / "there")
    finish(tmp_path / "there", "sage+beta0.4-s1", np.random.default_rng(1), 0.3)
    assert pack(tmp_path / "there", tmp_path / "second") == 9
    first, second = (lzma.decompress((tmp_path / f / RUNS).read_bytes()).splitlines() for f in ("first", "second"))
    assert second[:-1] == first
    assert unpack([tmp_path / "second"], folder) == ["sage+beta0.4-s1"], "what is done here stays"
    time.sleep(0.01)
    pack(tmp_path / "there", tmp_path / "third")
    for file in Path(start_model(tmp_path / "there")).iterdir():
        os.utime(file, (1.0, 2.0))
    pack(tmp_path / "there", tmp_path / "fourth")
    for name in (RUNS, BASE):
        assert len({(tmp_path / place / name).read_bytes() for place in ("second", "third", "fourth")}) == 1


def test_a_study_that_has_grown_takes_the_records_of_its_smaller_self(folder, tmp_path):
    pack(folder, tmp_path / "records")
    grown = study(seeds=(0, 1, 2), variants=VARIANTS | {"more": {}})
    open_folder(grown, tmp_path / "there")
    unpack([tmp_path / "records"], tmp_path / "there")
    assert read_folder(tmp_path / "there") == grown
    assert len(finished_runs(tmp_path / "there")) == 8
    open_folder(study(variants={"other": {}}), tmp_path / "stranger")
    with pytest.raises(UserError, match="other settings"):
        open_folder(study(variants=VARIANTS | {"sage+beta0.1": {"beta": 1}}), tmp_path / "there")
    with pytest.raises(UserError, match="holds no records of a study"):
        unpack([tmp_path / "there"], tmp_path / "x")


def test_a_template_filled_in_goes_on_from_its_base(tmp_path):
    """As studies/confirm.yaml: the base is made and recorded before it is known which variants will run from it."""
    template, filled = study(variants={"winner": {"beta": 1}}), study(variants={"winner": {"beta": 2}, "third": {}})
    open_folder(template, tmp_path / "study")
    finish(tmp_path / "study", "base", np.random.default_rng(0), 0.1)
    write_whole(tmp_path / "study" / "base" / "start.json", json.dumps({"model": "m"}))
    pack(tmp_path / "study", tmp_path / "records")
    unpack([tmp_path / "records"], tmp_path / "there")
    open_folder(filled, tmp_path / "there")
    assert read_folder(tmp_path / "there") == filled
    assert list(finished_runs(tmp_path / "there")) == ["base"]
    finish(tmp_path / "there", "winner-s0", np.random.default_rng(0), 0.1)
    with pytest.raises(UserError, match=r"winner-s0, which has other settings \(beta\)"):
        open_folder(template, tmp_path / "there")
    pack(tmp_path / "there", tmp_path / "more")
    open_folder(template, tmp_path / "elsewhere")
    with pytest.raises(UserError, match="the run winner-s0 was made with other settings"):
        unpack([tmp_path / "more"], tmp_path / "elsewhere")


def test_a_variant_has_the_seeds_that_either_side_gave_it(tmp_path):
    few, more = (study(seeds=(0,), variants={"a": {"seeds": seeds}, "b": {}}) for seeds in ([0, 1], [0, 1, 2]))
    for part, name in ((few, "few"), (more, "more")):
        open_folder(part, tmp_path / name)
        for run in part.runs():
            finish(tmp_path / name, run, np.random.default_rng(0), 0.1)
        write_whole(tmp_path / name / "base" / "start.json", json.dumps({"model": "m"}))
        pack(tmp_path / name, tmp_path / "records" / name)
    for order in (("few", "more"), ("more", "few")):
        out = tmp_path / "-".join(order)
        unpack([tmp_path / "records" / name for name in order], out)
        assert list(finished_runs(out)) == ["base", "a-s0", "a-s1", "a-s2", "b-s0"]


def test_the_folders_own_settings_stay_where_the_records_have_older_ones(tmp_path):
    """Of what has not run: the records hold a base alone, made when the template said otherwise."""
    open_folder(study(variants={"a": {}}), tmp_path / "old")
    finish(tmp_path / "old", "base", np.random.default_rng(0), 0.1)
    write_whole(tmp_path / "old" / "base" / "start.json", json.dumps({"model": "m"}))
    pack(tmp_path / "old", tmp_path / "records")
    now = replace(study(variants={"a": {}}), train={"max_steps": 7})
    open_folder(now, tmp_path / "here")
    (tmp_path / "here" / "a-s0").mkdir()
    unpack([tmp_path / "records"], tmp_path / "here")
    assert read_folder(tmp_path / "here") == now
    open_folder(replace(now, evaluate={"tasks": ["t"], "n": 9}), tmp_path / "other")
    with pytest.raises(UserError, match="whose evaluate differs"):
        unpack([tmp_path / "records"], tmp_path / "other")


def test_support_and_curves(folder):
    rows = {r["variant"]: r for r in support_rows(folder, "t")}
    assert list(rows) == list(VARIANTS)
    base = counts_of(folder / "base" / "eval").tasks["t"].rights > 0
    kept, lost, found = [], [], []
    for seed in (0, 1):
        now = counts_of(folder / f"grpo+beta0.1-s{seed}" / "eval").tasks["t"].rights > 0
        kept.append(sum(base & now))
        lost.append(sum(base & ~now))
        found.append(sum(now & ~base))
    row = rows["grpo+beta0.1"]
    assert (row["seeds"], row["budget"], rows["sage+beta0.4"]["seeds"]) == (2, 8, 1)
    assert [row["P"], row["S"], row["E"]] == [np.mean(kept), np.mean(lost), np.mean(found)]
    assert row["SRR"] == pytest.approx(np.mean([k / (k + s) for k, s in zip(kept, lost)]))
    (folder / "grpo+beta0.1-s1" / "train" / "log.jsonl").write_text('{"step": 1, "reward": 0.75, "x": null}\n')
    curves = training_curves(folder, ("reward", "loss", "x"))
    assert curves["grpo+beta0.1"]["reward"] == [[1, 0.5]]
    assert curves["sage+beta0.1"]["loss"] == [[1, 0.5]]


def test_a_base_without_its_weights_is_asked_for_before_anything_runs(tmp_path, monkeypatch, capsys):
    """A study that made its base: its samples and its weights lie in two files, and one was left behind."""
    file, here, records = tmp_path / "small.yaml", tmp_path / "here", tmp_path / "records"
    file.write_text(yaml.safe_dump(SMALL))
    open_folder(load_study(file), here)
    finish(here, "base", np.random.default_rng(0), 0.1)
    (here / "base" / "model").mkdir()
    write_whole(here / "base" / "start.json", json.dumps({"model": str(here / "base" / "model")}))
    pack(here, records)
    weights = (records / BASE).replace(tmp_path / BASE)
    script = runpy.run_path(str(SCRIPT))
    for name, value in script["ENVIRONMENT"].items():
        monkeypatch.setenv(name, value)
    argv = ["study.py", "run", "--study", file, "--records", records, "--out", tmp_path / "there", "--only", "none"]
    monkeypatch.setattr(sys, "argv", [*map(str, argv)])
    for _ in range(2):  # the records are laid out by now
        with pytest.raises(SystemExit) as end:
            script["main"]()
        assert end.value.code == 2
        assert f"not its weights ({BASE})" in capsys.readouterr().err
    weights.replace(records / BASE)
    assert script["main"]() == 0


def test_a_study_starts_from_the_base_of_another_and_leaves_it_there(folder, tmp_path):
    pack(folder, tmp_path / "records")
    again, out = replace(study(), name="again"), tmp_path / "again"
    open_folder(again, out)
    borrow_base(again, tmp_path / "records", out)
    own = [*Path(start_model(out)).iterdir()]
    assert sorted(f.name for f in own) == ["config.json", "model.safetensors"]
    assert all(f.read_bytes() == (Path(start_model(folder)) / f.name).read_bytes() for f in own)
    finish(out, "base", np.random.default_rng(0), 0.1)
    assert pack(out, tmp_path / "kept") == 1
    assert [f.name for f in (tmp_path / "kept").iterdir()] == [RUNS]
    other = replace(again, base={"model_name_or_path": "other"})
    with pytest.raises(UserError, match="made its base with other settings than again asks for"):
        borrow_base(other, tmp_path / "records", out)


def test_no_run_is_started_that_would_not_end_in_time(monkeypatch):
    script, now = runpy.run_path(str(SCRIPT)), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = script["Watch"](end=1000.0, jobs=8)
    assert watch.admit(0)  # nobody knows yet how long one takes
    watch.took = [200.0, 180.0, 210.0]
    now[0] = 800.0
    assert [watch.admit(n) for n in range(8)] == [True] * 8
    now[0] = 850.0  # 150 s for runs that take 200 s beside seven others: five others are company enough
    assert [watch.admit(n) for n in range(8)] == [True] * 6 + [False] * 2
    now[0] = 901.0
    assert not watch.admit(1)
    with pytest.raises(script["TimeUp"]):
        watch.admit(0)


def test_how_long_a_run_takes_is_learnt_from_runs_alone(monkeypatch):
    """The base is another kind of work: after half an hour of it a run of minutes may still start."""
    script, now, states = runpy.run_path(str(SCRIPT)), [0.0], {}
    watch = script["Watch"](end=2000.0, jobs=1)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setitem(
        type(watch).__call__.__globals__, "status_of", lambda out, run: {"state": states[run], "stage": ""}
    )
    monkeypatch.setattr(watch.keeper, "submit", lambda *args: None)
    small = study(seeds=[0], variants={"grpo": {}})
    for seconds, states in ((0, ("running", "waiting")), (1800, ("done", "running")), (1900, ("done", "done"))):
        now[0] = float(seconds)
        states = dict(zip(small.runs(), states))
        watch(small, None)
        assert watch.admit(0)
    assert watch.took == [100.0]


MPS = """#!/bin/sh
if [ "$1" = "-d" ]; then [ ! -f {0} ] && touch {0}; exit; fi
[ -f {0} ] || exit 1
read -r asked
[ "$asked" != quit ] || rm {0}
"""


@pytest.fixture
def service(tmp_path, monkeypatch):
    """The file that is there as long as an nvidia-cuda-mps-control runs: it starts once, and answers 1 when it is not there."""
    control, running = tmp_path / "nvidia-cuda-mps-control", tmp_path / "running"
    control.write_text(MPS.format(running))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return running


@pytest.mark.parametrize("serves", [True, False])
def test_an_mps_that_serves_nobody_is_stopped(service, monkeypatch, serves):
    """It starts, and a process that asks for the card gets it or not; then it must be told to quit."""
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setattr(sys, "executable", shutil.which("true" if serves else "false"))
    assert script["start_mps"]() is serves
    assert service.is_file() is serves


def test_an_mps_that_runs_already_is_shared_and_never_stopped(service, monkeypatch):
    """As an earlier piece leaves it, or a study beside this one: the runs go through it, and the session says so."""
    script = runpy.run_path(str(SCRIPT))
    service.touch()
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    assert script["start_mps"]() is True
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(UserError, match=r"serves nobody.*echo quit \| nvidia-cuda-mps-control"):
        script["start_mps"]()
    assert service.is_file(), "others may be served by it"


def test_a_model_the_study_did_not_make_stays_where_it_is(folder, tmp_path):
    """A Hub id, or gigabytes in a folder of the user's: the name goes along, the weights do not."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "model.safetensors").write_text("large")
    write_whole(folder / "base" / "start.json", json.dumps({"model": str(mine)}))
    pack(folder, tmp_path / "records")
    assert not (tmp_path / "records" / "base.tar.gz").exists()
    unpack([tmp_path / "records"], tmp_path / "there")
    assert start_model(tmp_path / "there") == "m"


def test_a_model_of_the_users_has_the_name_the_study_has_for_it(tmp_path, monkeypatch):
    """Evaluation wrote down where it lies on this machine; that is in no record."""
    monkeypatch.chdir(tmp_path)
    out, mine = Path("study"), tmp_path / "Qwen" / "mine"
    mine.mkdir(parents=True)
    open_folder(study(), out)
    settings = {"temperature": 0.3, "model": str(mine), "adapter": str(out.resolve() / "grpo-s0" / "train")}
    make_run(out / "base" / "eval", {"t": {p: ["10"] for p in PROBLEMS}}, settings)
    write_whole(out / "base" / STATUS, json.dumps({"state": "done", "stage": "eval", "pid": 1, "model": str(mine)}))
    write_whole(out / "base" / "start.json", json.dumps({"model": "Qwen/mine"}))
    record = keep(out, "base")
    assert record["status"]["model"] == "Qwen/mine"
    assert str(tmp_path) not in json.dumps(record)


def test_what_is_trained_here_is_evaluated_there(tmp_path):
    """A real run of a small study: its weights go along in the records, no step is taken again, and then they are dropped."""
    there = tmp_path / "there"
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL | {"variants": {"grpo": {}}}))
    small = load_study(file)
    here = tmp_path / "here"
    open_folder(small, here)
    assert forked.run(job.main, here, "base").returncode == 0
    (here / "grpo-s0").mkdir()
    job.train_variant(small, here, "grpo-s0")  # and its machine is gone before the evaluation
    assert pack(here, tmp_path / "records") == 1
    assert not (tmp_path / "records" / "trained").exists(), "only on request"
    pack(here, tmp_path / "records", trained=True)
    assert unpack([tmp_path / "records"], there) == ["base"]
    assert unpack([tmp_path / "records"], there) == []  # what is there stays
    assert status_of(there, "grpo-s0")["state"] == "waiting"
    weights = [(folder / "grpo-s0" / "train" / "model.safetensors").read_bytes() for folder in (here, there)]
    assert forked.run(forking.study, "run", file, "--out", there, "--jobs", "1", timeout=1200).returncode == 0
    assert status_of(there, "grpo-s0")["state"] == "done"
    logs = [(folder / "grpo-s0" / "train" / "log.jsonl").read_text() for folder in (here, there)]
    assert logs[0] == logs[1]
    assert weights == [(there / "grpo-s0" / "train" / "model.safetensors").read_bytes()] * 2
    assert pack(there, tmp_path / "records", trained=True) == 2
    assert not list((tmp_path / "records" / "trained").iterdir())
    with lzma.open(tmp_path / "records" / RUNS, "rt", encoding="utf-8") as f:
        said = f.read()
    assert '"model":"grpo-s0/train"' in said
    assert str(tmp_path) not in said, "where the study lay is nobody's business"


def test_an_adapter_is_laid_on_the_base_that_is_here(folder, tmp_path):
    last = folder / study().runs()[-1] / "train"  # trained, not evaluated
    last.mkdir(parents=True)
    (last / "adapter_model.safetensors").write_text("weights")
    (last / "adapter_config.json").write_text(json.dumps({"r": 8, "base_model_name_or_path": "/elsewhere/model"}))
    recipe = {"settings": {"model_name_or_path": "/elsewhere/model", "beta": 0.1}, "finished": True}
    (last / "run.json").write_text(json.dumps(recipe))
    pack(folder, tmp_path / "records", trained=True)
    unpack([tmp_path / "records"], tmp_path / "there")
    laid, base = tmp_path / "there" / last.parent.name / "train", start_model(tmp_path / "there")
    assert json.loads((laid / "adapter_config.json").read_text()) == {"r": 8, "base_model_name_or_path": base}
    assert json.loads((laid / "run.json").read_text())["settings"] == {"model_name_or_path": base, "beta": 0.1}
    assert (laid / "adapter_model.safetensors").read_text() == "weights"


def test_checkpoints_of_the_path_travel_with_what_was_trained(folder, tmp_path):
    """A machine that ends between training and evaluation takes nothing along that was drawn."""
    record = json.loads((folder / "study.json").read_text())
    record["evaluate"]["path"], record["train"]["save_steps"] = {"steps": [2]}, 2
    (folder / "study.json").write_text(json.dumps(record))
    for run in study().runs()[1:-1]:
        shutil.rmtree(folder / run)
    last = folder / study().runs()[-1] / "train"
    for place, weights in (("checkpoint-2", "early"), ("checkpoint-4", "not asked for"), (".", "last")):
        (last / place).mkdir(parents=True, exist_ok=True)
        (last / place / "adapter_model.safetensors").write_text(weights)
        (last / place / "optimizer.pt").write_text("large")
        (last / place / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/elsewhere/model"}))
    (last / "run.json").write_text(json.dumps({"settings": {}, "finished": True}))
    pack(folder, tmp_path / "records", trained=True)
    unpack([tmp_path / "records"], tmp_path / "there")
    laid, base = tmp_path / "there" / last.parent.name / "train", start_model(tmp_path / "there")
    assert sorted(str(f.relative_to(laid)) for f in laid.rglob("*.*")) == [
        "adapter_config.json", "adapter_model.safetensors", "checkpoint-2/adapter_config.json",
        "checkpoint-2/adapter_model.safetensors", "run.json",
    ]  # fmt: skip
    assert (laid / "checkpoint-2" / "adapter_model.safetensors").read_text() == "early"
    for config in laid.rglob("adapter_config.json"):
        assert json.loads(config.read_text()) == {"base_model_name_or_path": base}


def test_a_model_in_a_folder_is_not_copied_into_the_study(tmp_path):
    """Named by its absolute path, which joined to the place of packaged models is itself."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "model.safetensors").write_text("gigabytes")
    assert job.build_base({"model_name_or_path": str(mine)}, tmp_path / "base") == str(mine)
    assert job.build_base({"model_name_or_path": "demo-base"}, tmp_path / "base") == str(tmp_path / "base" / "model")
    assert (tmp_path / "base" / "model" / "model.safetensors").stat().st_size > 1000
