"""Which base, problems, rate and length for the miniature with room, and what a run costs: the gate of docs/protocols/hard.md.

    python benchmarks/gpu/hard_gate.py --out runs/hard_gate --records results/gpu/hard --to results/gpu/hard_gate2.json --mps

The bases of BASES are made side by side, each in a study folder of its own, and one is chosen. From it GRPO without KL is
trained on each of POOLS at each of RATES, is measured on the way, and a cell is chosen. Then the study goes on in the chosen
base's folder, with GRPO, seed by seed, until --minutes are over; its records go to --records. OUT/hard.yaml is the study file
with what was chosen: the package's own must say the same before the study goes on. --quick: few steps and samples, on a CPU; its
numbers mean nothing.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from study import start_mps

from sage_rlvr.evaluate.counts import TaskCounts, counts_of
from sage_rlvr.metrics import pass_at_k
from sage_rlvr.provenance import made_with
from sage_rlvr.stats.intervals import Interval, crossed
from sage_rlvr.study.frontier import read_planes
from sage_rlvr.study.job import at_step
from sage_rlvr.tasks.countdown_hard import HARD, HARD_FAR

BASES = (
    (40_000, 2000),
    (40_000, 3000),
    (100_000, 2000),
    (100_000, 3000),
    (100_000, 4000),
)  # demonstrations, steps of SFT
POOLS = {"again": 6_000, "once": 38_400}  # problems of RL: seen 6.4 times each in 400 steps, or once
RATES = (1.5e-5, 5e-5, 1.5e-4)
ON_THE_WAY = (100, 200, 300)  # steps after which a training is measured too
KEPT = 3  # the stratum in which something must be lost: 9 to 25 right of 256
LEAST = 40  # test problems in each of the first four strata
QUICK: dict[str, dict[str, Any]] = {
    "demonstrations": {"after": 0},
    "sft": {"use_cpu": True, "tf32": None, "per_device_train_batch_size": 32},
    "train": {
        "use_cpu": True,
        "tf32": None,
        "max_steps": 4,
        "per_device_train_batch_size": 32,
        "num_generations": 8,
        "rows": 40,
    },
    "evaluate": {"n": 4, "limit": 20, "primary": {"k": 2, "strata": [3]}},
}


def choose_base(rows: dict[str, dict[str, float]]) -> str:
    """The protocol's rule: of those with room and a reachable far set, the highest pass@1; where none has both, room alone; where
    none has that either, the one whose pass@1 is nearest to .02. ``rows``: base → what was measured."""
    room = [n for n, row in rows.items() if 0.012 <= row["pass@1"] <= 0.05 and row["least"] >= LEAST]
    far = [n for n in room if rows[n]["far@512"] >= 0.2]
    if not room:
        return min(rows, key=lambda n: abs(rows[n]["pass@1"] - 0.02))
    return max(far or room, key=lambda n: rows[n]["pass@1"])


def choose_cell(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The protocol's rule: of the cells (pool, rate, steps) that lose pass@64, the fewest steps within .002 of the best pass@1;
    where none loses it, of all."""
    fit = [row for row in rows if row["lost"].high < 0] or rows
    best = max(row["pass@1"] for row in fit)
    return min((row for row in fit if row["pass@1"] >= best - 0.002), key=lambda row: (row["steps"], -row["pass@1"]))


def passes(counts: TaskCounts, ks: tuple[int, ...]) -> dict[str, float]:
    most = int(counts.totals.max())
    return {f"@{k}": round(float(pass_at_k(counts.totals, counts.rights, min(k, most)).mean()), 4) for k in ks}


def measured(folder: Path) -> dict[str, float]:
    tasks = counts_of(folder).tasks
    here = {f"pass{k}": value for k, value in passes(tasks[HARD], (1, 16, 64, 256, 512)).items()}
    return here | {f"far{k}": value for k, value in passes(tasks[HARD_FAR], (1, 512)).items()}


def least(folder: Path, edges: list[int]) -> int:
    """How many problems the smallest of the first four strata has, by the first seed's samples."""
    right = (counts_of(folder).tasks[HARD].state[:, 0] == 2).sum(-1)
    return int(np.bincount(np.digitize(right, edges, right=True), minlength=len(edges) + 1)[:4].min())


def lost(out: Path, folder: Path) -> Interval:
    """pass@k of ``folder`` minus the base's second evaluation, in the stratum with most to keep. Over problems alone."""
    planes = read_planes(out, HARD)
    own = planes.strata[min(KEPT, len(planes.strata) - 1)]
    base, arm = (counts_of(at).tasks[HARD].only(planes.problems) for at in (out / "base" / "eval", folder))
    right, total = (base.state[:, 1:] == 2).sum((1, 2)), base.n * (len(base.seeds) - 1)
    y = pass_at_k(arm.totals, arm.rights, planes.k), pass_at_k(right * 0 + total, right, planes.k)
    return crossed([y[0][None, own], -y[1][None, own]]).interval()


