"""FSDP2 on one GPU, by the packaged config: the same rollouts through a sharded and an unsharded run, full and LoRA.

    python benchmarks/gpu/fsdp2.py --out fsdp2.json                       # a tiny random model
    python benchmarks/gpu/fsdp2.py --model FOLDER --bf16 --out fsdp2.json  # a real one

One rank shards into one piece: parameters are DTensors and every gather and scatter runs, so that what FSDP2 does to the
trainer shows; what several GPUs do to each other does not. Each run is a process of its own, the sharded ones started by
the launcher behind ``--accelerate_config fsdp2``. A check that fails is written into the JSON and ends with 1.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STEPS = 4
CASES = {
    "full, branch k3": {"guide": "branch"},
    "full, random k3": {"guide": "random", "guide_args": {"epsilon": 1.0}},
    "full, branch k1-reward": {
        "guide": "branch", "anchor_estimator": "k1-reward", "loss_type": "dr_grpo", "scale_rewards": "none",
    },
    "lora, branch k3": {"guide": "branch", "lora": True},
    "lora, branch k3, sampled": {"guide": "branch", "lora": True, "sampled": True},
    "full, branch k3, sampled": {"guide": "branch", "sampled": True},
}  # fmt: skip


def given_rollouts(prompts, trainer):
    """Completions as a function of the prompt and the place in its group: the same whoever asks."""
    tok, out = trainer.processing_class, {"prompt_ids": [], "completion_ids": [], "logprobs": []}
    for row, prompt in enumerate(prompts):
        digest = hashlib.sha256(f"{prompt}|{row % trainer.num_generations}".encode()).hexdigest()
        ids = tok(" ".join(digest[i : i + 4] for i in range(0, 8 + 4 * (row % 8), 4)))["input_ids"] + [tok.eos_token_id]
        out["prompt_ids"].append(tok(prompt)["input_ids"])
        out["completion_ids"].append(ids)
        out["logprobs"].append([0.0] * len(ids))
    return out


def reward(completions, **kwargs):
    return [float(hashlib.sha256(c.encode()).digest()[0] % 3 == 0) for c in completions]


def one_case(name: str, model: str, bf16: bool, sharded: bool) -> dict:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from torch.distributed.tensor import DTensor

    from sage_rlvr.train import SAGEConfig, SAGETrainer

    options = dict(CASES[name])
    lora, sampled = options.pop("lora", False), options.pop("sampled", False)
    losses: list[float] = []

    class Recorded(SAGETrainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            losses.append(float(loss.detach()))
            return loss

    args = SAGEConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=16, num_generations=8, max_completion_length=32,
        max_steps=STEPS, logging_steps=1, report_to="none", save_strategy="no", bf16=bf16, tf32=False, beta=0.1,
        learning_rate=1e-5, disable_tqdm=True, shuffle_dataset=False, gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"}, stop_strings=["\n"] if sampled else None, **options,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": f"What is {i} times {i + 3}?"} for i in range(64)])
    peft = LoraConfig(r=8, target_modules=["q_proj", "up_proj"]) if lora else None
    rollouts = {} if sampled else {"rollout_func": given_rollouts}
    trainer = Recorded(model, reward, args, data, peft_config=peft, **rollouts)
    drawn = torch.Generator().manual_seed(0)
    for p in trainer.model.parameters() if lora else ():
        if p.requires_grad:  # PEFT draws the adapter at random: the same in both runs
            p.data.copy_(torch.randn(p.shape, generator=drawn) * 0.02)
    start = time.perf_counter()
    trainer.train()
    kinds = [isinstance(p, DTensor) for p in trainer.model.parameters()]
    reference = [isinstance(p, DTensor) for p in trainer.ref_model.parameters()] if trainer.ref_model else []
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    shown = ("kl", "kl_ref", "sage/q_mean", "sage/q_min", "sage/q_max", "sage/active", "reward")
    return {
        "losses": losses,
        "seconds": time.perf_counter() - start,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "parameters": len(kinds),
        "dtensors": sum(kinds),
        "reference": len(reference),
        "reference_dtensors": sum(reference),
        "world": trainer.accelerator.num_processes,
        "distributed_type": str(trainer.accelerator.distributed_type),
        "log": [{k: entry[k] for k in shown if k in entry} for entry in log],
        "asked_sharded": sharded,
    }


def checks(name: str, whole: dict, sharded: dict, tolerance: float) -> dict[str, bool]:
    scale = max(map(abs, whole["losses"])) or 1.0
    gap = max(abs(a - b) for a, b in zip(whole["losses"], sharded["losses"])) / scale
    sharded["largest_relative_gap"] = gap
    shaped = all(entry["sage/active"] > 0 and entry["kl"] != entry["kl_ref"] for entry in sharded["log"])
    return {
        "every parameter is a DTensor": sharded["dtensors"] == sharded["parameters"] > 0,
        "every reference parameter is a DTensor": sharded["reference_dtensors"] == sharded["reference"],
        "the unsharded run is not sharded": whole["dtensors"] == 0,
        "as many steps": len(sharded["losses"]) == len(whole["losses"]) == STEPS,
        f"losses within {tolerance}": CASES[name].get("sampled", False) or gap <= tolerance,
        "the guide shapes the anchor": shaped,
    }


def tiny_model(folder: Path) -> str:
    """A random two-layer model over bytes: enough for FSDP2 to shard, and float32 throughout."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = ["<pad>", "<eos>", *(chr(i) for i in range(10, 127))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tok = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", padding_side="left")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, initializer_range=0.1,
        pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tok.save_pretrained(folder)
    return str(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="folder of a model (default: a tiny random one)")
    parser.add_argument(
        "--bf16", action="store_true", help="bf16 mixed precision (losses then agree to 1e-2, not 1e-5)"
    )
    parser.add_argument("--out", default="fsdp2.json")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--sharded", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        result = one_case(given.case, given.model, given.bf16, given.sharded)
        Path(given.out).write_text(json.dumps(result))
        return 0
    model = given.model or tiny_model(Path(tempfile.mkdtemp()))
    report: dict = {"model": given.model or "tiny", "bf16": given.bf16, "cases": {}}
    ok = True
    pool = ThreadPoolExecutor(len(CASES))
    whole_runs = {name: pool.submit(run, name, model, given.bf16, False) for name in CASES}  # side by side
    for name in CASES:  # these share a port: one after the other
        sharded, whole = run(name, model, given.bf16, True), whole_runs[name].result()
        found = {"ran": False}
        if "error" not in whole and "error" not in sharded:
            found = checks(name, whole, sharded, 1e-2 if given.bf16 else 1e-5)
        report["cases"][name] = {"checks": found, "whole": whole, "sharded": sharded}
        ok &= all(found.values())
        print(name, "ok" if all(found.values()) else found, flush=True)
        Path(given.out).write_text(json.dumps(report, indent=1) + "\n")
    return 0 if ok else 1


