"""Runs forked by a warm process: the same runs, with logs, environments, signals and deaths of their own.

Most of these start it without the ten seconds of imports, and runs that end, or sleep, in a module of the user's.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import yaml

from sage_rlvr.extensions import MODULES
from sage_rlvr.processes import alive
from sage_rlvr.study import run as study_run
from sage_rlvr.study import warm as warm_module
from sage_rlvr.study.plan import load_study, open_folder
from sage_rlvr.study.run import run_study
from sage_rlvr.study.warm import Forked, Warm, can_fork

from .small import SMALL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forking after these imports is done on Linux alone")

TELLS = """
import json, os, signal, sys, time
ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
told = {"pid": os.getpid(), "session": os.getsid(0), "modules": list(sys.modules), "ignored": ignored}
print("told", os.environ.get("OWN"))
with open(os.environ["TOLD"] + ".part", "w") as f:
    json.dump(told, f)
os.rename(os.environ["TOLD"] + ".part", os.environ["TOLD"])
time.sleep(float(os.environ["SLEEPS"]))
raise SystemExit
"""


@pytest.fixture
def out(tmp_path):
    """A study, and a module that a run imports before it begins."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    (tmp_path / "tells.py").write_text(TELLS)
    open_folder(load_study(tmp_path / "small.yaml"), tmp_path / "out")
    (tmp_path / "out" / "grpo-s0").mkdir()
    return tmp_path / "out"


@pytest.fixture
def warm(monkeypatch, tmp_path):
    monkeypatch.setattr(warm_module, "NEEDED", ("decimal",))
    process = Warm({**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    yield process
    process.close()


def begun(warm, out, seconds, **own):
    """A run that imports ``tells``, and what that told."""
    told = out.parent / f"told-{time.monotonic_ns()}"
    env = {MODULES: "tells", "TOLD": str(told), "SLEEPS": str(seconds), **own}
    run = warm.fork(out, "grpo-s0", out / "grpo-s0" / "job.log", env)
    waited_for(told.is_file)
    return run, json.loads(told.read_text())


def waited_for(happens, seconds=120):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def test_a_run_has_its_own_log_environment_and_exit(out, warm):
    run, told = begun(warm, out, 0, OWN="mine")
    assert (told["pid"], told["ignored"]) == (run.pid, False), "it learns how its own children ended"
    assert "decimal" in told["modules"], "forked: what was imported is there"
    assert told["session"] == warm.process.pid != os.getsid(0), "a terminal's Ctrl-C reaches the study alone"
    assert run.wait(60) == 1
    assert (out / "grpo-s0" / "job.log").read_text() == "told mine\n"
    run = warm.fork(out, "grpo-s0", out / "grpo-s0" / "job.log", {MODULES: "no_such_module"})
    assert run.wait(60) == 1
    assert "--import no_such_module" in (out / "grpo-s0" / "job.log").read_text()
    with pytest.raises(subprocess.TimeoutExpired):
        Forked(os.getpid(), out / "none").wait(0.2)


@pytest.mark.parametrize("imports", ["threaded", "no_such_module_at_all"])
def test_where_a_fork_would_not_be_safe_a_run_begins_anew(out, warm, monkeypatch, tmp_path, imports):
    """A thread that an import began would not come through. What cannot be imported is left to the run, which says so."""
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    monkeypatch.setattr(warm_module, "NEEDED", ("decimal", imports))
    run, told = begun(warm, out, 0, OWN="mine")
    assert told["pid"] == run.pid
    assert ("decimal" in told["modules"]) is (imports != "threaded")
    assert run.wait(60) == 1
    assert (out / "grpo-s0" / "job.log").read_text() == "told mine\n"


def test_a_fork_is_safe_with_one_thread_and_cudas_driver_asleep(monkeypatch):
    """As the driver's own library tells it: 3 before anything woke it, 0 after."""
    answers = iter((3, 0))
    driver = SimpleNamespace(cuDeviceGetCount=lambda count: next(answers))
    monkeypatch.setattr(
        warm_module, "thread_names", lambda: ["python", "jemalloc_bg_thd"]
    )  # pytest's own threads aside
    monkeypatch.setattr(warm_module.ctypes, "CDLL", lambda name: driver)
    assert [can_fork(), can_fork()] == [True, False]
    monkeypatch.setattr(warm_module, "thread_names", lambda: ["python", "python"])
    assert not can_fork()


def test_runs_end_when_the_study_is_killed(out, tmp_path):
    """kill -9 of the study: the warm process and what it forked go too."""
    code = f"""
import os, time
from pathlib import Path
from sage_rlvr.study import warm
warm.NEEDED = ()
process, out = warm.Warm(dict(os.environ)), Path({str(out)!r})
run = process.fork(out, "grpo-s0", out / "grpo-s0" / "job.log", {{}})
print(process.process.pid, run.pid, flush=True)
time.sleep(600)
"""
    own = {
        MODULES: "tells",
        "TOLD": str(tmp_path / "told"),
        "SLEEPS": "600",
        "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    }
    killed = subprocess.Popen([sys.executable, "-c", code], env=os.environ | own, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in killed.stdout.readline().split()]
    waited_for((tmp_path / "told").is_file)
    assert all(map(alive, pids))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    waited_for(lambda: not any(map(alive, pids)))


def test_a_warm_process_that_was_killed_takes_its_runs_along_and_another_begins(out, warm):
    run, _ = begun(warm, out, 600)
    first = warm.process
    first.kill()
    first.wait()
    assert run.wait(60) == 1
    run, told = begun(warm, out, 0)
    assert warm.process.pid != first.pid
    assert told["session"] == warm.process.pid


@pytest.mark.slow
def test_a_forked_run_is_the_same_as_one_that_was_started(tmp_path, monkeypatch):
    """Every loss, after all the imports; no process is left."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL | {"variants": {"branch": SMALL["variants"]["branch"]}}))
    handles, out = [], tmp_path / "out"

    def noted(*args, start=study_run._start):
        handles.append(start(*args))
        return handles[-1]

    def losses():
        lines = (out / "branch-s0" / "train" / "log.jsonl").read_text().splitlines()
        return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]

    monkeypatch.setattr(study_run, "_start", noted)
    assert run_study(tmp_path / "small.yaml", out, 1)[1] == []
    assert len(handles) == 2
    assert not any(alive(handle.pid) for handle in handles)
    forked = losses()
    assert len(forked) == SMALL["train"]["max_steps"]
    shutil.rmtree(out / "branch-s0")
    subprocess.run([sys.executable, "-P", "-m", "sage_rlvr.study.job", str(out), "branch-s0"], check=True)
    assert losses() == forked
