"""Running a study: how many runs at a time, and Ctrl-C, after which the same command goes on."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest
import yaml

from benchmarks.gpu.records import unpack
from sage_rlvr.models import write_whole
from sage_rlvr.processes import alive, identity
from sage_rlvr.runs.checkpoint import last_complete
from sage_rlvr.study import job
from sage_rlvr.study import run as study_run
from sage_rlvr.study.job import START
from sage_rlvr.study.plan import load_study, open_folder
from sage_rlvr.study.run import status_of

from .. import forked
from . import forking
from .small import SMALL

# ---- how many at a time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gib", "cores", "jobs"),
    [
        (100, 64, 4),  # four at most
        (100, 3, 3),  # one a core
        (7.9, 64, 3),  # 2 GiB a run
        (4, 64, 2),
        (3.9, 64, 1),
        (0.5, 64, 1),  # never none
    ],
)
def test_no_more_runs_than_memory_allows(monkeypatch, gib, cores, jobs):
    """Nothing is free: the page cache holds all that is available."""
    memory = SimpleNamespace(available=int(gib * 1024**3), free=0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert study_run.default_jobs() == jobs


def test_one_run_a_gpu_whatever_the_memory(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 6)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1, free=1))
    assert study_run.default_jobs() == 6


# ---- Ctrl-C --------------------------------------------------------------------------------------------------------

STEPS = 60  # many more than have passed when it is interrupted
GUARD_S = 1200  # against hanging alone


def processes_of(mark):
    """Whatever the study started anew, in any session: its environment says so."""
    return [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("STARTED_BY") == mark]


def logged_steps(folder):
    lines = map(json.loads, (folder / "train" / "log.jsonl").read_text().splitlines())
    return [entry for entry in lines if "loss" in entry]


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_and_the_next_run_goes_on_from_it(tmp_path):
    training = SMALL["train"] | {"max_steps": STEPS, "save_steps": 10 * STEPS}
    file, out, mark = tmp_path / "small.yaml", tmp_path / "out", str(tmp_path)
    file.write_text(yaml.safe_dump(SMALL | {"train": training, "variants": {"grpo": {}}}))
    open_folder(load_study(file), out)
    assert forked.run(job.main, str(out), "base").returncode == 0
    command = (forking.study, "run", file, "--out", out, "--jobs", "1")
    process = forked.Started(*command, env={"STARTED_BY": mark}, session=True)
    below = []
    try:
        process.wait_for(lambda: status_of(out, "grpo-s0").get("step", 0) >= 3, "the training", GUARD_S)
        below = psutil.Process(process.pid).children(recursive=True)
        assert status_of(out, "grpo-s0")["pid"] in {p.pid for p in below}
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        ended = process.end(GUARD_S)
        assert ended.returncode == 130, ended
        assert (ended.stdout + ended.stderr).rstrip().endswith("sage-rlvr study: interrupted")
        assert [p for p in below if alive(p.pid)] == []
        assert processes_of(mark) == []
    finally:
        process.send_signal(signal.SIGKILL)
        for left in [*below, *processes_of(mark)]:
            with suppress(psutil.NoSuchProcess):
                left.kill()
    assert status_of(out, "grpo-s0")["state"] == "interrupted"
    checkpoint = last_complete(out / "grpo-s0" / "train")
    assert checkpoint is not None, (out / "grpo-s0" / "job.log").read_text()
    step = int(checkpoint.rpartition("-")[2])
    assert 3 <= step < STEPS
    before = logged_steps(out / "grpo-s0")
    again = forked.run(*command, timeout=GUARD_S)
    assert again.returncode == 0, again.stdout + again.stderr
    assert status_of(out, "grpo-s0")["state"] == "done"
    after = logged_steps(out / "grpo-s0")
    assert [entry["step"] for entry in after] == list(range(1, STEPS + 1))
    assert after[:step] == before[:step], (
        "steps behind the checkpoint are not taken again: even their times are the same"
    )
    assert (out / "table.json").is_file()


class Stuck:
    """A run that goes on, in a study that is interrupted at once; those of ``deaf`` do not end when they are told to."""

    def __init__(self, run, calls, deaf, now):
        self.run, self.calls, self.deaf, self.now = run, calls, deaf, now

    def poll(self):
        return None

    def send_signal(self, number):
        self.calls.append((self.run, number))

    def wait(self, timeout):
        assert timeout >= 0
        self.calls.append((self.run, "waited"))
        if self.run in self.deaf:
            self.now[0] += timeout
            raise subprocess.TimeoutExpired("job", timeout)

    def kill(self):
        self.calls.append((self.run, "killed"))


def interrupted(study, out, runs, deaf, monkeypatch):
    """What was asked of the runs, and how long it took by the clock."""
    calls, now = [], [0.0]

    def interrupt(study, out):
        raise KeyboardInterrupt

    monkeypatch.setattr(study_run, "_start", lambda out, run, *rest: Stuck(run, calls, deaf, now))
    monkeypatch.setattr(study_run.time, "monotonic", lambda: now[0])
    with pytest.raises(KeyboardInterrupt):
        study_run._run(study, out, runs, len(runs), interrupt)
    return calls, now[0]


def test_ctrl_c_asks_every_run_first_then_waits_and_kills_only_what_does_not_end(tmp_path, monkeypatch):
    """Two runs, one of which does not listen."""
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    runs = ["grpo-s0", "branch-s0"]
    calls, _ = interrupted(load_study(file), tmp_path / "out", runs, ["grpo-s0"], monkeypatch)
    asked, ended = calls[:2], calls[2:]
    assert asked == [("grpo-s0", signal.SIGTERM), ("branch-s0", signal.SIGTERM)]
    assert ended == [("grpo-s0", "waited"), ("grpo-s0", "killed"), ("branch-s0", "waited")]


def test_runs_that_do_not_end_are_waited_for_together(tmp_path, monkeypatch):
    """24 that do not listen share the time that one has; one that ends within it is not killed, however late it is asked."""
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL | {"seeds": list(range(12))}))
    study = load_study(file)
    *deaf, last = study.runs()[1:]
    calls, took = interrupted(study, tmp_path / "out", [*deaf, last], deaf, monkeypatch)
    killed = [run for run, what in calls if what == "killed"]
    assert (len(deaf), killed, took) == (23, deaf, float(study_run.GRACE_S))


@pytest.mark.parametrize("ends", ["well", "before it is made", "after it is made"])
def test_the_base_is_sampled_beside_the_others_once_it_is_made(ends, tmp_path, monkeypatch):
    """And where it cannot be made nothing else is begun; where only its samples fail the others are run."""
    file, out, started = tmp_path / "small.yaml", tmp_path / "out", []
    file.write_text(yaml.safe_dump(SMALL))

    class Process:
        returncode = 0

        def __init__(self, run):
            self.run, self.left = run, 3
            started.append((run, (out / "base" / START).is_file()))

        def poll(self):
            self.left -= 1
            if self.run == "base" and self.left == 2 and ends != "before it is made":
                write_whole(out / "base" / START, "{}")
            if self.left:
                return None
            self.returncode = 1 if self.run == "base" and ends != "well" else 0
            return self.returncode

    def fake(out, run, *rest):
        (out / run).mkdir(parents=True, exist_ok=True)
        return Process(run)

    monkeypatch.setattr(study_run, "_start", fake)
    monkeypatch.setattr(study_run.time, "sleep", lambda s: None)
    _, failed = study_run.run_study(file, out, jobs=3)
    assert failed == ([] if ends == "well" else ["base"])
    if ends == "before it is made":
        assert started == [("base", False)]
    else:
        assert started[0] == ("base", False)
        assert sorted(started[1:]) == [("branch-s0", True), ("grpo-s0", True)]


def test_one_more_starts_only_when_it_is_admitted(tmp_path, monkeypatch):
    """Three places, and two runs at most by the caller's word; all are run in the end."""
    file, going, most = tmp_path / "small.yaml", [], []
    file.write_text(yaml.safe_dump(SMALL))

    class Process:
        returncode = 0

        def __init__(self, run):
            self.run, self.left = run, 2
            going.append(run)

        def poll(self):
            self.left -= 1
            if self.left:
                return None
            going.remove(self.run)
            return 0

    monkeypatch.setattr(study_run, "_start", lambda out, run, *rest: Process(run))
    monkeypatch.setattr(study_run.time, "sleep", lambda seconds: None)
    watch, told = (lambda study, out: most.append(len(going))), []
    runs = ["grpo-s0", "branch-s0", "grpo-s1", "branch-s1"]
    failed = study_run._run(load_study(file), tmp_path / "out", runs, 3, watch, lambda n: told.append(n) or n < 2)
    assert (failed, going, max(most)) == ([], [], 2)
    assert 2 in told


