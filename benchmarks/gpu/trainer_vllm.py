"""SAGETrainer with vLLM colocate and LoRA on one GPU, beside GRPOTrainer: passes, time, and where completions end.

    python benchmarks/gpu/trainer_vllm.py --model FOLDER_OR_GGUF --out trainer_vllm.json

Each case runs in a process of its own (one vLLM engine each). A check that fails is written into the JSON and ends with 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {
    "grpo": {"guide": None},
    "branch k3": {"guide": "branch"},
    "branch exact": {
        "guide": "branch",
        "anchor_estimator": "k1-reward",
        "scale_rewards": "none",
        "loss_type": "dr_grpo",
    },
    "token k2, two iterations": {"guide": "token", "anchor_estimator": "k2", "num_iterations": 2},
    "branch k3, transformers.generate": {"guide": "branch", "use_vllm": False},
}
STOP = "\n"  # a string a chat model writes soon: completions that reach it are finished
STEPS = 6


def one_case(name: str, model: str) -> dict:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    from sage_rlvr.train import SAGEConfig, SAGETrainer

    options = dict(CASES[name])
    shaped = options.pop("guide")
    settings = {
        "output_dir": tempfile.mkdtemp(), "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4,
        "num_generations": 8,
        "max_completion_length": 96, "max_steps": STEPS, "logging_steps": 1, "report_to": "none", "save_strategy": "no",
        "bf16": True,
        "beta": 0.05, "use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3, "temperature": 1.0,
        "learning_rate": 1e-5, "disable_tqdm": True, "vllm_max_model_length": 512, "mask_truncated_completions": True,
    } | options  # fmt: skip
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"What is {i} times {i + 3}? Explain."}]} for i in range(64)]
    )
    lora = LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    batches, passes, at_step = [], [0], []

    def length_reward(completions, **kwargs):
        return [float(len(c[0]["content"]) % 2) for c in completions]

    class Watched(GRPOTrainer if shaped is None else SAGETrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            batches.append((output, self._metrics["train"]["completions/clipped_ratio"][-1]))
            return output

        def training_step(self, *args):
            torch.cuda.synchronize()
            before = time.perf_counter()
            out = super().training_step(*args)
            torch.cuda.synchronize()
            at_step.append((self._step, time.perf_counter() - before))
            return out

    if shaped is None:
        args = GRPOConfig(**settings, use_bias_correction_kl=False, loss_type="grpo")
    else:
        args = SAGEConfig(**settings, guide=shaped, stop_strings=[STOP])
    trainer = Watched(model, length_reward, args, data, peft_config=lora)
    trainer.model.get_base_model().model.layers[0].register_forward_hook(
        lambda *a: passes.__setitem__(0, passes[0] + 1)
    )
    trainer.train()
    torch.cuda.synchronize()
    generations = passes[0]
    report = {
        "passes_of_layer_0": generations,
        "optimizer_steps": trainer.state.global_step,
        "seconds_per_micro_step": sorted(t for _, t in at_step)[len(at_step) // 2],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "log": {k: v for k, v in trainer.state.log_history[-2].items() if isinstance(v, int | float)},
    }
    if shaped is not None:
        report["ends"] = check_ends(trainer, batches)
    return report


def check_ends(trainer, batches) -> dict:
    """Counted rows end in EOS or at the stop string, filtered ones ran to the limit; TRL's metric agrees."""
    tok, ends, wrong = trainer.processing_class, {"eos": 0, "stop": 0, "truncated": 0}, []
    for output, clipped in batches:
        truncated = 0
        for ids, mask in zip(output["completion_ids"].tolist(), output["completion_mask"].tolist()):
            counted = [i for i, m in zip(ids, mask) if m]
            text = tok.decode(counted)
            if not counted:
                truncated += 1
                ends["truncated"] += 1
                real = [i for i in ids if i != tok.pad_token_id]
                if STOP in tok.decode(real) or len(real) < trainer.max_completion_length:
                    wrong.append(["filtered though finished", tok.decode(ids)])
            elif counted[-1] in trainer.eos_token_ids:
                ends["eos"] += 1
            elif STOP in tok.decode(counted[-3:]):
                ends["stop"] += 1
                if STOP in tok.decode(counted[:-1]):
                    wrong.append(["goes on after the stop string", text])
            else:
                wrong.append(["counted though truncated", text])
        if abs(clipped - truncated / len(output["completion_ids"])) > 1e-6:
            wrong.append(["clipped_ratio", [clipped, truncated]])
    return ends | {"wrong": wrong[:5], "wrong_count": len(wrong)}


def guides_on_cuda() -> dict:
    """Each guide on CUDA against the CPU, float32 and bf16 signals: largest difference of log q."""
    import torch

    from sage_rlvr import Signals, make_guide

    def signals(device, dtype):
        g = torch.Generator().manual_seed(0)
        made = {k: 3 * torch.rand(64, 512, generator=g) for k in ("logps", "ref_logps", "entropies", "ref_entropies")}
        made = {k: (v if "entropies" in k else -v).to(dtype).to(device) for k, v in made.items()}
        mask = (torch.rand(64, 512, generator=g) > 0.2).to(device)
        return Signals(**made, mask=mask, step=5, max_steps=100, generator=torch.Generator().manual_seed(1))

    out = {}
    for name in ("random", "token", "branch", "tempered"):
        for dtype in (torch.float32, torch.bfloat16):
            a, b = make_guide(name)(signals("cuda", dtype)), make_guide(name)(signals("cpu", dtype))
            out[f"{name} {dtype}"] = float((a.cpu() - b).abs().max())
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder, or a .gguf file")
    parser.add_argument("--out", required=True, help="JSON to write")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        Path(args.out).write_text(json.dumps(one_case(args.case, args.model)))
        return 0
    if args.model.endswith(".gguf"):
        from sage_rlvr.models import load_model, load_tokenizer

        folder = Path(tempfile.mkdtemp(), "model")
        load_model(args.model).save_pretrained(folder)
        load_tokenizer(args.model).save_pretrained(folder)
        args.model = str(folder)
    import torch

    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "steps": STEPS,
        "guides": guides_on_cuda(),
        "cases": {},
    }
    for name in CASES:
        part = Path(tempfile.mkdtemp(), "case.json")
        command = [sys.executable, __file__, "--model", args.model, "--out", str(part), "--case", name]
        started = time.time()
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=400)
        if done.returncode:
            report["cases"][name] = {"failed": done.stderr[-3000:]}
        else:
            report["cases"][name] = json.loads(part.read_text()) | {"wall_s": time.time() - started}
        shown = {k: v for k, v in report["cases"][name].items() if k != "log"}
        print(name, json.dumps(shown)[:1500], flush=True)
        Path(args.out).write_text(json.dumps(report, indent=1))
    bad = [n for n, c in report["cases"].items() if "failed" in c or c.get("ends", {}).get("wrong_count")]
    bad += [n for n, d in report["guides"].items() if d > 1e-5]
    print("failed: " + ", ".join(bad) if bad else "all checks hold")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
