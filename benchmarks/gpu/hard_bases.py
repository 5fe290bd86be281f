"""Which base for the world with room (countdown-hard)? Sizes and numbers of demonstrations side by side, measured as SFT goes on.

    python benchmarks/gpu/hard_bases.py --to results/gpu/hard_bases.json [--out DIR] [--only 'w128*'] [--jobs 6] [--quick]

Each base is taught problems of countdown-hard with one right answer each; every EVERY steps its weights are sampled on test
problems and on sets out of distribution. Wanted: pass@1 .02 to .05, pass@256 .3 to .6 (the guess line: .18), and 20% or more
of a set out of distribution solved in 512 samples (FAR has three to choose from). --quick: few steps and samples, on a CPU;
its numbers mean nothing.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

from bases import side_by_side
from study import ENVIRONMENT, start_mps

from sage_rlvr.models import scratch_model
from sage_rlvr.provenance import made_with
from sage_rlvr.study import warm
from sage_rlvr.study.job import demonstration_rows
from sage_rlvr.tasks import get_task, load_task, register_task
from sage_rlvr.tasks.countdown import LTR_QUESTION, make_problems, reachable
from sage_rlvr.tasks.countdown_hard import HARD, guess

RL_PROBLEMS = 12_000  # the first of the training split are left to RL
KS = (1, 16, 64, 256, 512)
SIZES = {
    "w128": {"width": 128, "layers": 4, "heads": 4},
    "w256": {"width": 256, "layers": 6, "heads": 8},
}
BASES = {
    "w128_40k": {"size": "w128", "problems": 40_000, "rate": 2e-3},
    "w128_25k": {"size": "w128", "problems": 25_000, "rate": 2e-3},
    "w256_40k": {"size": "w256", "problems": 40_000, "rate": 1e-3},
    "w256_25k": {"size": "w256", "problems": 25_000, "rate": 1e-3},
}
# Out of distribution, to choose from: (how many numbers, the largest, targets)
FAR = {"far-low": (5, 20, (100, 199)), "far-high": (5, 20, (1000, 1499)), "far-four": (4, 20, (200, 999))}
SFT = {
    "prompt_format": "symbols", "use_peft": False, "per_device_train_batch_size": 512, "max_length": 64, "bf16": False,
    "gradient_checkpointing": False, "report_to": "none", "logging_steps": 100, "disable_tqdm": True,
}  # fmt: skip
EVALUATE = {
    "tasks": [HARD, *FAR], "n": 512, "seeds": 1, "limit": 200, "temperature": 1.0, "min_p": 0.0, "max_tokens": 16,
    "prompt_format": "symbols", "backend": "transformers", "batch_size": 4096,
}  # fmt: skip
EVERY, STEPS = 1000, 4000


def far(name: str) -> None:
    """A task of such problems, of which a model of ours solves some or none."""
    count, largest, targets = FAR[name]

    def generate(n: int, seed: int = 0, split: str = "test") -> list:
        def draw(rng):
            numbers = [rng.randint(1, largest) for _ in range(count)]
            can = reachable(numbers, *targets)
            return (numbers, rng.choice(can)) if can else None

        return make_problems(name, n, (seed, split), draw, LTR_QUESTION, lambda key: split)

    register_task(replace(get_task(HARD), name=name, description=name, generate=generate))


for _name in FAR:
    far(_name)


def make(rows: list[dict[str, str]], name: str, folder: Path, quick: bool) -> dict[str, Any]:
    from sage_rlvr.train import sft

    spec = BASES[name]
    small = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 32, "use_cpu": True}
    steps = small if quick else {"max_steps": STEPS, "save_steps": EVERY}
    start = scratch_model(folder / "scratch", characters="0123456789+-*=: ", dropout=0.1, **SIZES[spec["size"]])
    recipe = {**SFT, "learning_rate": spec["rate"], **steps}
    run, config = sft.from_recipe(recipe, folder / "sft", str(start))
    began = time.monotonic()
    sft.run_sft(run, config, dataset=rows[: spec["problems"]])
    found = {"sft_s": round(time.monotonic() - began)}
    for saved in sorted((folder / "sft").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])):
        found[saved.name.split("-")[1]] = measured(saved, folder / f"eval-{saved.name}", quick)
        print(name, saved.name, found, flush=True)  # kept in its log, should the card's time end
    return found


def measured(model: Path, folder: Path, quick: bool) -> dict[str, Any]:
    """task → pass@k for KS, and distinct right answers."""
    from sage_rlvr.evaluate.results import results
    from sage_rlvr.evaluate.run import EvalArguments, evaluate

    few = {"n": 4, "limit": 10} if quick else {}
    evaluate(EvalArguments(model=str(model), out=str(folder), **{**EVALUATE, **few}))
    tasks = results(folder).tasks
    return {
        name: {f"pass@{k}": round(v.value, 4) for k, v in task.pass_at.items() if k in KS}
        | ({"distinct": round(task.distinct_solutions.value, 2)} if task.distinct_solutions else {})
        for name, task in tasks.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/hard_bases", help="folder of the models and samples")
    parser.add_argument("--to", required=True, help="JSON file of the rows")
    parser.add_argument("--only", default="*", help="a pattern of bases")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="few steps and samples, on a CPU: a smoke test")
    args = parser.parse_args()
    os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **ENVIRONMENT}  # the driver must sleep until after the forks
    if not args.quick:
        start_mps()
    for module in warm.NEEDED:
        import_module(module)
    names = [name for name in BASES if fnmatch(name, args.only)]
    began = time.monotonic()
    problems = 200 if args.quick else max(BASES[name]["problems"] for name in names)
    rows = demonstration_rows(problems, 0 if args.quick else RL_PROBLEMS, task=HARD)
    print(f"{len(rows):,} demonstrations in {time.monotonic() - began:.0f} s", flush=True)
    line = {task: guess(load_task(task, limit=200, split="test"), 256).mean() for task in (HARD, *FAR)}
    bases = side_by_side(make, rows, names, Path(args.out), args.jobs, args.quick)
    line = {task: round(float(value), 4) for task, value in line.items()}
    told = [row | {"settings": BASES[row["name"]]} for row in bases]
    record = {"guess@256": line, "sizes": SIZES, "sft": SFT, "evaluate": EVALUATE, "bases": told}
    text = json.dumps({"wall_s": round(time.monotonic() - began), "jobs": args.jobs, **made_with(), **record}, indent=1)
    Path(args.to).write_text(text + "\n")
    return 0 if len(bases) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
