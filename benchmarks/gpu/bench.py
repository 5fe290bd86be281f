"""What this machine takes for each piece of a training step, peers beside ours in the same run; a GPU is not needed.

    python benchmarks/gpu/bench.py --out bench.json

Medians; contestants take turns, so that a machine that slows down slows down for all. Sizes fit the machine: small on a CPU,
a model's real ones on CUDA. The numbers are this machine's and this run's.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from replay import QWEN_1_5B, SMALL, Replay, Rollouts, Shape, draw_rollouts
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sage_rlvr.anchor import Signals, anchor_penalty, make_guide
from sage_rlvr.head import logps_and_entropies
from sage_rlvr.provenance import made_with

Step = Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    batch: tuple[int, int]  # of the guides: rows × tokens
    head: tuple[int, int, int]  # tokens, hidden, vocabulary
    golds: int  # of the verifier, 16 completions each
    shape: Shape  # of the trainer's model
    rows: int
    longest: int
    budget: int
    times: int  # of a step that takes milliseconds
    turns: int  # of a trainer's


CUDA = Sizes((64, 1024), (16_384, 1536, 151_936), 64, QWEN_1_5B, 64, 1024, 16_384, 20, 5)
CPU = Sizes((64, 1024), (512, 256, 8192), 32, SMALL, 32, 96, 512, 7, 3)
QUICK = Sizes((8, 128), (32, 32, 512), 2, Shape(300, 16, 32, 1, 2, 2), 16, 32, 128, 3, 1)


@dataclass(frozen=True)
class Row:
    part: str
    what: str
    value: float
    unit: str
    note: str = ""


def run_bench(out: str | None = None, quick: bool = False) -> None:
    """Prints the table; ``out`` gets it as JSON, with machine and versions. ``quick``: small sizes, to see that it runs."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = QUICK if quick else CUDA if device == "cuda" else CPU
    parts = {
        "guides": guides,
        "head": heads,
        "verifier": verifier,
        "guide in a step": guide_in_step,
        "packing": packing,
    }
    rows: list[Row] = []
    console = Console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's about rollout_func: the replay's own affair
        for number, (name, part) in enumerate(parts.items(), start=1):
            task = progress.add_task(f"{name} ({number} of {len(parts)})")
            rows += part(sizes, device)
            progress.remove_task(task)
    _print(rows, console)
    if out is not None:
        _write(Path(out), rows, sizes, quick)


# ---- the clock -----------------------------------------------------------------------------------------------------


def in_turns(steps: dict[str, Step], times: int, device: str) -> dict[str, float]:
    """Median seconds of each, one after the other, ``times`` rounds after one that does not count."""
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(times + 1):
        for name, step in steps.items():
            before = _now(device)
            step()
            if turn:
                spent[name].append(_now(device) - before)
    return {name: statistics.median(found) for name, found in spent.items()}


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# ---- the parts -----------------------------------------------------------------------------------------------------


def guides(sizes: Sizes, device: str) -> list[Row]:
    """log q and the penalty with its backward, a token; "none" is the penalty toward the plain reference."""
    rows, columns = sizes.batch
    draw = torch.Generator().manual_seed(0)
    ref, logps, entropies = (torch.rand(rows, columns, generator=draw).to(device) * 3 for _ in range(3))
    mask = torch.ones(rows, columns, device=device)

    def step(name: str) -> Step:
        guide = make_guide(name) if name != "none" else None
        signals = Signals(-logps, -ref, mask, entropies=entropies, generator=torch.Generator().manual_seed(0))

        def run() -> None:
            log_q = guide(signals) if guide is not None else torch.zeros_like(ref)
            leaf = (-logps).requires_grad_()
            anchor_penalty(leaf, -ref, log_q, "k3").sum().backward()

        return run

    found = in_turns(
        {name: step(name) for name in ("none", "random", "token", "branch", "tempered")}, sizes.times, device
    )
    note = f"guide + k3 + backward, {rows} × {columns} tokens"
    return [Row("guide", name, 1e9 * s / rows / columns, "ns a token", note) for name, s in found.items()]


def heads(sizes: Sizes, device: str) -> list[Row]:
    """Log-probs and entropies from hidden states, forward and backward, output layer frozen."""
    from trl.kernels import ChunkedLogProbFunction
    from trl.trainer.utils import selective_log_softmax_and_entropy

    n, width, vocab = sizes.head
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    draw = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(n, width, generator=draw, device=device).to(dtype)
    weight = (torch.randn(vocab, width, generator=draw, device=device) * 0.05).to(dtype)
    targets = torch.randint(vocab, (n,), generator=draw, device=device)
    wanted = ("log_probs", "entropy")
    contestants: dict[str, Callable[[Any], Any]] = {
        "ours": lambda h: logps_and_entropies(h, weight, targets)[0],
        "TRL's fused head": lambda h: ChunkedLogProbFunction.apply(h, weight, None, targets, 1.0, 32_768, None, 1.0, wanted)[0],
        "full logits": lambda h: selective_log_softmax_and_entropy(h @ weight.t(), targets, entropy_requires_grad=False)[0],
    }  # fmt: skip

    def step(run: Callable[[Any], Any]) -> Step:
        return lambda: run(hidden.detach().requires_grad_()).sum().backward()

    steps = {name: step(run) for name, run in contestants.items()}
    note = f"forward + backward, {n} tokens, hidden {width}, vocabulary {vocab}, {str(dtype).split('.')[1]}"
    return [Row("head", name, 1e3 * s, "ms", note) for name, s in in_turns(steps, sizes.times, device).items()]


