"""Which base, problems, rate and length for the harder miniature: the gate of docs/protocols/hard.md, in stacks.

    python benchmarks/gpu/hard_gate.py --prepare        # on any machine: demonstrations, new weights
    python benchmarks/gpu/hard_gate.py

Bases that differ in what they are shown are taught side by side. From the one of each kind that the rules choose, GRPO without
KL is trained on each of POOLS at each of RATES and measured on the way, and a cell is chosen. Small stacks leave most of a card
idle, so lengths, and then pairs of base and pool, are processes of their own. OUT/hard.yaml is then the study
with what was chosen, and OUT/study its folder, with the base in it; this goes on from there:

    python benchmarks/gpu/study.py run --study OUT/hard.yaml --out OUT/study --engine stacked --records results/gpu/hard

--quick: few steps and samples, for a CPU; its numbers mean nothing.
"""

import argparse
import gzip
import json
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from importlib.resources import files
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from sage_rlvr.models import scratch_model
from sage_rlvr.provenance import made_with
from sage_rlvr.stacked.measure import Measured, measure
from sage_rlvr.stacked.model import Stack
from sage_rlvr.stacked.teach import teach
from sage_rlvr.stacked.train import Run, train
from sage_rlvr.stacked.world import World
from sage_rlvr.stats.intervals import Interval, crossed
from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.study.job import START, demonstration_rows
from sage_rlvr.study.stacked import BESIDE
from sage_rlvr.tasks import load_task
from sage_rlvr.tasks.countdown import HARD, HARD_FAR
from sage_rlvr.train.config import SAGEConfig

GUESSES = {"plain": 0.0, "half": 0.5, "most": 0.8}  # kind of base → the share of demonstrations that are guesses
LENGTHS = (6000,)  # steps of SFT
POOLS = {"again": 6_000, "once": 38_400}  # problems of RL: seen 6.4 times each in 400 steps, or once
RATES = (2e-5, 5e-5, 1.5e-4, 4e-4)
ON_THE_WAY = (100, 200, 300, 400)  # steps after which a training is measured
EDGES = (0, 2, 8, 25)  # of the strata, in right answers of 256
LEAST = 40  # test problems in each of the first four strata


def choose_base(rows: dict[str, dict[str, float]]) -> str:
    """The protocol's rule: of those with room and a reachable far set, the highest pass@1; where none has both, room alone; where
    none has that either, the one whose pass@1 is nearest to .02. ``rows``: base → what was measured."""
    room = [n for n, row in rows.items() if 0.006 <= row["pass@1"] <= 0.05 and row["least"] >= LEAST]
    far = [n for n in room if rows[n]["far@512"] >= 0.2]
    if not room:
        return min(rows, key=lambda n: abs(rows[n]["pass@1"] - 0.02))
    return max(far or room, key=lambda n: rows[n]["pass@1"])


