"""Two real processes over gloo against one process with twice the batch, on the same injected rollouts."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from . import tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model"))


def launch(processes, model, tmp_path, **options):
    save = tmp_path / f"{processes}.pt"
    # the rows on a process times the number of processes is the same global batch
    rows = options.pop("global_rows", 8) // processes
    options = {
        "model": model,
        "save": str(save),
        "out": str(tmp_path / str(processes)),
        "per_device_train_batch_size": rows,
    } | options
    command = [sys.executable]
    if processes > 1:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        command += ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", str(port)]
    command += ["-m", "tests.train.run_pair", json.dumps(options)]
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    saved = torch.load(save, weights_only=True)
    assert saved["world"] == processes
    return saved


CASES = {
    "branch k3 grpo": {"guide": "branch", "loss_type": "grpo"},
    "token k2 dapo": {"guide": "token", "anchor_estimator": "k2", "loss_type": "dapo"},
    "exact credit, groups across ranks": {
        "guide": "branch", "anchor_estimator": "k1-reward", "loss_type": "dr_grpo", "scale_rewards": "none", "global_rows": 4,
    },
    "to_go, lora": {"guide": "tempered", "anchor_estimator": "k1-reward", "anchor_credit": "to_go", "lora": True},
    "random, centred, accumulated": {
        "guide": "random", "guide_args": {"epsilon": 1.0}, "guide_center": "batch", "gradient_accumulation_steps": 2,
    },
    "dynamic sampling, beta": {"guide": "branch", "dynamic_sampling": 3, "advantage": "beta", "loss_type": "dapo"},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_gradients_of_one(model, tmp_path, case):
    options = {"lora": False, "max_steps": 2, "learning_rate": 1e-4, "shuffle_dataset": False} | CASES[case]
    one, two = (launch(n, model, tmp_path, **options) for n in (1, 2))
    assert len(one["grads"]) == len(two["grads"]) == 2
    a, b = (torch.cat([g.flatten() for g in x["grads"][0].values()]) for x in (one, two))
    assert float((a - b).norm() / a.norm()) < 1e-5
    assert a.norm() > 0
    if options["guide"] in ("random", "token") and options.get("gradient_accumulation_steps", 1) == 1:
        assert one["log_q"].keys() == two["log_q"].keys()
        for row, q in one["log_q"].items():
            assert q == pytest.approx(two["log_q"][row], abs=1e-4), "noise belongs to the row, not to the rank"
    # (a maximum over micro-batches depends on how the rows fell into them, so q_max is left to the cases without)
    keys = ["reward", "kl_ref", "sage/q_mean", "sage/flat_groups_left", "sage/bonus_abs"]
    for key in keys + ["sage/q_max"] * (options.get("gradient_accumulation_steps", 1) == 1):
        for x, y in zip(one["log"], two["log"]):
            assert (key in x) == (key in y)
            assert key not in x or x[key] == pytest.approx(y[key], rel=1e-3, abs=1e-5), key
