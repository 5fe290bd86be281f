"""``train`` and then ``eval`` with vLLM in both, as a user types them: LoRA, a guide, an adapter served as it is."""

import pytest
import yaml

from sage_rlvr import cli
from sage_rlvr.models import load_model, load_tokenizer
from sage_rlvr.store import SampleStore
from sage_rlvr.tasks import chat_template, get_format, load_task, render
from tests.models import tiny

from .small import logprob

RECIPE = {
    "task": "countdown-ltr", "rows": 40, "prompt_format": "symbols", "decontaminate": False, "max_steps": 2, "guide": "branch",
    "guide_args": {"threshold": 0.5}, "beta": 0.1, "learning_rate": 2e-2, "per_device_train_batch_size": 8, "num_generations": 4,
    "max_completion_length": 12, "use_vllm": True, "vllm_mode": "colocate", "vllm_kv_cache_gib": 0.125, "use_peft": True,
    "lora_r": 8, "lora_target_modules": tiny.TARGETS, "use_cpu": True, "bf16": False, "dtype": "float32", "optim": "adamw_torch",
    "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True, "logging_steps": 1,
}  # fmt: skip


def test_train_and_eval(in_process, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(RECIPE | {"model_name_or_path": base}))
    assert cli.main(["train", "--config", "small.yaml", "--output_dir", "trained"]) == 0
    sampled = ["--temperature", "1", "--min_p", "0", "--max_tokens", "12", "--n", "6", "--seeds", "1", "--limit", "5"]
    how = ["--backend", "vllm", "--dtype", "float32", "--kv_cache_gib", "0.125", "--prompt_format", "symbols"]
    command = ["eval", "--model", "trained", "--tasks", "countdown-ltr", "--out", "evaluated", *sampled, *how]
    assert cli.main(command) == 0
    samples = _stored(tmp_path / "evaluated")
    assert len(samples) == 30
    assert cli.main(command) == 0, "all samples are there: no engine starts"
    assert _stored(tmp_path / "evaluated") == samples

    prompts = _prompts(base)
    adapted, plain = load_model(base, str(tmp_path / "trained"), dtype="float32"), load_model(base, dtype="float32")
    apart = 0.0
    for row in samples:
        own, without = (logprob(model, prompts[row["problem"]], row["token_ids"]) for model in (adapted, plain))
        assert row["logprob"] == pytest.approx(own, abs=2e-3)
        apart = max(apart, abs(own - without))
    assert apart > 0.1, "the adapter was served"


def _stored(folder):
    return [row for batch in SampleStore(folder, readonly=True).scan() for row in batch.to_pylist()]


def _prompts(base):
    fmt, tokenizer = get_format("symbols"), load_tokenizer(base)
    tokenizer.chat_template = chat_template(tokenizer, fmt)
    problems = load_task("countdown-ltr", limit=5, split="test")
    return {p.id: tokenizer(render(p, fmt, tokenizer), add_special_tokens=False)["input_ids"] for p in problems}
