"""A training step without its generation, on rollouts that are given: SAGE against the guide off, ours against TRL's own.

    python benchmarks/gpu/step.py --out results/gpu/step.json                 # all parts, on one GPU
    python benchmarks/gpu/step.py --parts a,b --out results/gpu/step.json     # some: the others' results in the file are kept
    python benchmarks/gpu/step.py --tiny --out step_tiny.json                 # a smoke test: small, on the CPU

Qwen2.5-1.5B's sizes with random weights, LoRA r = 8, 64 rollouts of up to 1,024 tokens, log-normal lengths, fixed seed.
a  branch, k3 against the same trainer with the guide off, in turns. Wanted: time ≤ 1.01 ×, peak ≤ 1.01 ×, as many forward passes.
b  fused_head + tokens_per_microbatch against TRL's GRPOTrainer at each micro-batch, and at the largest two with checkpointing.
   Wanted: 1.5 × as fast as TRL's fastest, with a lower peak.
c  an update's time and peak at 8k, 32k and 128k tokens, under one budget.
A case that fails (out of memory) is in the JSON with its reason. The file is written after every case.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from replay import QWEN_1_5B, Replay, Rollouts, Shape, draw_rollouts
from trl import GRPOConfig, GRPOTrainer

from sage_rlvr.provenance import made_with
from sage_rlvr.train import SAGEConfig, SAGETrainer


@dataclass(frozen=True)
class Sizes:
    shape: Shape
    rows: int
    longest: int
    updates: int  # of part a, each way
    sweep: int  # updates of a case of part b
    micro: tuple[int, ...]  # TRL's micro-batches
    budgets: tuple[int, ...]  # ours
    budget: int  # where it is not swept
    totals: tuple[int, ...]  # tokens of an update, part c


FULL = Sizes(QWEN_1_5B, 64, 1024, 30, 3, (4, 8, 16, 32), (4096, 8192, 16_384, 32_768), 8192, (8192, 32_768, 131_072))
TINY = Sizes(Shape(300, 16, 32, 1, 2, 2), 16, 24, 3, 1, (2, 8), (100, 200), 100, (200, 400))


class Bench:
    def __init__(self, device: str, sizes: Sizes, result: dict[str, Any], save: Callable[[], None]):
        self.device, self.sizes, self.result, self.save = device, sizes, result, save
        self.rollouts = draw_rollouts(sizes.rows, sizes.longest, sizes.shape.vocab)

    def ours(self, rollouts: Rollouts | None = None, **options: Any) -> Replay:
        rollouts = rollouts or self.rollouts
        defaults = {
            "guide": "branch", "fused_head": True, "tokens_per_microbatch": self.sizes.budget, "gradient_checkpointing": False,
            "per_device_train_batch_size": len(rollouts.prompts), "gradient_accumulation_steps": 1,
        }  # fmt: skip
        return Replay(SAGETrainer, SAGEConfig, self.sizes.shape, rollouts, self.device, **(defaults | options))

    def theirs(self, micro: int, **options: Any) -> Replay:
        defaults = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": self.sizes.rows // micro}
        return Replay(GRPOTrainer, GRPOConfig, self.sizes.shape, self.rollouts, self.device, **(defaults | options))

    def case(self, part: str, name: str, make: Callable[[], Any]) -> None:
        """One result into the file; what it held on the GPU goes before the next."""
        began = time.perf_counter()
        try:
            found = make()
        except Exception as error:
            found = {"not_run": f"{type(error).__name__}: {error}"[:300]}
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        self.result.setdefault(part, {})[name] = found
        self.save()
        shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items() if not isinstance(v, dict)}
        print(f"{part} {name} ({time.perf_counter() - began:.0f} s): {shown}", flush=True)

    # ---- the parts -------------------------------------------------------------------------------------------------

    def a(self) -> None:
        self.case("a", "branch k3 against guide off", self._guide_on_and_off)

    def _guide_on_and_off(self) -> dict[str, Any]:
        """In turns of a few updates, so that a clock that drifts drifts for both."""
        both = {"off": self.ours(guide="none"), "on": self.ours(guide="branch")}
        turns, each = 3, -(-self.sizes.updates // 3)
        spent: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
        for turn in range(turns):
            for name in ("off", "on") if turn % 2 == 0 else ("on", "off"):
                spent[name].append(both[name].run(each, warm=1))
        out: dict[str, Any] = {}
        for name, found in spent.items():
            out[f"ms_{name}"] = statistics.median(x for run in found for x in run["spent_ms"])
            out[f"passes_{name}"] = found[0]["forward_passes"]
            out[f"peak_gib_{name}"] = max(run.get("peak_gib", 0.0) for run in found)
        out["updates"] = sum(run["updates"] for run in spent["on"])
        out["time_ratio"] = out["ms_on"] / out["ms_off"]
        out["memory_ratio"] = out["peak_gib_on"] / out["peak_gib_off"] if out["peak_gib_off"] else None
        return out

    def b(self) -> None:
        for checkpointing in (False, True):
            mark = ", checkpointing" if checkpointing else ""
            for micro in self.sizes.micro[-2:] if checkpointing else self.sizes.micro:
                run = lambda m=micro, c=checkpointing: self.theirs(m, gradient_checkpointing=c).run(self.sizes.sweep)  # noqa: E731
                self.case("b", f"TRL, micro-batch {micro}{mark}", run)
        for budget in self.sizes.budgets:
            run = lambda b=budget: self.ours(tokens_per_microbatch=b).run(self.sizes.sweep)  # noqa: E731
            self.case("b", f"ours, {budget} tokens", run)
        self.case("b", "verdict", self._verdict)

    def _verdict(self) -> dict[str, Any]:
        """TRL's fastest against our fastest of those that need less memory than it."""
        ran = {name: row for name, row in self.result["b"].items() if "ms" in row}
        theirs = min((n for n in ran if n.startswith("TRL")), key=lambda n: ran[n]["ms"])
        peak = lambda name: ran[name].get("peak_gib", 0.0)  # noqa: E731
        lower = [n for n in ran if n.startswith("ours") and peak(n) <= peak(theirs)]
        if not lower:
            return {"theirs": theirs, "ours": "none needs less memory"}
        ours = min(lower, key=lambda n: ran[n]["ms"])
        out = {"theirs": theirs, "ours": ours, "speedup": ran[theirs]["ms"] / ran[ours]["ms"]}
        if self.device == "cuda":
            out["memory_ratio"] = peak(ours) / peak(theirs)
        return out

    def c(self) -> None:
        longest = self.sizes.longest
        for total in self.sizes.totals:
            rows = -(-total // longest // 8) * 8
            even = Rollouts(
                [[5] * 8] * rows, [[7] * (longest - 9) + [1]] * rows
            )  # rows of ``longest`` tokens, all alike
            self.case("c", f"{total} tokens", lambda rollouts=even: self._per_token(rollouts))

    def _per_token(self, rollouts: Rollouts) -> dict[str, Any]:
        found = self.ours(rollouts).run(self.sizes.sweep, warm=2)
        return found | {"us_per_token": 1e3 * found["ms"] / rollouts.tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write, or to go on with")
    parser.add_argument("--parts", default="a,b,c", help="which of a to c (default: all)")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU: a smoke test, no measurement")
    args = parser.parse_args()
    device, sizes = ("cpu", TINY) if args.tiny else ("cuda", FULL)
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here: use --tiny for a smoke test on the CPU")
    parts = args.parts.split(",")
    if set(parts) - set("abc"):
        parser.error(f"--parts {args.parts}: write some of a,b,c")
    result: dict[str, Any] = json.loads(args.out.read_text()) if args.out.is_file() else {}
    result |= {"made_with": made_with(), "sizes": asdict(sizes), "measurement": not args.tiny}

    def save() -> None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1))

    bench = Bench(device, sizes, result, save)
    result["rollouts"] = {"real_tokens": bench.rollouts.tokens, "padded_as_one_batch": bench.rollouts.padded}
    for part in parts:
        result.pop(part, None)
        getattr(bench, part)()
    save()


if __name__ == "__main__":
    main()
