"""Which training problems a study's base solves now and then, for its ``within_reach`` (docs/evidence/notebook.md).

    python benchmarks/gpu/reach.py --study qwen1.5b --out runs/reach --to results/gpu/qwen1.5b/reach.json

``sage-rlvr eval --split train`` as often as --jobs says, side by side, each with its own seeds: one engine alone leaves most of
a large GPU idle. Sampled as the study's training samples. The same command again goes on; --to has the counts alone.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.launch.reach import Tallies, tallies, write_tallies
from sage_rlvr.provenance import made_with
from sage_rlvr.study.plan import Study, load_study


def command(study: Study, args: argparse.Namespace, job: int) -> list[str]:
    """The evaluation of one job: every jobs-th seed, a sample each."""
    t = study.train
    flags: dict[str, Any] = {
        "model": study.base["model_name_or_path"], "tasks": t["task"], "split": "train", "limit": args.rows, "n": 1,
        "temperature": t["temperature"], "min_p": t["min_p"], "max_tokens": t["max_completion_length"],
        "prompt_format": t["prompt_format"], "out": str(Path(args.out, str(job))), "backend": args.backend,
        "gpu_memory_utilization": 0.1, "kv_cache_gib": args.kv_cache_gib,
    }  # fmt: skip
    said = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "sage_rlvr.cli", "eval", *said, "--seeds", *map(str, range(job, args.n, args.jobs))]


def sample(study: Study, args: argparse.Namespace) -> None:
    running = []
    for folder in (Path(args.out), Path(args.to).parent):  # both before hours of sampling
        folder.mkdir(parents=True, exist_ok=True)
    for job in range(args.jobs):
        with Path(args.out, f"{job}.log").open("ab") as log:
            running.append(subprocess.Popen(command(study, args, job), stdout=log, stderr=subprocess.STDOUT))
    failed = [job for job, process in enumerate(running) if process.wait() != 0]
    if failed:
        raise UserError(f"{args.out}/{failed[0]}.log says why the evaluation ended; the same command goes on.")


def added(parts: list[Tallies]) -> Tallies:
    right, judged = Counter[str](), Counter[str]()
    for part in parts:
        right.update({p: r for p, (r, _) in part.items()})
        judged.update({p: n for p, (_, n) in part.items()})
    return {p: (right[p], n) for p, n in judged.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", required=True, help="a study file or a packaged name")
    parser.add_argument("--rows", type=int, default=2000, help="problems: the first of the task")
    parser.add_argument("--n", type=int, default=8, help="samples a problem")
    parser.add_argument(
        "--jobs", type=int, default=4, help="evaluations side by side, of two samples a problem or more"
    )
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--kv_cache_gib", type=float, default=12.0)
    parser.add_argument("--out", required=True, help="folder of the samples")
    parser.add_argument("--to", required=True, help="file of the counts")
    args = parser.parse_args()
    if args.n < 2 * args.jobs:
        parser.error(
            f"--n {args.n} is less than two samples for each of --jobs {args.jobs}: fewer jobs, or more samples"
        )
    study, began = load_study(args.study), time.monotonic()
    task = study.train["task"]
    try:
        sample(study, args)
        found = added([tallies(Path(args.out, str(job)), task) for job in range(args.jobs)])
    except UserError as e:
        parser.exit(2, f"{e}\n")
    cost = {"wall_s": round(time.monotonic() - began, 1), "jobs": args.jobs, **made_with()}
    write_tallies(args.to, found, task, model=study.base["model_name_or_path"], n=args.n, **cost)
    some = sum(0 < right < n for right, n in found.values())
    print(
        f"{some:,} of {len(found):,} problems are right in some of {args.n} samples and wrong in others; written: {args.to}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
