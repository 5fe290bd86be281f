"""Training beside a vLLM server, as TRL's server mode has it: the real server, on a CPU (serve.py)."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from trl.generation import vllm_client, vllm_generation

from sage_rlvr import UserError
from sage_rlvr.runs.checkpoint import last_complete

from . import serve
from .test_colocate import EXACT, GUIDED, STOPPED, ends_with_the_stop_string, logged, trainer

ROOT = Path(__file__).parents[1]


class Server:
    def __init__(self, base, log):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.base, self.log, self.url = base, log, f"http://127.0.0.1:{self.port}"

    def start(self):
        command = [
            sys.executable,
            "-m",
            "tests_vllm.serve",
            "--model",
            self.base,
            "--port",
            str(self.port),
            "--host",
            "127.0.0.1",
        ]
        env = os.environ | serve.ENVIRONMENT | {"PYTHONPATH": "src:."}
        with self.log.open("w") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True)
        end = time.monotonic() + 600
        while not self._up():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.5)

    def _up(self):
        try:
            return requests.get(f"{self.url}/health", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def kill(self):
        os.killpg(self.process.pid, 9)
        self.process.wait()


@pytest.fixture(scope="module")
def server(base, tmp_path_factory):
    made = Server(base, tmp_path_factory.mktemp("server") / "log")
    made.start()
    yield made
    made.kill()


@pytest.fixture(autouse=True)
def client(monkeypatch):
    monkeypatch.setattr(vllm_generation, "VLLMClient", serve.Client)


def served(base, out, url, **options):
    settings = {"vllm_mode": "server", "vllm_server_base_url": url, "vllm_kv_cache_gib": None, "save_strategy": "no"}
    return trainer(base, out, **settings | options)


@pytest.mark.parametrize("options", [GUIDED, GUIDED | EXACT], ids=["k3", "k1-reward"])
def test_the_server_has_the_policys_weights_at_every_step(base, server, tmp_path, options):
    made = served(base, tmp_path, server.url, **options)
    made.train()
    steps = logged(made)
    assert len(steps) == 3
    assert all(step["grad_norm"] > 0 for step in steps)
    for step in steps:
        assert step["sampling/sampling_logp_difference/max"] < 1e-3, step
        assert step["completions/mean_length"] > 1


def test_a_batch_ahead_is_drawn_with_the_weights_of_one_batch_ago(base, server, tmp_path):
    made = served(base, tmp_path, server.url, rollout_ahead=True, max_steps=4)
    made.train()
    apart = [step["sampling/sampling_logp_difference/max"] for step in logged(made)]
    assert len(apart) == 4
    assert apart[0] < 1e-3 < 1e-2 < min(apart[1:])


def test_a_completion_ends_with_the_stop_string(base, server, tmp_path):
    ends_with_the_stop_string(served(base, tmp_path, server.url, **STOPPED))


def test_a_server_that_goes_away_ends_the_run_with_a_checkpoint(base, server, tmp_path, monkeypatch):
    """And a new one at the same address goes on with it. With a batch ahead: tests/train/test_launch.py."""
    monkeypatch.setattr(vllm_client, "Retry", lambda **_: 0)
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 100}
    made = served(base, tmp_path / "run", server.url, **options)
    step = made.training_step

    def killed(*args):
        if made.state.global_step == 2:
            server.kill()
        return step(*args)

    made.training_step = killed
    with pytest.raises(UserError, match=f"the vLLM server at {server.url} does not answer .*checkpoint-2") as said:
        made.train()
    assert "\n" not in str(said.value)
    assert Path(last_complete(tmp_path / "run")).name == "checkpoint-2"
    server.start()
    made = served(base, tmp_path / "run", server.url, **options)
    made.train(resume_from_checkpoint=True)
    assert made.state.global_step == 4
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log if "grad_norm" in entry] == [1, 2, 3, 4]


def test_no_server_is_one_sentence(base, tmp_path):
    with pytest.raises(UserError, match=r"The vLLM server can't be reached at http://127\.0\.0\.1:9") as said:
        served(base, tmp_path, "http://127.0.0.1:9", vllm_server_timeout=0.0)
    assert "vllm serve" in str(said.value)
