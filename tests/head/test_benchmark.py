"""benchmarks/gpu/head.py --tiny: every part of the GPU run on the CPU, so that time on a GPU is not spent on typing errors."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "head.py"


@pytest.fixture
def run(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("head_benchmark", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "head_benchmark", script)  # its dataclasses look their module up
    spec.loader.exec_module(script)

    def tiny(*flags):
        out = tmp_path / "head.json"
        monkeypatch.setattr(sys, "argv", ["head.py", "--tiny", *flags, "--out", str(out)])
        script.main()
        return json.loads(out.read_text())

    return tiny


def test_the_tiny_run_fills_every_part(run):
    found = run()
    assert found["measurement"] is False
    assert {"head", "odd", "trainable", "linearity", "profile", "versions", "machine"} <= found.keys()
    for rows in found["head"].values():
        for name in ("full logits, TRL ≤ 1.14", "full logits, TRL 1.16", "TRL fused head", "ours"):
            assert rows[name]["ms"] > 0
        assert rows["ours"]["error"]["gradient"] < 1e-2
        for name in ("verl fused kernel", "Liger GRPO loss (no entropy)"):
            assert "ms" in rows[name] or rows[name]["not_run"]  # a peer that is absent says so
    assert found["odd"]["all masked"]["ours"]["all zero"]


def test_a_part_that_does_not_exist_is_said(run, capsys):
    with pytest.raises(SystemExit):
        run("--parts", "head,tail")
    assert "write some of head,odd,trainable,linearity,profile" in capsys.readouterr().err


def test_the_cpu_agrees_with_itself(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    script = importlib.import_module("agreement")
    out = tmp_path / "agreement.json"
    monkeypatch.setattr(sys, "argv", ["agreement.py", "--tiny", "--out", str(out)])
    script.main()
    found = json.loads(out.read_text())["agreement"]
    assert len(found) == 20
    assert all(value == 0 for row in found.values() for value in row.values())
    theirs = script.logps_and_entropies
    monkeypatch.setattr(script, "KINDS", {"plain": {}})
    monkeypatch.setattr(script, "logps_and_entropies", lambda h, *a, **k: theirs(h * (1 + torch.rand(())), *a, **k))
    assert all(
        row["logps"] > 0 and row["gradient"] > 0 for row in script.agreement("cpu").values()
    )  # and would say if not


def test_the_sweep_runs(run):
    for rows in run("--sweep")["sweep"].values():
        assert rows["default"]["ms"] > 0
        assert rows["tile (8, 128)"]["ms"] > 0