def choose_cell(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The protocol's rule: of the cells (base, pool, rate, steps) that lose pass@64, the fewest steps within 5% of the largest
    rise, which is pass@1 over the base's; where none loses it, of all."""
    fit = [row for row in rows if row["lost"].high < 0] or rows
    best = max(row["rise"] for row in fit)
    return min((row for row in fit if row["rise"] >= 0.95 * best), key=lambda row: (row["steps"], -row["rise"]))


def strata(right: np.ndarray) -> np.ndarray:
    """(N,) 0 to 4, from the right answers of a base's first seed."""
    return np.searchsorted(EDGES, right)


def passes(found: Measured, run: int, ks: Sequence[int], name: str) -> dict[str, float]:
    right, total = found.right[run].sum(-1).numpy(), found.n * len(found.seeds)
    totals = np.full(len(right), total)
    return {f"{name}@{k}": round(float(pass_at_k(totals, right, min(k, total)).mean()), 4) for k in ks}


def lost(base: Measured, cell: Measured, run: int, k: int) -> Interval:
    """pass@k of a cell minus that of the base's second seed, where its first is right 9 to 25 times of 256; over problems alone.
    Over all problems where there are not two such."""
    own = strata(base.right[0, :, 0].numpy()) == 3
    own |= own.sum() < 2
    after, before = cell.right[run].sum(-1).numpy()[own], base.right[0, :, 1].numpy()[own]
    total = cell.n * len(cell.seeds)
    difference = pass_at_k(np.full(own.sum(), total), after, k) - pass_at_k(np.full(own.sum(), base.n), before, k)
    return crossed([difference[None]]).interval()


def shown_rows(out: Path, asked: dict[str, Any]) -> list[dict[str, str]]:
    """Demonstrations, kept in OUT: they take minutes of the processor, so they are made before there is a GPU (--prepare)."""
    kept = out / f"demonstrations-{asked['guesses']}.json.gz"
    if not kept.is_file():
        out.mkdir(parents=True, exist_ok=True)
        made = {"asked": asked, "rows": [(row["prompt"], row["completion"]) for row in demonstration_rows(**asked)]}
        kept.write_bytes(gzip.compress(json.dumps(made).encode()))
    found = json.loads(gzip.decompress(kept.read_bytes()))
    if found["asked"] != asked:
        raise SystemExit(f"{kept} holds other demonstrations than {asked}: delete it.")
    return [{"prompt": prompt, "completion": answer} for prompt, answer in found["rows"]]


class Part:
    """What each process of the gate has: the model, the test problems. Its methods are the processes' work."""

    def __init__(self, hard: dict[str, Any], out: Path, quick: bool):
        self.hard, self.out, self.quick, self.began = hard, out, quick, time.monotonic()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")  # TF32
        self.model, self.tokenizer = self.load(out / "scratch")
        self.tests = {}
        for task in (HARD, HARD_FAR):
            world = World(task, self.tokenizer, self.device)
            self.tests[task] = world, world.problems(load_task(task, limit=8 if quick else 500, split="test"))
        self.n = 4 if quick else 256
        self.dtype = torch.bfloat16 if hard["train"]["bf16"] else torch.float32

    def load(self, folder: Path) -> tuple[Any, Any]:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)

    def measured(self, stack: Stack, task: str, n: int, seeds: int) -> Measured:
        world, problems = self.tests[task]
        return measure(stack, world, problems, n, range(seeds), self.hard["evaluate"]["max_tokens"])

    def teach(self, steps: int) -> dict[str, tuple[dict[str, float], Measured]]:
        """A base of each kind, side by side; their names, what was measured, and the counts."""
        asked, sft = self.hard["base"]["demonstrations"], self.hard["base"]["sft"]
        shown = [shown_rows(self.out, asked | {"guesses": share}) for share in GUESSES.values()]
        stack = Stack.of(self.model, len(shown), self.device, self.dtype)
        world, batch = self.tests[HARD][0], 32 if self.quick else sft["per_device_train_batch_size"]

        def at(step: int, losses: torch.Tensor) -> None:
            if step % 1000 == 0:
                print(f"{time.monotonic() - self.began:6.0f} s  SFT {step} of {steps}: {losses.tolist()}", flush=True)

        teach(stack, world, shown, steps, batch, float(sft["learning_rate"]), at=at)
        here, far = (self.measured(stack, task, self.n, 2) for task in (HARD, HARD_FAR))
        taught = {}
        for r, kind in enumerate(GUESSES):
            name, model = f"{kind}-{steps}", self.load(self.out / "scratch")[0]
            stack.put(r, model)
            model.save_pretrained(self.out / name / "model")
            self.tokenizer.save_pretrained(self.out / name / "model")
            least = int(np.bincount(strata(here.right[r, :, 0].numpy()), minlength=5)[:4].min())
            row = passes(here, r, (1, 16, 64, 256, 512), "pass") | passes(far, r, (1, 512), "far")
            own = replace(here, right=here.right[r : r + 1], tokens=here.tokens[r : r + 1], cut=here.cut[r : r + 1])
            taught[name] = row | {"least": least}, own
            print(name, json.dumps(taught[name][0]), flush=True)
        return taught

    def cells(self, base: str, pool: str, known: Measured) -> list[dict[str, Any]]:
        """GRPO without KL from one base on one pool, a run per rate, measured on the way."""
        start, _ = self.load(self.out / base / "model")
        world = self.tests[HARD][0]
        problems = world.problems(load_task(HARD, limit=40 if self.quick else POOLS[pool], split="train"))
        on_the_way = (1, 2) if self.quick else ON_THE_WAY
        own = {key: value for key, value in self.hard["train"].items() if key not in BESIDE}
        own |= {"output_dir": "", "use_cpu": True, "beta": 0.0, "max_steps": on_the_way[-1]}
        own |= {"per_device_train_batch_size": 8, "num_generations": 4} if self.quick else {}
        runs = [Run(f"{rate:g}", SAGEConfig(**own | {"learning_rate": rate})) for rate in RATES]
        stack, rows = Stack.of(start, len(runs), self.device, self.dtype), []
        one = float(known.right.float().mean()) / known.n

        def at(step: int) -> None:
            if step not in on_the_way:
                return
            here = self.measured(stack, HARD, self.n, 1)
            for r, rate in enumerate(RATES):
                row: dict[str, Any] = {"base": base, "pool": pool, "rate": rate, "steps": step}
                row |= passes(here, r, (1, 16, 64, 256), "pass")
                entries = runs[r].log[-50:]
                row |= {
                    name: float(sum(e[name] for e in entries) / len(entries))
                    for name in ("reward", "entropy", "seconds")
                }
                row |= {"rise": row["pass@1"] / max(one, 1e-9)}
                row |= {"lost": lost(known, here, r, 64 if not self.quick else 2)}
                rows.append(row)
                print(f"{time.monotonic() - self.began:6.0f} s", json.dumps(row), flush=True)

        train(runs, stack, Stack.of(start, 1, self.device, self.dtype), world, problems, at)
        return rows


