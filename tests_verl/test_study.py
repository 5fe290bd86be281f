"""``sage-rlvr study run --engine verl`` as a user starts it: the study in our own environment, its trainings in this one, on Ray,
TransferQueue, agent loops, reward workers and FSDP2 workers; only the LLM servers are stood in for (stand_in.py)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stand_in
import torch
import yaml
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sage_rlvr.tasks import load_task
from sage_rlvr.tasks.countdown import solutions

HERE = Path(__file__).parent
OURS = Path(os.environ.get("VENV", HERE.parent / ".venv")) / "bin" / "sage-rlvr"
pytestmark = pytest.mark.skipif(not OURS.exists(), reason=f"needs our own environment: there is no {OURS}")
STUDY = {
    "train": {
        "task": "countdown-ltr", "rows": 8, "prompt_format": "boxed", "max_steps": 3, "num_generations": 4,
        "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "max_completion_length": 4, "learning_rate": 1e-2,
        "lr_scheduler_type": "constant", "optim": "adamw_torch", "save_steps": 1, "use_cpu": True, "bf16": False,
        "report_to": "none", "gradient_checkpointing": False, "beta": 0.05, "disable_tqdm": True,
    },
    "variants": {
        "branch": {"guide": "branch", "advantage": "focal", "use_peft": True, "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0,
                   "lora_target_modules": ["q_proj", "v_proj"]},
    },
    "seeds": [0],
    "evaluate": {"tasks": ["countdown-ltr"], "path": {"steps": [1]}, "n": 2, "seeds": 1, "limit": 4, "max_tokens": 4,
                 "prompt_format": "boxed", "backend": "transformers"},
}  # fmt: skip


def make_model(folder, answers):
    """Two layers; a token per byte, and one for each of the answers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<eos>"]
    inner = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate([*special, *alphabet])}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    tokenizer.add_tokens(answers)
    assert tokenizer.convert_tokens_to_ids(answers) == list(stand_in.ANSWERS)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=False, initializer_range=0.35,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """The model, the study's file, and verl's Python."""
    folder = tmp_path_factory.mktemp("study")
    problems = load_task("countdown-ltr", limit=8, split="train")
    answers = [rf"\boxed{{{solutions(p.meta['numbers'], p.meta['target'])[0]}}}" for p in problems]
    model = make_model(folder / "model", answers)
    (folder / "small.yaml").write_text(yaml.safe_dump({"base": {"model_name_or_path": str(model)}, **STUDY}))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "run_on_cpu.py"} "$@"\n')
    python.chmod(0o755)
    return folder


def study(there, out="out"):
    env = os.environ | {"SAGE_VERL_PYTHON": str(there / "python"), "HF_HUB_OFFLINE": "1"}
    command = [OURS, "study", "run", there / "small.yaml", "--engine", "verl", "--out", there / out]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def finished(there):
    """The study, killed when its first run has written its first checkpoint, and run again; what it printed."""
    first, tracker = study(there), there / "out" / "branch-s0" / "train" / "latest_checkpointed_iteration.txt"
    while not tracker.exists():
        assert first.poll() is None, first.stdout.read()
        time.sleep(0.2)
    job = json.loads((there / "out" / "branch-s0" / "status.json").read_text())["pid"]
    for pid in (first.pid, job):  # a machine that goes away
        os.kill(pid, signal.SIGKILL)
    first.communicate()
    again = study(there)
    said = again.communicate()[0]
    assert again.returncode == 0, said + (there / "out" / "branch-s0" / "job.log").read_text()[-4000:]
    return there / "out"


def log(folder):
    return [json.loads(line) for line in (folder / "train" / "log.jsonl").read_text().splitlines()]


def test_a_killed_run_goes_on_from_its_checkpoint(finished):
    steps = [entry["step"] for entry in log(finished / "branch-s0")]
    assert steps in ([1, 2, 3], [2, 3])  # verl saves a step before it logs it, and we kill in between
    files = sorted((finished / "branch-s0" / "train").glob("verl-*.jsonl"))
    assert len(files) == 2  # each start's
    assert json.loads(files[1].read_text().splitlines()[0])["step"] > 1
    assert json.loads((finished / "branch-s0" / "status.json").read_text())["state"] == "done"


def test_its_log_is_that_of_a_training(finished):
    for entry in log(finished / "branch-s0"):
        assert 0 <= entry["reward"] <= 1
        assert {"loss", "kl", "entropy", "grad_norm", "learning_rate", "sage/q_mean"} <= entry.keys()
    assert any(0 < entry["reward"] < 1 for entry in log(finished / "branch-s0"))


def test_its_weights_are_an_adapter(finished, there):
    adapter = finished / "branch-s0" / "train" / "checkpoint-3"
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(there / "model")
    assert (config["r"], config["lora_alpha"], sorted(config["target_modules"])) == (4, 8, ["q_proj", "v_proj"])
    weights = load_file(adapter / "adapter_model.safetensors")
    moved = [w for name, w in weights.items() if "lora_B" in name]
    assert len(weights) == 8
    assert all(w.abs().max() > 0 for w in moved)  # they begin at 0
    assert not list(adapter.glob("model*"))


def test_it_is_evaluated_as_any_study(finished):
    table = json.loads((finished / "table.json").read_text())
    assert {row["variant"] for row in table} == {"base", "branch"}
    for where in ("base/eval", "branch-s0/eval", "branch-s0/eval-1"):
        assert (finished / where / "store.json").is_file()


def test_nothing_is_left_in_the_working_directory(finished):
    assert not Path("outputs").exists()  # Hydra's own choice