def test_what_took_longest_at_other_seeds_goes_first_within_its_own(tmp_path, monkeypatch):
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    variants = {name: {} for name in ("quick", "new", "slow", "slower")}
    file.write_text(yaml.safe_dump(SMALL | {"variants": variants, "seeds": [5, 1, 2]}))
    for run, seconds in {"quick-s5": 10, "slow-s5": 20, "slower-s5": 5, "slower-s1": 30}.items():
        (out / run).mkdir(parents=True)
        done = {"state": "done", "stage": "eval", "pid": 1, "started": 100.0, "updated": 100.0 + seconds}
        (out / run / study_run.STATUS).write_text(json.dumps(done))
    asked = []
    monkeypatch.setattr(study_run, "_run", lambda study, out, runs, *rest: asked.append(runs) or [])
    study_run.run_study(file, out, jobs=12)
    order = ["new-s5", "slow-s1", "quick-s1", "new-s1", "slower-s2", "slow-s2", "quick-s2", "new-s2"]
    assert asked == [["base", *order]]


@pytest.mark.slow
def test_a_piece_that_is_told_to_end_packs_what_is_done(tmp_path):
    file, to = tmp_path / "small.yaml", tmp_path / "records"
    file.write_text(yaml.safe_dump(SMALL | {"seeds": [0, 1, 2, 3]}))
    asked = ["--study", file, "--records", to, "--out", tmp_path / "out", "--jobs", "1", "--minutes", "9"]
    piece = forked.Started(forking.piece, "run", *asked)
    piece.wait_for(lambda: "base: done" in piece.said()[0], "the base's end", GUARD_S)
    piece.send_signal(signal.SIGTERM)
    ended = piece.end(GUARD_S)
    assert ended.returncode == 0, ended.stderr
    assert "base" in unpack([to], tmp_path / "there")
    assert "base" in json.loads((to / "sessions.json").read_text())[0]["finished"]