def run(name: str, model: str, bf16: bool, sharded: bool) -> dict:
    """One case in a process of its own; under FSDP2 started by the launcher with the packaged config."""
    out = Path(tempfile.mkdtemp()) / "case.json"
    words = ["--case", name, "--model", model, "--out", str(out), *["--bf16"] * bf16, *["--sharded"] * sharded]
    here = Path(__file__).resolve()
    command = [sys.executable, str(here), *words]
    if sharded:
        call = f"sys.exit(launch(sys.argv[1:], {config(bf16)!r}, 1, module={here.stem!r}))"
        command = [
            sys.executable,
            "-c",
            f"import sys; from sage_rlvr.launch.multi_process import launch; {call}",
            *words,
        ]
    path = os.pathsep.join(filter(None, [str(here.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr[-3000:], "exit": done.returncode}
    return json.loads(out.read_text())


def config(bf16: bool) -> str:
    """The packaged fsdp2.yaml; in float32 a copy that differs in mixed_precision alone."""
    from sage_rlvr.launch.recipes import shelf

    if bf16:
        return "fsdp2"
    copy = Path(tempfile.mkdtemp()) / "fsdp2_float32.yaml"
    text = shelf("launchers")["fsdp2"].read_text()
    copy.write_text(text.replace("mixed_precision: bf16", "mixed_precision: 'no'"))
    return str(copy)


if __name__ == "__main__":
    sys.exit(main())
