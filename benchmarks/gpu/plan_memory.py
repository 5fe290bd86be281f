"""plan's peak memory against PyTorch's own count on one GPU: a few steps of each case, in a process of its own.

    python benchmarks/gpu/plan_memory.py --model FOLDER_OR_GGUF --out results/gpu/plan_memory.json

SmolLM2-135M is enough. Problems are generated (countdown-ltr), and completions are as long as they may get, because that is what
plan assumes. A case that is off by more than a quarter is written into the JSON and ends with 1.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LORA = ["--use_peft", "true", "--lora_r", "8", "--lora_target_modules", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
        "up_proj", "down_proj"]  # fmt: skip
VLLM = ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", "0.2"]
CASES = {
    "LoRA, checkpointing, generate": [*LORA, "--dtype", "bfloat16"],
    "LoRA, no checkpointing, generate": [*LORA, "--dtype", "bfloat16", "--gradient_checkpointing", "false"],
    "every weight, checkpointing, generate": ["--dtype", "float32"],
    "every weight, no checkpointing, generate": ["--dtype", "float32", "--gradient_checkpointing", "false"],
    "every weight, no KL, grouped AdamW": ["--dtype", "float32", "--beta", "0", "--optim", "adamw_torch"],
    "LoRA, checkpointing, vLLM": [*LORA, "--dtype", "bfloat16", *VLLM],
}
STEPS, TOKENS = 4, 256


def flags(case: str, model: str, out: str) -> list[str]:
    lengthen = [] if "vLLM" in case else ["--generation_kwargs", json.dumps({"min_new_tokens": TOKENS})]
    return [
        "--model_name_or_path", model, "--output_dir", out, "--task", "countdown-ltr", "--rows", "64", "--prompt_format", "plain",
        "--decontaminate", "false", "--guide", "none", "--max_steps", str(STEPS), "--per_device_train_batch_size", "16",
        "--gradient_accumulation_steps", "2", "--num_generations", "8", "--max_completion_length", str(TOKENS), "--bf16", "true",
        "--save_strategy", "no", "--report_to", "none", "--disable_tqdm", "true", *lengthen, *CASES[case],
    ]  # fmt: skip


def one_case(case: str, model: str) -> dict:
    import torch

    from sage_rlvr.doctor.memory import CUDA_CONTEXT
    from sage_rlvr.doctor.plan import make_plan
    from sage_rlvr.train.run import train

    argv = flags(case, model, tempfile.mkdtemp())
    began = time.perf_counter()
    train(argv)
    torch.cuda.synchronize()
    wall = time.perf_counter() - began
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    plan = make_plan(argv)
    planned = plan.memory.peak - CUDA_CONTEXT  # PyTorch counts its allocator alone
    return {
        "planned_bytes": planned,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "planned_over_allocated": planned / allocated,
        "planned_over_reserved": planned / reserved,
        "within_a_quarter": abs(planned / allocated - 1) <= 0.25,
        "phase": plan.memory.worst,
        "parts": {p.name: p.bytes for p in plan.memory.phases[plan.memory.worst]},
        "wall_seconds_with_loading": wall,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder, or a .gguf file")
    parser.add_argument("--out", required=True, help="JSON to write")
    parser.add_argument("--cases", nargs="+", default=list(CASES), help="which cases (default: all)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        Path(args.out).write_text(json.dumps(one_case(args.case, args.model)))
        return 0
    if args.model.endswith(".gguf"):
        from sage_rlvr.models import gguf_folder

        args.model = str(gguf_folder(args.model))
    import torch

    report: dict = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "steps": STEPS, "cases": {}}
    for case in args.cases:
        part = Path(tempfile.mkdtemp(), "case.json")
        command = [sys.executable, __file__, "--model", args.model, "--out", str(part), "--case", case]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        found = {"failed": done.stderr[-3000:]} if done.returncode else json.loads(part.read_text())
        report["cases"][case] = found
        print(case, json.dumps({k: v for k, v in found.items() if k != "parts"})[:600], flush=True)
        Path(args.out).write_text(json.dumps(report, indent=1))
    off = [case for case, found in report["cases"].items() if not found.get("within_a_quarter")]
    print("off or failed: " + ", ".join(off) if off else "every case is within a quarter")
    return bool(off)


if __name__ == "__main__":
    sys.exit(main())