# ---- two of them, and one that was killed -------------------------------------------------------------------------


def ended_badly(out, run, **who):
    """What a killed run leaves behind, its number since given to another process."""
    (out / run).mkdir(parents=True)
    status = {"state": "running", "stage": "train", "started": 1.0, "updated": 2.0, **who}
    (out / run / study_run.STATUS).write_text(json.dumps(status))


class Ends:
    """A run that is done at once."""

    returncode = 0

    def __init__(self, out, run):
        done = {"state": "done", "stage": "eval", **identity()}
        write_whole(out / run / study_run.STATUS, json.dumps(done))

    def poll(self):
        return 0


def test_a_status_whose_number_another_process_has_now_is_not_waited_for(tmp_path, monkeypatch):
    """Nor one of another machine: if it still runs, its own locks say so."""
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(SMALL))
    living = identity(os.getppid())
    ended_badly(out, "base", **(living | {"start": living["start"] - 1}))
    ended_badly(out, "grpo-s0", **(living | {"boot": "an earlier one"}))
    ended_badly(out, "branch-s0", **(living | {"host": "elsewhere"}))
    states = {run: status_of(out, run)["state"] for run in ("base", "grpo-s0", "branch-s0")}
    assert states == {"base": "interrupted", "grpo-s0": "interrupted", "branch-s0": "running"}
    monkeypatch.setattr(study_run, "_start", lambda out, run, *rest: Ends(out, run))
    slept = []
    monkeypatch.setattr(
        study_run.time, "sleep", lambda s: slept.append(s) if len(slept) < 50 else pytest.fail("it waits")
    )
    write_whole(out / "base" / START, "{}")
    assert study_run.run_study(file, out, jobs=3)[1] == []
    assert {status_of(out, run)["state"] for run in states} == {"done"}


