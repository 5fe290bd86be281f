"""Runs of a study are processes of their own: their log, environment, session, exit and death.

They end, or sleep, in a module of the user's, before the imports of a training.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from sage_rlvr.extensions import MODULES
from sage_rlvr.processes import alive
from sage_rlvr.study import run as study_run
from sage_rlvr.study.plan import load_study, open_folder

from .small import SMALL

RUN = "grpo-s0"
TELLS = """
import json, os, sys, time
print("told", os.environ.get("OWN"))
with open(os.environ["TOLD"] + ".part", "w") as f:
    json.dump({"pid": os.getpid(), "session": os.getsid(0), "threads": os.environ["OMP_NUM_THREADS"]}, f)
os.rename(os.environ["TOLD"] + ".part", os.environ["TOLD"])
time.sleep(float(os.environ["SLEEPS"]))
raise SystemExit(1)
"""


@pytest.fixture
def out(tmp_path, monkeypatch):
    """A study, and a module that a run imports before it begins."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    (tmp_path / "tells.py").write_text(TELLS)
    open_folder(load_study(tmp_path / "small.yaml"), tmp_path / "out")
    own = {MODULES: "tells", "TOLD": str(tmp_path / "told"), "SLEEPS": "0", "OWN": "mine"}
    own["PYTHONPATH"] = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path / "out"


def waited_for(happens, seconds=120):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def test_a_run_has_its_own_log_session_share_of_the_cores_and_exit(out, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    run = study_run._start(out, RUN, 0, 2)
    assert run.wait(60) == 1
    assert json.loads((tmp_path / "told").read_text()) == {"pid": run.pid, "session": run.pid, "threads": "4"}
    assert (out / RUN / "job.log").read_text() == "told mine\n"
    monkeypatch.setenv(MODULES, "no_such_module")
    assert study_run._start(out, RUN, 0, 2).wait(60) != 0
    assert (out / RUN / "job.log").read_text().startswith("told mine\n"), "a log is added to"
    assert "--import no_such_module" in (out / RUN / "job.log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's end on Linux alone")
def test_runs_end_when_the_study_is_killed(out, tmp_path, monkeypatch):
    code = f"""
import time
from pathlib import Path
from sage_rlvr.study import run
print(run._start(Path({str(out)!r}), {RUN!r}, 0, 1).pid, flush=True)
time.sleep(600)
"""
    monkeypatch.setenv("SLEEPS", "600")
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(killed.stdout.readline())
    waited_for((tmp_path / "told").is_file)
    assert alive(pid)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    waited_for(lambda: not alive(pid))
