"""The prototype of rollouts without an engine (benchmarks/gpu/lockstep.py) against the model itself, on a CPU: without graphs."""

import json
import runpy
import subprocess
import sys
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from . import forking

GPU = Path(__file__).parents[2] / "benchmarks/gpu"
sys.path.append(str(GPU))

import lockstep  # noqa: E402

END = 1


@pytest.fixture
def models():
    """One that lockstep takes over, and the same with transformers' own attention."""
    config = Qwen2Config(
        vocab_size=12, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        initializer_range=0.5, bos_token_id=None, eos_token_id=END, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(deepcopy(config)).eval()
    plain = Qwen2ForCausalLM(config).eval()
    plain.load_state_dict(model.state_dict())
    return model, plain


@torch.no_grad()
def test_log_probs_are_the_models_also_of_rows_that_moved(models, monkeypatch):
    model, plain = models
    monkeypatch.setattr(lockstep, "SMALLEST", 2)
    moved, move = [], lockstep.Lockstep._move
    monkeypatch.setattr(
        lockstep.Lockstep, "_move", lambda self, goes, size: moved.append(size) or move(self, goes, size)
    )
    prompts, temperature = [[3, 4, 5], [6, 7, 8, 9, 2, 3, 4], [5]], 0.7
    own = lockstep.Lockstep(model, len(prompts), 8, 7, 60, [END], temperature)
    for _ in range(2):  # the second uses the places of the first again
        ids, logps = own.sample(prompts)
        assert len({len(row) for row in ids}) > 3
        for r, (row, found) in enumerate(zip(ids, logps, strict=True)):
            assert END not in row[:-1]
            assert row[-1] == END or len(row) == 60
            prompt = prompts[r // 8]
            expected = (plain(torch.tensor([prompt + row])).logits[0] / temperature).log_softmax(-1)
            expected = expected[len(prompt) - 1 : -1].gather(1, torch.tensor(row)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-4)
    assert len(set(moved)) > 1


@torch.no_grad()
def test_draws_follow_the_model(models):
    model, plain = models
    torch.manual_seed(1)
    n, prompt = 4000, [3, 4, 5]
    counts = Counter(tuple(row) for row in lockstep.Lockstep(model, 1, n, 3, 2, [END]).sample([prompt])[0])
    first = plain(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    expected = {(END,): float(first[END])}
    for a in set(range(12)) - {END}:
        second = plain(torch.tensor([[*prompt, a]])).logits[0, -1].softmax(-1)
        expected |= {(a, b): float(first[a] * second[b]) for b in range(12)}
    often = {key: n * p for key, p in expected.items() if n * p >= 5}
    chi2 = sum((counts[key] - e) ** 2 / e for key, e in often.items())
    assert len(often) > 10
    assert chi2 < len(often) + 5 * (2 * len(often)) ** 0.5


@pytest.mark.slow
def test_the_comparison_runs_small(tmp_path, monkeypatch):
    out = tmp_path / "r.json"
    flags = ["--tiny", "--ways", "static", "lockstep", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["rollouts.py", *flags])
    monkeypatch.setattr(subprocess, "run", forking.run)
    runpy.run_path(str(GPU / "rollouts.py"), run_name="__main__")
    ways = json.loads(out.read_text())["ways"]
    assert ways.keys() == {"static", "lockstep"}
    assert all(way["tokens_per_s"] > 0 and len(way["tokens"]) == 2 for way in ways.values()), ways
