"""benchmarks/gpu/bases.py from end to end, two steps of everything: a base and the RL runs that start from it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "bases.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it forks after heavy imports, which is done on Linux alone")
def test_a_base_and_its_runs(tmp_path):
    command = [sys.executable, SCRIPT, "--quick", "--only", "qd3_900", "--jobs", "2"]
    command += ["--out", tmp_path / "out", "--to", tmp_path / "bases.json"]
    done = subprocess.run(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((tmp_path / "bases.json").read_text())
    (base,), runs = made["bases"], {row["name"]: row for row in made["runs"]}
    assert base["name"] == "qd3_900"
    assert base["settings"]["scratch"] == {"dropout": 0.3}
    assert (
        json.loads((tmp_path / "out" / "qd3_900" / "scratch" / "config.json").read_text())["attention_dropout"] == 0.3
    )
    assert set(runs) == {"rl_qd3_900_0.0001_still", "rl_qd3_900_0.0002_still"}
    for row in (base, *runs.values()):
        assert 0 <= row["pass@1"] <= row["pass@4"] <= 1
    assert all(len(row["rewards"]) == 2 for row in runs.values())
    for run in runs:
        assert "disable_dropout=true turns it off" not in (tmp_path / "out" / run / "log").read_text()