def verifier(sizes: Sizes, device: str) -> list[Row]:
    """Completions judged a second, none of them seen before; 16 to a gold, half of them right."""
    from sage_rlvr.verify import Verifier

    def batch(first: int) -> tuple[list[str], list[str]]:
        golds = [g for g in range(first, first + sizes.golds) for _ in range(16)]
        answers = [f"\\frac{{{2 * g + (i % 2)}}}{{{2 * g + 7}}}" for i, g in enumerate(golds)]
        return [f"Some steps, and so $\\boxed{{{a}}}$." for a in answers], [f"{2 * g}/{2 * g + 7}" for g in golds]

    with Verifier() as pool:
        pool.score(*batch(10_000))  # starts the processes
        before = time.perf_counter()
        for number in range(3):
            pool.score(*batch(number * sizes.golds + 1))
        took = time.perf_counter() - before
        workers = pool.workers
    return [Row("verifier", f"{workers} workers", 3 * 16 * sizes.golds / took, "completions/s", "none judged before")]


def guide_in_step(sizes: Sizes, device: str) -> list[Row]:
    """A whole step without generation: reference pass, update; the guide on and off, in turns."""
    from sage_rlvr.train import SAGEConfig, SAGETrainer

    rollouts = draw_rollouts(sizes.rows, sizes.longest, sizes.shape.vocab)
    shared = _step_options(device) | {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": sizes.rows // 8,
    }
    both = {
        name: Replay(SAGETrainer, SAGEConfig, sizes.shape, rollouts, device, guide=name, **shared)
        for name in ("none", "branch")
    }
    found = _replays(both, sizes)
    off, on = found["none"], found["branch"]
    note = f"{off['forward_passes']:.0f} and {on['forward_passes']:.0f} forward passes, {_described(rollouts)}"
    return [
        Row("step", "guide off", off["ms"], "ms", note),
        Row("step", "branch, k3", on["ms"], "ms", note),
        Row("step", "branch ÷ off (1: free)", on["ms"] / off["ms"], "×"),
    ]


def packing(sizes: Sizes, device: str) -> list[Row]:
    """The same step as TRL's trainer cuts it (8 rows, padded alike) and cut by tokens_per_microbatch, with our head on CUDA."""
    from trl import GRPOConfig, GRPOTrainer

    from sage_rlvr.train import SAGEConfig, SAGETrainer

    rollouts = draw_rollouts(sizes.rows, sizes.longest, sizes.shape.vocab)
    shared = _step_options(device)
    theirs: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": sizes.rows // 8}
    ours: dict[str, Any] = {"per_device_train_batch_size": sizes.rows, "gradient_accumulation_steps": 1, "guide": "branch",
            "tokens_per_microbatch": sizes.budget, "fused_head": device == "cuda"}  # fmt: skip
    both = {
        "TRL's": Replay(GRPOTrainer, GRPOConfig, sizes.shape, rollouts, device, **shared, **theirs),
        "packed": Replay(SAGETrainer, SAGEConfig, sizes.shape, rollouts, device, **shared, **ours),
    }
    found = _replays(both, sizes)
    made: list[Row] = []
    for name, label in (
        ("TRL's", "TRL's trainer, 8 rows at once"),
        ("packed", f"ours, {sizes.budget} tokens at once"),
    ):
        row = found[name]
        ran = f"{label}: {row['padded_tokens']:,.0f} tokens run"
        made.append(Row("packing", ran, row["ms"], "ms", _described(rollouts)))
        if "peak_gib" in row:
            made.append(Row("packing", f"{label}: peak", row["peak_gib"], "GiB"))
    made.append(
        Row("packing", "TRL's ÷ ours (above 1: ours is faster)", found["TRL's"]["ms"] / found["packed"]["ms"], "×")
    )
    return made


def _step_options(device: str) -> dict[str, Any]:
    return {"gradient_checkpointing": device == "cuda"}


def _described(rollouts: Rollouts) -> str:
    return f"{len(rollouts.prompts)} rollouts of {rollouts.tokens:,} tokens, {rollouts.padded:,} if padded"


def _replays(both: dict[str, Replay], sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Two updates a turn after one that does not count, in turns; the median over all."""
    spent: dict[str, list[float]] = {name: [] for name in both}
    last: dict[str, dict[str, Any]] = {}
    for _ in range(sizes.turns):
        for name, replay in both.items():
            last[name] = replay.run(2)
            spent[name] += last[name]["spent_ms"]
    return {name: last[name] | {"ms": statistics.median(spent[name])} for name in both}


# ---- what is shown -------------------------------------------------------------------------------------------------


def _print(rows: list[Row], console: Console) -> None:
    part = ""
    for row in rows:
        if row.part != part:
            part = row.part
            console.print(f"[bold]{part}[/] [dim]{row.note}[/]")
        value = f"{row.value:,.3g}" if row.value < 1000 else f"{row.value:,.0f}"
        console.print(f"  {row.what:<52s}{value:>9s} {row.unit}", highlight=False)
    made = made_with()
    console.print(
        f"[dim]{made['machine']}; torch {made['libraries'].get('torch')}, trl {made['libraries'].get('trl')}[/]"
    )


def _write(path: Path, rows: list[Row], sizes: Sizes, quick: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"made_with": made_with(), "quick": quick, "sizes": asdict(sizes), "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False))
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="also write the table as JSON, with machine and versions")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, seconds: to see that it runs, not to measure"
    )
    run_bench(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
