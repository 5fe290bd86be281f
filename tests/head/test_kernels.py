"""The Triton kernels, run by Triton's interpreter on the CPU, against float64 and beside the torch path."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no Triton here: it has wheels for Linux alone")
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    settings = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.head.run_interpreted"]
    done = subprocess.run(command, env=settings, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])["cases"]


def test_every_case_agrees_with_float64(table):
    assert len(table) == 15
    for name, both in table.items():
        if "nothing counts" in name:
            assert both["triton"]["logps"] == both["triton"]["entropies"] == 0
            continue
        loose = "bf16" in name
        for what, error in both["triton"].items():
            bound = (1e-2 if loose else 2e-5) if what.startswith("d_") else 1e-4
            assert error < bound, f"{name}: {what} is off by {error}"  # NaN fails too


def test_triton_is_as_exact_as_torch(table):
    """But for bf16 stores, which the interpreter cuts off instead of rounding: up to twice the error, twice in a gradient."""
    for name, both in table.items():
        for what, error in both["triton"].items():
            assert not error > 4 * both["torch"][what] + 2e-6, f"{name}: {what}"
