"""Which base and which rate for the miniature with room, and what a run costs: the first piece of docs/protocols/hard.md.

    python benchmarks/gpu/hard_gate.py --out runs/hard_gate --records results/gpu/hard --to results/gpu/hard_gate.json --mps

Bases of the study ``hard`` with STEPS steps of SFT are made side by side, each in a study folder of its own, and one is chosen.
From it GRPO without KL is trained at RATES, and one is chosen. Then the study goes on in the chosen base's folder, with GRPO,
seed by seed, until --minutes are over; its records go to --records. OUT/hard.yaml is the study file with what was chosen: the
package's own must say the same before the study goes on. --quick: a few steps and samples, on a CPU; its numbers mean nothing.
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

import yaml
from study import start_mps

from sage_rlvr.evaluate.counts import TaskCounts, counts_of
from sage_rlvr.metrics import pass_at_k
from sage_rlvr.provenance import made_with
from sage_rlvr.stats.intervals import Interval, crossed
from sage_rlvr.study.frontier import read_planes
from sage_rlvr.tasks.countdown import HARD, HARD_FAR

STEPS = (1500, 1750, 2000, 2250, 2500, 3000)
RATES = (1.5e-4, 3e-4, 6e-4)
KEPT = 3  # the stratum in which something must be lost: 9 to 25 right of 256
QUICK: dict[str, dict[str, Any]] = {
    "demonstrations": {"problems": 64, "after": 0},
    "sft": {"use_cpu": True, "per_device_train_batch_size": 32},
    "train": {"use_cpu": True, "max_steps": 2, "per_device_train_batch_size": 32, "num_generations": 8, "rows": 40},
    "evaluate": {"n": 4, "limit": 20, "primary": {"k": 2, "strata": [3]}},
}


def choose_base(rows: dict[int, dict[str, float]]) -> int:
    """The protocol's rule: of those with room and a reachable far set, the highest pass@1; where none has both, room alone; where
    none has that either, the one whose pass@256 is nearest to .5. ``rows``: steps → pass@k."""
    room = [n for n, row in rows.items() if 0.012 <= row["pass@1"] <= 0.05 and 0.3 <= row["pass@256"] <= 0.65]
    far = [n for n in room if rows[n]["far@512"] >= 0.2]
    if not room:
        return min(rows, key=lambda n: abs(rows[n]["pass@256"] - 0.5))
    return max(far or room, key=lambda n: rows[n]["pass@1"])


def choose_rate(rows: dict[float, dict[str, Any]], base: float) -> float:
    """The protocol's rule: the smallest that doubles the ``base``'s pass@1 and loses pass@64, else the highest pass@1's."""
    fit = [rate for rate, row in rows.items() if row["pass@1"] >= 2 * base and row["lost"].high < 0]
    return min(fit) if fit else max(rows, key=lambda rate: rows[rate]["pass@1"])


def passes(counts: TaskCounts, ks: tuple[int, ...]) -> dict[str, float]:
    most = int(counts.totals.max())
    return {f"@{k}": round(float(pass_at_k(counts.totals, counts.rights, min(k, most)).mean()), 4) for k in ks}


def measured(folder: Path) -> dict[str, float]:
    tasks = counts_of(folder).tasks
    here = {f"pass{k}": value for k, value in passes(tasks[HARD], (1, 16, 64, 256, 512)).items()}
    return here | {f"far{k}": value for k, value in passes(tasks[HARD_FAR], (1, 512)).items()}


def lost(out: Path, run: str) -> Interval:
    """pass@k of ``run`` minus the base's second evaluation, in the stratum where there is most to keep. Over problems alone."""
    planes = read_planes(out, HARD)
    own = planes.strata[min(KEPT, len(planes.strata) - 1)]
    base, arm = (counts_of(out / name / "eval").tasks[HARD].only(planes.problems) for name in ("base", run))
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
    steps, rates = ((2, 4), RATES[1:2]) if args.quick else (STEPS, RATES)
    found: dict[str, Any] = {"machine": made_with(), "bases": {}, "rates": {}}

    def left() -> float:
        return args.minutes - (time.monotonic() - began) / 60

    def keep(**more: Any) -> None:
        found.update(more, seconds=round(time.monotonic() - began))
        Path(args.to).write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(more), flush=True)

    def base(count: int) -> None:
        sft = hard["base"]["sft"] | {"max_steps": count}
        file = write(out / f"steps{count}" / "hard.yaml", hard | {"base": hard["base"] | {"sft": sft}})
        run(file, file.parent / "study", file.parent / "records", args, left(), "base", 1)
        found["bases"][count] = measured(file.parent / "study" / "base" / "eval")
        keep(**{f"base of {count} steps": found["bases"][count]})

    with ThreadPoolExecutor(len(steps)) as pool:
        list(pool.map(base, steps))
    chosen = choose_base(found["bases"])
    keep(steps=chosen)

    folder = out / f"steps{chosen}"
    model = json.loads((folder / "study" / "base" / "start.json").read_text())["model"]
    variants = {"rate": {"beta": 0.0, "sweep": {"learning_rate": list(rates)}}}
    gate = write(out / "gate" / "gate.yaml", hard | {"base": {"model": model}, "variants": variants, "seeds": [0]})
    run(gate, gate.parent / "study", gate.parent / "records", args, left(), "*", len(rates))
    for rate in rates:
        own = f"rate+learning_rate{rate}-s0"
        row = measured(gate.parent / "study" / own / "eval") | {"lost": lost(gate.parent / "study", own)}
        found["rates"][rate] = row
    rate = choose_rate(found["rates"], measured(gate.parent / "study" / "base" / "eval")["pass@1"])
    keep(rate=rate)

    whole = yaml.safe_load((folder / "hard.yaml").read_text())
    whole["train"]["learning_rate"] = rate
    whole["variants"]["low_rate"]["learning_rate"] = round(rate / 3, 7)
    file = write(out / "hard.yaml", whole)
    run(file, folder / "study", Path(args.records), args, left(), "grpo_k3+*", args.jobs)
    keep(study=str(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