def work(verb: str, hard: dict[str, Any], out: Path, quick: bool, *args: Any) -> Any:
    return getattr(Part(hard, out, quick), verb)(*args)


def gate(hard: dict[str, Any], out: Path, to: Path, quick: bool) -> None:
    began, found, known = time.monotonic(), {"machine": made_with(), "bases": {}, "cells": []}, {}
    scratch_model(out / "scratch", **hard["base"]["scratch"])

    def keep() -> None:
        found["seconds"] = round(time.monotonic() - began)
        to.write_text(json.dumps(found, indent=1) + "\n")

    with ProcessPoolExecutor(1 if quick else 6, mp_context=get_context("spawn")) as pool:
        parts = [pool.submit(work, "teach", hard, out, quick, steps) for steps in ((4,) if quick else LENGTHS)]
        for part in as_completed(parts):
            for name, (row, counts) in part.result().items():
                found["bases"][name], known[name] = row, counts
            keep()
        kinds = [{name: row for name, row in found["bases"].items() if name.startswith(kind)} for kind in GUESSES]
        bases = list(map(choose_base, kinds))
        asked = [("cells", hard, out, quick, base, pool, known[base]) for base, pool in product(bases, POOLS)]
        for part in as_completed([pool.submit(work, *own) for own in asked]):
            found["cells"] += part.result()
            keep()
    cell = choose_cell(found["cells"])
    found["cell"] = {key: cell[key] for key in ("base", "pool", "rate", "steps")}
    write_study(hard, cell, out)
    keep()
    print("chosen:", json.dumps(found["cell"]), flush=True)


def write_study(hard: dict[str, Any], cell: dict[str, Any], out: Path) -> None:
    """The study with what was chosen, and its folder, in which its base is already."""
    hard["train"] |= {"learning_rate": cell["rate"], "rows": POOLS[cell["pool"]], "max_steps": cell["steps"]}
    hard["variants"]["low_rate"]["learning_rate"] = round(cell["rate"] / 3, 8)
    kind, _, length = cell["base"].rpartition("-")
    hard["base"]["demonstrations"]["guesses"] = GUESSES[kind]
    hard["base"]["sft"]["max_steps"] = int(length)
    (out / "hard.yaml").write_text(yaml.safe_dump(hard, sort_keys=False, allow_unicode=True))
    study = (out / "study" / "base").resolve()
    shutil.copytree(out / cell["base"] / "model", study / "model", dirs_exist_ok=True)
    (study / START).write_text(json.dumps({"model": str(study / "model")}) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/hard_gate", help="folder of the bases and of the chosen study")
    parser.add_argument("--to", default="results/gpu/hard_gate2.json", help="JSON file of what was measured and chosen")
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="only make the demonstrations and new weights, and keep them in OUT: no GPU",
    )
    parser.add_argument("--quick", action="store_true", help="few steps and samples, on a CPU: a smoke test")
    args = parser.parse_args()
    hard = yaml.safe_load(files("sage_rlvr").joinpath("studies", "hard.yaml").read_text(encoding="utf-8"))
    if args.quick:
        hard["base"]["demonstrations"] |= {"problems": 64, "after": 0}
    if args.prepare:
        for share in GUESSES.values():
            shown_rows(Path(args.out), hard["base"]["demonstrations"] | {"guesses": share})
        scratch_model(Path(args.out, "scratch"), **hard["base"]["scratch"])
        return 0
    gate(hard, Path(args.out), Path(args.to), args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
