"""Runs forked by a warm process: the same runs, with logs, environments, signals and deaths of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from sage_rlvr.extensions import MODULES
from sage_rlvr.processes import alive
from sage_rlvr.study import run as study_run
from sage_rlvr.study import warm as warm_module
from sage_rlvr.study.plan import load_study, open_folder
from sage_rlvr.study.run import run_study, status_of
from sage_rlvr.study.warm import Forked, Warm, can_fork

from .small import SMALL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forking after these imports is done on Linux alone")


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"seeds": [0, 1]}))
    return path


@pytest.fixture(params=["1", "2"])
def warm(request):
    """Whatever number of threads its runs will have: none may be running before."""
    process = Warm(dict(os.environ) | {"OMP_NUM_THREADS": request.param})
    waited_for(lambda: not process.importing())
    assert process.ready
    yield process
    process.close()


def waited_for(happens, seconds=120):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.1)


def test_the_study_waits_for_it_and_its_runs_are_the_same(study, tmp_path, monkeypatch):
    """Four runs one after the other: the base starts cold, the rest after the imports, with a cold run's losses."""
    handles = []

    def noted(*args, start=study_run._start):
        handles.append(start(*args))
        return handles[-1]

    monkeypatch.setattr(study_run, "_start", noted)
    _, failed = run_study(study, tmp_path / "warm", 1)
    assert failed == []
    kinds = [type(handle) for handle in handles]
    assert kinds == [subprocess.Popen, Forked, Forked, Forked, Forked]
    assert not any(alive(handle.pid) for handle in handles)
    run_study(study, tmp_path / "cold", 1, only="branch-s1")  # one run: nothing to be warm for
    assert {type(handle) for handle in handles[len(kinds) :]} == {subprocess.Popen}
    losses = []
    for way in ("warm", "cold"):
        assert (tmp_path / way / "branch-s1" / "job.log").stat().st_size > 0
        lines = (tmp_path / way / "branch-s1" / "train" / "log.jsonl").read_text().splitlines()
        losses.append([entry["loss"] for entry in map(json.loads, lines) if "loss" in entry])
    assert losses[0] == losses[1]
    assert len(losses[0]) == SMALL["train"]["max_steps"]


def test_a_run_that_fails_or_is_stopped_says_so_alone(study, tmp_path, warm):
    out = tmp_path / "out"
    open_folder(load_study(study), out)  # no base: every run fails
    (out / "grpo-s0").mkdir()
    run = warm.fork(out, "grpo-s0", out / "grpo-s0" / "job.log", {})
    assert run.wait(600) == 1
    assert "start.json" in (out / "grpo-s0" / "job.log").read_text()
    assert status_of(out, "grpo-s0")["state"] == "failed"
    run = warm.fork(out, "grpo-s0", out / "grpo-s0" / "job.log", {MODULES: "no_such_module"})
    assert run.wait(600) == 1
    assert "--import no_such_module" in (out / "grpo-s0" / "job.log").read_text()  # each has an environment of its own
    assert os.getpgid(warm.process.pid) != os.getpgid(0)  # a terminal's Ctrl-C reaches the study alone
    with pytest.raises(subprocess.TimeoutExpired):
        Forked(os.getpid(), out / "none").wait(0.2)


def test_where_a_fork_would_not_be_safe_there_is_none(monkeypatch):
    """CUDA's driver as its own library tells it: 3 before anything woke it, 0 after."""
    answers = iter((3, 0))
    driver = SimpleNamespace(cuDeviceGetCount=lambda count: next(answers))
    monkeypatch.setattr(
        warm_module, "thread_names", lambda: ["python", "jemalloc_bg_thd"]
    )  # pytest's own threads aside
    monkeypatch.setattr(warm_module.ctypes, "CDLL", lambda name: driver)
    assert [can_fork(), can_fork()] == [True, False]
    monkeypatch.setattr(warm_module, "thread_names", lambda: ["python", "python"])
    assert not can_fork()
    monkeypatch.undo()
    code = "import threading, time; from sage_rlvr.study.warm import can_fork; print(can_fork()); "
    code += "threading.Thread(target=time.sleep, args=(5,), daemon=True).start(); print(can_fork())"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert said.stdout.split()[1] == "False"


def test_runs_end_when_the_study_is_killed(study, tmp_path):
    """kill -9 of the study: the warm process and what it forked go too."""
    code = f"from sage_rlvr.study.run import run_study; run_study({str(study)!r}, {str(tmp_path / 'out')!r}, 1)"
    killed = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "1"})
    waited_for(lambda: status_of(tmp_path / "out", "grpo-s1")["state"] == "running", 240)
    inside = json.loads((tmp_path / "out" / "grpo-s1" / "status.json").read_text())["pid"]
    lines = dict(line.split(":\t") for line in Path(f"/proc/{inside}/status").read_text().splitlines() if ":\t" in line)
    assert not int(lines["SigIgn"], 16) >> (signal.SIGCHLD - 1) & 1  # it learns how its own children ended
    assert os.getsid(inside) not in (os.getsid(0), inside)  # forked: in the warm process' session, not in ours
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    waited_for(lambda: not alive(inside))


def test_a_warm_process_that_died_is_done_without(study, tmp_path, warm):
    warm.process.kill()
    warm.process.wait()
    assert warm.fork(tmp_path, "grpo-s0", tmp_path / "log", {}) is None
    assert warm.fork(tmp_path, "grpo-s0", tmp_path / "log", {}) is None
