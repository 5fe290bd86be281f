"""What a step of the stacked engine costs: seconds of the card per run and step, plain, compiled, and with FlexAttention.

    python benchmarks/gpu/stacked_speed.py --to results/gpu/stacked_speed.json [--profile]

Each kind is a process of its own, one at a time. The weights are new, so verdicts are made up: a
share of 1 in 50 is right. On a GPU, log-probs and gradients by FlexAttention are compared with those by products first.
"""

import argparse
import json
import time
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_rlvr.models import scratch_model
from sage_rlvr.provenance import made_with
from sage_rlvr.stacked.measure import measure
from sage_rlvr.stacked.model import Stack
from sage_rlvr.stacked.train import Run, scored, train
from sage_rlvr.stacked.world import World
from sage_rlvr.study.stacked import BESIDE
from sage_rlvr.tasks import load_task
from sage_rlvr.tasks.countdown import HARD
from sage_rlvr.train.config import SAGEConfig

KINDS = {  # runs in a stack, compiled, type of the products, attention by FlexAttention (on a GPU)
    "plain": (12, False, torch.float32, False),
    "compiled": (12, True, torch.float32, False),
    "plain bf16": (12, False, torch.bfloat16, False),
    "compiled bf16": (12, True, torch.bfloat16, False),
    "flex bf16": (12, True, torch.bfloat16, True),
}
WARM, TIMED = 3, 6


class MadeUp(World):
    def right(self, problems: Any, which: Any, ids: torch.Tensor) -> torch.Tensor:
        return ids.sum(-1) % 50 == 0


def timed(kind: str, folder: str, hard: dict[str, Any], size: tuple[int, int], turn: Any, profile: bool) -> dict:
    runs, compiled, dtype, flex = KINDS[kind]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    flex = flex and device == "cuda"
    torch.set_float32_matmul_precision("high")  # TF32
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    world = MadeUp(HARD, tokenizer, device)
    problems = world.problems(load_task(HARD, limit=1000, split="train"))
    own = {key: value for key, value in hard["train"].items() if key not in BESIDE}
    own |= {"output_dir": "", "use_cpu": True, "max_steps": WARM + TIMED, "learning_rate": 1e-5}
    own |= {"per_device_train_batch_size": size[0], "num_generations": size[1]}
    all_runs = [Run(str(r), SAGEConfig(**own | {"seed": r})) for r in range(runs)]
    stack, base = (Stack.of(model, count, device, dtype, compiled, flex) for count in (runs, 1))
    clock: dict[str, float] = {}
    turn.acquire()
    watch = torch.profiler.profile() if profile and compiled else None

    def at(step: int) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        if step == WARM:
            clock["began"] = time.perf_counter()
        if step == WARM + TIMED - 1:
            clock["took"] = (time.perf_counter() - clock["began"]) / (TIMED - 1)
            if watch:
                watch.start()

    began = time.perf_counter()
    train(all_runs, stack, base, world, problems, at)
    if watch:
        watch.stop()
        print(kind, watch.key_averages().table(sort_by="self_cuda_time_total", row_limit=22, max_name_column_width=60))
    few = load_task(HARD, limit=60 if device == "cuda" else 4, split="test")
    for _ in range(2):  # the first compiles
        if device == "cuda":
            torch.cuda.synchronize()
        before = time.perf_counter()
        measure(stack, world, world.problems(few), 256 if device == "cuda" else 4, [0], 16)
    evaluated = time.perf_counter() - before
    turn.release()
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    differs = {"flex_minus_products": differences(model, world, problems)} if flex else {}
    row = differs | {
        "ms_per_run_and_step": round(1000 * clock["took"] / runs, 2),
        "ms_per_run_and_1000_samples": round(1000 * evaluated / runs / len(few) / 256 * 1000, 3),
        "gib": round(memory, 1),
        "whole_s": round(time.perf_counter() - began, 1),
    }
    print(kind, json.dumps(row), flush=True)
    return row


def differences(model: Any, world: World, problems: Any) -> dict[str, float]:
    """The largest difference between FlexAttention and products, in float32: of log-probs, and of a gradient as a share of its
    largest number."""
    torch.set_float32_matmul_precision("highest")
    prompts = problems.prompts(torch.arange(8, device=world.device).view(2, 4))
    drawn = torch.rand(2, 4, 32, 16, generator=torch.Generator(world.device).manual_seed(0), device=world.device)
    ids = Stack.of(model, 2, world.device).sample(prompts, drawn, world.end, world.pad)
    found = []
    for flex in (False, True):
        stack = Stack.of(model, 2, world.device, compiled=flex, flex=flex)
        stack.trained()
        logps = scored(stack, prompts, ids)[0]
        (drawn * logps).sum().backward()
        found.append((logps.detach(), {name: w.grad for name, w in stack.weights.items()}))
    (plain, own), (other, theirs) = found
    shares = [float((theirs[name] - g).abs().max() / g.abs().max()) for name, g in own.items() if g is not None]
    return {"log_probs": float((other - plain).abs().max()), "gradient": max(shares)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, help="JSON file")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--profile", action="store_true", help="print the kernels of one step, too")
    parser.add_argument("--tiny", action="store_true", help="a small batch, for a smoke test on a CPU")
    args = parser.parse_args()
    hard = yaml.safe_load(files("sage_rlvr").joinpath("studies", "hard.yaml").read_text(encoding="utf-8"))
    with TemporaryDirectory() as folder:
        scratch_model(Path(folder, "m"), **hard["base"]["scratch"])
        spawn = get_context("spawn")
        with spawn.Manager() as manager, spawn.Pool(len(args.kinds)) as pool:
            size, turn = (8, 4) if args.tiny else (3072, 32), manager.Lock()
            asked = [(kind, str(Path(folder, "m")), hard, size, turn, args.profile) for kind in args.kinds]
            rows = dict(zip(args.kinds, pool.starmap(timed, asked)))
    Path(args.to).write_text(json.dumps({"machine": made_with(), "kinds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