def test_a_run_of_a_killed_study_that_still_goes_is_waited_for(tmp_path, monkeypatch):
    file, out, started = tmp_path / "small.yaml", tmp_path / "out", []
    file.write_text(yaml.safe_dump(SMALL | {"variants": {"grpo": {}}}))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ending:
        ended_badly(out, "grpo-s0", **identity(ending.pid))
        (out / "base").mkdir()
        write_whole(out / "base" / START, "{}")
        turns = []

        def pass_time(seconds):
            turns.append(list(started))
            if len(turns) == 5:
                ending.communicate(b"\n")

        monkeypatch.setattr(study_run.time, "sleep", pass_time)
        monkeypatch.setattr(study_run, "_start", lambda out, run, *rest: started.append(run) or Ends(out, run))
        assert study_run.run_study(file, out, jobs=3)[1] == []
    assert turns[:5] == [["base"]] * 5
    assert started == ["base", "grpo-s0"]


@pytest.mark.parametrize("text", ["[]", "{", "3", '{"state": "running", "stage": "train", "pid": "12"}', "[" * 100_000])
def test_a_status_that_makes_no_sense_is_begun_again(tmp_path, text):
    (tmp_path / "grpo-s0").mkdir()
    (tmp_path / "grpo-s0" / study_run.STATUS).write_text(text)
    assert status_of(tmp_path, "grpo-s0")["state"] in ("waiting", "interrupted")


@pytest.mark.slow
def test_a_second_study_in_the_same_folder_is_refused_and_nothing_is_trained_twice(tmp_path):
    """Two commands at the same time: one runs, the other says who does."""
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(SMALL | {"variants": {"grpo": {}}}))
    both = [forked.Started(forking.study, "run", file, "--out", out, "--jobs", "1") for _ in range(2)]
    ended = [process.end(GUARD_S) for process in both]
    assert sorted(process.returncode for process in ended) == [0, 2], ended
    refused = next(i for i, process in enumerate(ended) if process.returncode == 2)
    who = rf"process {both[1 - refused].pid} on |a process that has just begun"  # its name may not be written yet
    assert re.search(rf"{re.escape(str(out))} is being written by ({who})", ended[refused].stderr)
    assert status_of(out, "grpo-s0")["state"] == "done"
    assert [entry["step"] for entry in logged_steps(out / "grpo-s0")] == [1, 2, 3, 4]
    assert (out / "grpo-s0" / "job.log").read_text().count("1/4  reward") == 1, "one training"
    assert not list(out.rglob("*writer.lock"))


# ---- a training that shares its process with vLLM ------------------------------------------------------------------

LEAVES_TRACES = """
import os
from pathlib import Path

import torch
from sage_rlvr import Guide

with Path(os.environ["SEEN"]).open("a") as f:
    f.write(f"{os.getpid()} {bool({'RANK', 'VLLM_ENABLE_V1_MULTIPROCESSING'} & set(os.environ))}\\n")


class Sharing(Guide):
    def log_q(self, s):
        os.environ["RANK"] = "0"  # as TRL does when it starts a colocated engine
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # and vLLM, in such a group
        return torch.zeros_like(s.logps)
"""


@pytest.mark.slow
def test_the_evaluation_begins_anew_where_an_engine_shared_the_training(tmp_path):
    """The same process id, a clean environment, and no step taken twice."""
    (tmp_path / "sharing.py").write_text(LEAVES_TRACES)
    file, out, seen = tmp_path / "small.yaml", tmp_path / "out", tmp_path / "seen"
    file.write_text(yaml.safe_dump(SMALL | {"variants": {"sharing": {"guide": "sharing:Sharing"}}}))
    environment = {"PYTHONPATH": str(tmp_path), "SEEN": str(seen)}
    command = ("run", file, "--out", out, "--jobs", "1")
    done = forked.run(forking.study_beside, tmp_path, *command, env=environment, timeout=GUARD_S)
    assert done.returncode == 0, done.stderr
    assert status_of(out, "sharing-s0")["state"] == "done"
    lives = [line.split() for line in seen.read_text().splitlines()]
    assert [rank for _, rank in lives] == ["False", "False"]
    assert lives[0][0] == lives[1][0]
    assert [entry["step"] for entry in logged_steps(out / "sharing-s0")] == [1, 2, 3, 4]
