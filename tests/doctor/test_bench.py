"""The replay counts what the trainer does, and the GPU scripts run small."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.slow import but_few

from . import forking

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks/gpu"))

import replay  # noqa: E402


def test_rollouts_spread_as_said():
    drawn = replay.draw_rollouts(512, 1000, 5000, seed=3)
    lengths = sorted(len(ids) for ids in drawn.completions)
    assert 0.8 < lengths[256] / (1000 / 3) < 1.25  # the median of the log-normal
    assert lengths[-1] == 1000
    assert 0.02 < sum(n == 1000 for n in lengths) / 512 < 0.12  # P(z > ln 3 / 0.7) = 0.058
    assert all(ids[-1] == 1 and min(ids[:-1]) >= 3 for ids in drawn.completions)
    assert all(drawn.prompts[i] == drawn.prompts[i - i % 8] for i in range(512))
    assert drawn.completions == replay.draw_rollouts(512, 1000, 5000, seed=3).completions


def test_a_replay_counts_passes_and_padded_tokens():
    from trl import GRPOConfig, GRPOTrainer

    rollouts = replay.Rollouts([[5] * 4] * 16, [[7] * n + [1] for n in range(1, 17)])
    options = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "gradient_checkpointing": False}
    made = replay.Replay(GRPOTrainer, GRPOConfig, replay.Shape(300, 16, 32, 1, 2, 2), rollouts, "cpu", **options)
    found = made.run(2)
    assert found["updates"] == 2
    assert found["forward_passes"] == 4  # two for the reference, two for the update
    assert found["padded_tokens"] == 2 * 16 * (4 + 17)
    assert found["real_tokens"] == 16 * 4 + sum(range(2, 18))


def script(monkeypatch, *args, name="step.py"):
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(ROOT / "benchmarks/gpu" / name), run_name="__main__")


@pytest.mark.parametrize("parts", but_few(["c", "a,b,c"], fast=[0]))
def test_the_gpu_script_runs_small_and_keeps_other_parts(parts, tmp_path, monkeypatch):
    out = tmp_path / "step.json"
    out.write_text(json.dumps({"d": {"kept": {"ms": 1.0}}}))
    script(monkeypatch, "--tiny", "--parts", parts, "--out", str(out))
    found = json.loads(out.read_text())
    assert found["d"] == {"kept": {"ms": 1.0}}
    assert all("us_per_token" in row for row in found["c"].values())
    assert found["measurement"] is False
    if "a" in parts:
        branch = found["a"]["branch k3 against guide off"]
        assert branch["passes_on"] == branch["passes_off"] > 0
        assert found["b"]["verdict"]["speedup"] > 0


def test_the_gpu_script_refuses_a_part_it_does_not_have(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        script(monkeypatch, "--tiny", "--parts", "a,x", "--out", str(tmp_path / "x.json"))
    assert stopped.value.code == 2
    assert "--parts a,x" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_step_runs_small_and_its_phases_add_up(tmp_path, monkeypatch):
    out = tmp_path / "new" / "whole.json"
    monkeypatch.setattr(subprocess, "run", forking.run)
    script(monkeypatch, "--tiny", "--steps", "2", "--our_tokens", "200", "--out", str(out), name="whole_step.py")
    found = json.loads(out.read_text())
    assert found["measurement"] is False
    for who in ("ours", "theirs"):
        assert {"rollout", "reference", "verify", "update", "optimizer", "rest"} <= found[who]["ms"].keys(), found[who]
        assert len(found[who]["steps"]) == 2
        for step in found[who]["steps"]:
            parts = sum(ms for name, ms in step.items() if name not in ("step", "all but rollout"))
            assert step["step"] == pytest.approx(parts)
    assert found["ours"]["tokens"] == found["theirs"]["tokens"]  # the same prompts, seed and draws
    assert found["theirs ÷ ours"]["step"] > 0


@pytest.mark.slow
def test_the_probe_of_shares_finds_nothing_wrong_here(tmp_path, monkeypatch):
    flags = ["--tiny", "--seconds", "0", "--shares", "40", "--out", str(tmp_path / "s.json")]
    script(monkeypatch, *flags, name="mps_share.py")
    found = json.loads((tmp_path / "s.json").read_text())["shares"]["40"]
    assert found["wrong"] == []
    assert found["rounds"] == 1
    assert found["gap"].keys() == found["not_numbers"].keys()
    assert 0 < max(found["gap"].values()) < 0.01


def test_the_probe_of_shares_would_find_a_wrong_product():
    import mps_share

    x, w = mps_share.products(64, "cpu")["up 512"]
    assert mps_share.gap(x @ w, x, w) < 0.01
    wrong = x @ w
    wrong[-1] = wrong[-1].roll(1)
    assert mps_share.gap(wrong, x, w) > mps_share.LOOSE


def test_the_probe_of_shares_keeps_what_it_found_when_it_is_cut_short(tmp_path, monkeypatch):
    import mps_share

    def start(share, *_):
        if share == 50:
            raise KeyboardInterrupt
        return SimpleNamespace(returncode=0, communicate=lambda: ('{"wrong": ["q 1"]}', None))

    monkeypatch.setattr(mps_share, "start", start)
    monkeypatch.setattr(
        "sys.argv", ["mps_share.py", "--tiny", "--shares", "40", "50", "--out", str(tmp_path / "s.json")]
    )
    with pytest.raises(KeyboardInterrupt):
        mps_share.main()
    assert json.loads((tmp_path / "s.json").read_text())["shares"] == {"40": {"wrong": ["q 1"]}}
