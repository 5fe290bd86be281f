"""Does the stacked engine train as SAGETrainer did? Arms of the confirmation, again, beside what its records say of them.

    python benchmarks/stacked.py --to results/cpu/stacked.json       # an hour on two cores

The same base, problems and settings, other seeds. An arm of the stacked engine should lie among the records' seeds.
"""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import yaml

from benchmarks.gpu.records import unpack
from sage_rlvr.provenance import made_with
from sage_rlvr.stats.counts import counts_of
from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.study.job import START, start_model
from sage_rlvr.study.plan import load_study, read_folder
from sage_rlvr.study.run import finished_runs
from sage_rlvr.study.stacked import run_stacked

RECORDS, TASK, KS = "results/gpu/confirm", "countdown-ltr-fresh", (1, 16, 256)


def passes(out: Path, run: str) -> list[float]:
    counts = counts_of(out / run / "eval").tasks[TASK]
    return [float(pass_at_k(counts.totals, counts.rights, k).mean()) for k in KS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/stacked", help="folder of both studies")
    parser.add_argument("--to", required=True, help="JSON file")
    parser.add_argument("--arms", nargs="+", default=["grpo_k3+beta0.05", "best+beta0.05"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    theirs, mine = Path(args.out, "theirs"), Path(args.out, "mine")
    unpack([RECORDS], theirs)
    known = load_study("confirm")
    variants = {arm: {k: v for k, v in known.variants[arm].items() if k != "seeds"} for arm in args.arms}
    study = replace(known, variants=variants, seeds=args.seeds)
    file = Path(args.out, "confirm.yaml")
    file.write_text(yaml.safe_dump({key: value for key, value in asdict(study).items() if key != "name"}))
    (mine / "base").mkdir(parents=True, exist_ok=True)
    (mine / "base" / START).write_text(json.dumps({"model": start_model(theirs)}) + "\n")
    run_stacked(file, mine)
    recorded, arms = read_folder(theirs), {}
    for arm in args.arms:
        seeds = [passes(theirs, run) for run in finished_runs(theirs) if recorded.variant_of(run)[0] == arm]
        arms[arm] = {
            "k": KS,
            "recorded_mean": np.mean(seeds, 0).round(4).tolist(),
            "recorded_sd_over_seeds": np.std(seeds, 0, ddof=1).round(4).tolist(),
            "recorded_seeds": len(seeds),
            "stacked": [np.round(passes(mine, f"{arm}-s{seed}"), 4).tolist() for seed in args.seeds],
        }
        print(arm, json.dumps(arms[arm]))
    base = {"recorded": passes(theirs, "base"), "stacked": passes(mine, "base")}
    Path(args.to).write_text(json.dumps({"machine": made_with(), "base": base, "arms": arms}, indent=1) + "\n")


if __name__ == "__main__":
    main()