def run(file: Path, out: Path, records: Path, args: argparse.Namespace, minutes: float, only: str, jobs: int) -> None:
    script = Path(__file__).with_name("study.py")
    asked = [
        "--study",
        str(file),
        "--out",
        str(out),
        "--records",
        str(records),
        "--minutes",
        f"{minutes:.2f}",
        "--only",
        only,
    ]
    with Path(f"{out}.log").open("a") as log:
        subprocess.run(
            [sys.executable, str(script), "run", *asked, "--jobs", str(jobs)], stdout=log, stderr=log, check=True
        )


def write(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/hard_gate", help="folder of the studies")
    parser.add_argument("--records", required=True, help="folder of the study's records: written as it goes on")
    parser.add_argument("--to", required=True, help="JSON file of what was measured and chosen")
    parser.add_argument("--minutes", type=float, default=24.0, help="when to stop")
    parser.add_argument("--jobs", type=int, default=16, help="runs of the study side by side")
    parser.add_argument("--mps", action="store_true", help="start NVIDIA's multi-process service first")
    parser.add_argument("--quick", action="store_true", help="few steps and samples, on a CPU: a smoke test")
    args = parser.parse_args()
    out, began = Path(args.out).resolve(), time.monotonic()
    if args.mps:
        start_mps()
    hard = yaml.safe_load(files("sage_rlvr").joinpath("studies", "hard.yaml").read_text(encoding="utf-8"))
    for part, settings in QUICK.items() if args.quick else ():
        (hard if part in hard else hard["base"])[part].update(settings)
    bases, rates, pools, on_the_way = BASES, RATES, POOLS, ON_THE_WAY
    if args.quick:
        bases, rates, pools, on_the_way = ((64, 2), (64, 4)), RATES[1:2], {"again": 40, "once": 64}, (2,)
    found: dict[str, Any] = {"machine": made_with(), "bases": {}, "cells": []}

    def left() -> float:
        return args.minutes - (time.monotonic() - began) / 60

    def keep(**more: Any) -> None:
        found.update(seconds=round(time.monotonic() - began), **more)
        Path(args.to).write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(more or found["bases"]), flush=True)

    def base(cell: tuple[int, int]) -> None:
        problems, count = cell
        name, own = f"{problems}x{count}", dict(hard["base"])
        own["demonstrations"] = own["demonstrations"] | {"problems": problems}
        own["sft"] = own["sft"] | {"max_steps": count}
        file = write(out / name / "hard.yaml", hard | {"base": own})
        run(file, file.parent / "study", file.parent / "records", args, left(), "base", 1)
        samples = file.parent / "study" / "base" / "eval"
        found["bases"][name] = measured(samples) | {"least": least(samples, hard["evaluate"]["primary"]["strata"])}
        keep()

    with ThreadPoolExecutor(len(bases)) as pool:
        list(pool.map(base, bases))
    chosen = choose_base(found["bases"])
    keep(base=chosen)

    folder = out / chosen
    model = json.loads((folder / "study" / "base" / "start.json").read_text())["model"]
    train = hard["train"] | {"beta": 0.0, "save_steps": on_the_way[0], "save_total_limit": None}
    variants = {name: {"rows": rows, "sweep": {"learning_rate": list(rates)}} for name, rows in pools.items()}
    path = {"path": {"steps": list(on_the_way), "n": min(128, hard["evaluate"]["n"]), "seeds": 1}}
    first = {"base": {"model": model}, "train": train, "variants": variants, "seeds": [0]}
    gate = write(out / "gate" / "gate.yaml", hard | first | {"evaluate": hard["evaluate"] | path})
    run(gate, gate.parent / "study", gate.parent / "records", args, left(), "*", len(pools) * len(rates))
    for name in pools:
        for rate in rates:
            last = gate.parent / "study" / f"{name}+learning_rate{rate}-s0" / "eval"
            for steps in (*on_the_way, train["max_steps"]):
                at = last if steps == train["max_steps"] else at_step(last, steps)
                cell = {"pool": name, "rate": rate, "steps": steps}
                found["cells"].append(cell | measured(at) | {"lost": lost(gate.parent / "study", at)})
    cell = choose_cell(found["cells"])
    keep(cell={key: cell[key] for key in ("pool", "rate", "steps")})

    whole = yaml.safe_load((folder / "hard.yaml").read_text())
    whole["train"] |= {"learning_rate": cell["rate"], "rows": pools[cell["pool"]], "max_steps": cell["steps"]}
    whole["variants"]["low_rate"]["learning_rate"] = round(cell["rate"] / 3, 8)
    file = write(out / "hard.yaml", whole)
    run(file, folder / "study", Path(args.records), args, left(), "grpo_k3+*", args.jobs)
    keep(study=str(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
