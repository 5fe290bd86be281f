"""The log-prob + entropy head beside its floor and its peers, in one run on one GPU.

    python benchmarks/gpu/head.py --out results/gpu/head.json            # all of it
    python benchmarks/gpu/head.py --sweep --out sweep.json               # tile and block sizes of ours
    python benchmarks/gpu/head.py --tiny --out head_tiny.json            # a smoke test: small, on the CPU

Timed: log-prob and entropy forward, SAGE's shaped loss (branch guide, k3), backward to the hidden states. CUDA events, median.
The floor is two bf16 matrix passes of the same sizes, the best of several splits, timed in the same run. A peer that cannot be
imported or that fails is in the JSON with its reason. Errors are against float64 autograd on the same inputs.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.anchor import BranchGuide, Signals, anchor_penalty
from sage_rlvr.head import functions, logps_and_entropies, tiles
from sage_rlvr.provenance import machine

BETA = 0.05
GIB = 2**30


@dataclass
class Sizes:
    batch: int
    length: int
    vocab: int
    widths: tuple[int, ...]
    long: tuple[int, ...]  # tokens, for linearity
    odd: tuple[tuple[int, int, int], ...]  # (N, D, V)
    warm: int
    times: int


FULL = Sizes(8, 2048, 151_936, (3584, 1536), (8192, 32_768, 131_072),
             ((1, 3584, 151_936), (4097, 1536, 151_936), (2048, 1536, 50_257), (2048, 1536, 262_144)), 5, 25)  # fmt: skip
TINY = Sizes(2, 8, 300, (16, 8), (16, 32), ((1, 16, 300), (17, 8, 257)), 1, 3)


@dataclass
class Inputs:
    hidden: Tensor  # (N, D) bf16
    weight: Tensor  # (V, D) bf16
    targets: Tensor  # (N,)
    advantages: Tensor  # (N,)
    ref: Tensor  # (N,) reference log-probs
    batch: int


def draw(n: int, width: int, vocab: int, device: str, batch: int = 1, seed: int = 0) -> Inputs:
    """Hidden states that lean toward their target by 0 to 20 nats: distributions from flat to certain."""
    g = torch.Generator(device).manual_seed(seed)
    weight = (torch.randn(vocab, width, generator=g, device=device) * 0.03).bfloat16()
    targets = torch.randint(vocab, (n,), generator=g, device=device)
    chosen = weight[targets].float()
    lean = 20 * torch.rand(n, 1, generator=g, device=device) / chosen.norm(dim=1, keepdim=True).square()
    hidden = (torch.randn(n, width, generator=g, device=device) + lean * chosen).bfloat16()
    advantages = torch.randn(batch, generator=g, device=device).repeat_interleave(-(-n // batch))[:n]
    return Inputs(hidden, weight, targets, advantages, -5 * torch.rand(n, generator=g, device=device), batch)


def shaped_loss(logps: Tensor, entropies: Tensor, x: Inputs) -> Tensor:
    """GRPO's token loss with SAGE's anchor: what follows the head in an update."""
    rows = [t.view(1, -1) for t in (logps, x.ref, torch.ones_like(logps), entropies)]
    signals = Signals(rows[0].detach(), rows[1], rows[2], entropies=rows[3].detach())
    penalty = anchor_penalty(rows[0], rows[1], BranchGuide()(signals), "k3")
    ratio = (logps - logps.detach()).exp()
    return (BETA * penalty[0] - ratio * x.advantages).mean()


# ---- the contestants: (hidden, weight, targets) → (logps, entropies) -----------------------------------------------------

Run = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Any]:
    return logps_and_entropies(hidden, weight, targets)


def full_logits_in_torch() -> Run:
    """As TRL did until 1.14, and the authors: log-probs sequence by sequence, entropies 128 rows at a time, in torch."""

    def run(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = hidden @ weight.t()
        sequences = zip(logits.split(2048), targets.split(2048))
        logps = torch.cat([x.log_softmax(-1).gather(1, y[:, None])[:, 0] for x, y in sequences])
        with torch.no_grad():
            parts = (x.log_softmax(-1) for x in logits.split(128))
            return logps, torch.cat([-(p.exp() * p).sum(-1) for p in parts])

    return run


def full_logits() -> Run:
    from trl.trainer.utils import selective_log_softmax_and_entropy

    def run(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return selective_log_softmax_and_entropy(hidden @ weight.t(), targets, entropy_requires_grad=False)

    return run


def trl_fused() -> Run:
    from trl.kernels import ChunkedLogProbFunction

    def run(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        wanted = ("log_probs", "entropy")
        return ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, 32_768, None, 1.0, wanted)[:2]

    return run


def verl_fused() -> Run:
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    return lambda hidden, weight, targets: linear_cross_entropy(hidden, weight, targets, 1.0, "none")


PEERS: dict[str, Callable[[], Run]] = {
    "full logits, TRL ≤ 1.14": full_logits_in_torch, "full logits, TRL 1.16": full_logits, "TRL fused head": trl_fused,
    "verl fused kernel": verl_fused, "ours": lambda: ours,
}  # fmt: skip


def liger_step(x: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
    """Liger computes the whole loss, without entropies and so without a guide."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(beta=BETA, use_ref_model=True, loss_type="bnpo")
    shape = (x.batch, -1)

    def run(hidden: Tensor, weight: Tensor) -> Tensor:
        ids, ref = x.targets.view(shape), x.ref.view(shape)
        mask, advantages = torch.ones_like(ids), x.advantages.view(shape)[:, 0]
        return loss(hidden.view(*ids.shape, -1), weight, ids, mask, advantages, ref_per_token_logps=ref)[0]

    return run


# ---- clock and scales ----------------------------------------------------------------------------------------------------


def timed(step: Callable[[], Any], device: str, sizes: Sizes) -> dict[str, Any]:
    """Median and quartiles in ms, and the memory a step needs beyond what was there, in GiB."""
    for _ in range(sizes.warm):
        step()
    if device == "cpu":
        spent = []
        for _ in range(sizes.times):
            before = time.perf_counter()
            step()
            spent.append(1e3 * (time.perf_counter() - before))
        extra = None
    else:
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        extra = (torch.cuda.max_memory_allocated() - held) / GIB
        marks = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(sizes.times)
        ]
        for before, after in marks:
            before.record()
            step()
            after.record()
        torch.cuda.synchronize()
        spent = [before.elapsed_time(after) for before, after in marks]
    low, middle, high = statistics.quantiles(spent, n=4)
    return {"ms": middle, "ms_q25": low, "ms_q75": high, "extra_gib": extra}


def update(run: Run, x: Inputs, trainable: bool = False) -> Callable[[], None]:
    """One forward, loss and backward; gradients are dropped, so that each step allocates them."""

    def step() -> None:
        hidden, weight = x.hidden.detach().requires_grad_(), x.weight.detach().requires_grad_(trainable)
        logps, entropies = run(hidden, weight, x.targets)
        shaped_loss(logps, entropies, x).backward()

    return step


def floor(x: Inputs, device: str, sizes: Sizes) -> dict[str, Any]:
    """hidden @ Wᵀ and p @ W in bf16, in the split of the tokens that is fastest."""
    n, vocab = len(x.hidden), len(x.weight)
    found: dict[str, Any] = {}
    for tokens in sorted({min(n, t) for t in (2048, 4096, 8192, 16_384)}):
        plane = torch.empty(tokens, vocab, device=device, dtype=torch.bfloat16)
        out = torch.empty_like(x.hidden)

        def step(tokens: int = tokens, plane: Tensor = plane, out: Tensor = out) -> None:
            for a in range(0, n, tokens):
                part = plane[: min(tokens, n - a)]
                torch.mm(x.hidden[a : a + tokens], x.weight.t(), out=part)
                torch.mm(part, x.weight, out=out[a : a + tokens])

        found[str(tokens)] = timed(step, device, sizes)["ms"]
        del plane, out
    flops = 4 * n * vocab * x.hidden.shape[1]
    best = min(found.values())
    return {"ms": best, "by_tokens": found, "flops": flops, "tflops": flops / best / 1e9}


def exact(x: Inputs, pull: Tensor, rows: int = 512) -> tuple[Tensor, Tensor, Tensor]:
    """float64: log-probs, entropies, and the gradient of Σ pull·logp in the hidden states."""
    weight = x.weight.double()
    parts = []
    for a in range(0, len(x.hidden), rows):
        hidden = x.hidden[a : a + rows].double().requires_grad_()
        logp = (hidden @ weight.t()).log_softmax(-1)
        logps = logp.gather(1, x.targets[a : a + rows, None])[:, 0]
        entropies = -(logp.detach().exp() * logp.detach()).sum(1)
        (gradient,) = torch.autograd.grad((logps * pull[a : a + rows].double()).sum(), hidden)
        parts.append((logps.detach(), entropies, gradient))
    logps, entropies, gradient = (torch.cat(column) for column in zip(*parts))
    return logps, entropies, gradient


def errors(run: Run, x: Inputs, truth: tuple[Tensor, Tensor, Tensor], pull: Tensor) -> dict[str, float]:
    hidden = x.hidden.detach().requires_grad_()
    logps, entropies = run(hidden, x.weight, x.targets)
    (logps * pull).sum().backward()
    off = (hidden.grad.double() - truth[2]).norm() / truth[2].norm()  # type: ignore[union-attr]
    worst = [float((a.detach().double() - b).abs().max()) for a, b in zip((logps, entropies), truth)]
    return {"logps": worst[0], "entropies": worst[1], "gradient": float(off)}


def tried(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A contestant that is not there, or that fails, says so in its row."""
    try:
        return work()
    except Exception as error:
        return {"not_run": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# ---- the parts of the run ------------------------------------------------------------------------------------------------


def head_table(device: str, sizes: Sizes) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for width in sizes.widths:
        x = draw(sizes.batch * sizes.length, width, sizes.vocab, device, sizes.batch)
        rows: dict[str, Any] = {"floor": floor(x, device, sizes)}
        pull = torch.randn(len(x.hidden), device=device)
        truth = exact(x, pull)
        for name, make in PEERS.items():
            rows[name] = tried(lambda make=make, x=x: timed(update(make(), x), device, sizes))
            if "ms" in rows[name]:
                rows[name]["times_floor"] = rows[name]["ms"] / rows["floor"]["ms"]
                rows[name]["error"] = tried(lambda make=make, x=x, t=truth, p=pull: errors(make(), x, t, p))
        rows["Liger GRPO loss (no entropy)"] = tried(lambda x=x: timed(liger_update(x), device, sizes))
        rows["ours, no gradient"] = timed(lambda x=x: _quietly(x), device, sizes)
        rows["tiles of ours"] = vars(tiles.frozen_tiles(len(x.hidden), sizes.vocab, width, 2, _units(device)))
        rows["functions of ours"] = functions.tile_functions(torch.device(device), torch.bfloat16).__name__
        table[str(width)] = rows
    return table


def _units(device: str) -> int:
    return tiles.multiprocessors(torch.device(device))


def _quietly(x: Inputs) -> None:
    with torch.no_grad():
        ours(x.hidden, x.weight, x.targets)


def liger_update(x: Inputs) -> Callable[[], None]:
    loss = liger_step(x)

    def step() -> None:
        loss(x.hidden.detach().requires_grad_(), x.weight).backward()

    return step


def trainable_table(device: str, sizes: Sizes) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for width in sizes.widths:
        x = draw(sizes.batch * sizes.length, width, sizes.vocab, device, sizes.batch, seed=1)
        few = draw(sizes.length, width, sizes.vocab, device, seed=3)
        pull = torch.randn(sizes.length, device=device)
        truth = exact_weight_gradient(few, pull)
        table[str(width)] = rows = {}
        for name, make in PEERS.items():
            rows[name] = tried(lambda make=make, x=x: timed(update(make(), x, True), device, sizes))
            if "ms" in rows[name]:
                found = tried(lambda make=make, x=few, p=pull, t=truth: weight_error(make(), x, p, t))
                rows[name]["weight_gradient_error"] = found.get("off", found)
    return table


def exact_weight_gradient(x: Inputs, pull: Tensor, rows: int = 256) -> Tensor:
    """float64, of Σ pull·logp: Σ_t pull_t·(1[v = y_t] − p_tv)·h_t."""
    weight, total = x.weight.double(), torch.zeros(x.weight.shape, device=x.weight.device, dtype=torch.float64)
    for a in range(0, len(x.hidden), rows):
        hidden, y = x.hidden[a : a + rows].double(), x.targets[a : a + rows]
        share = -(hidden @ weight.t()).softmax(-1)
        share[torch.arange(len(y), device=y.device), y] += 1
        total += (share * pull[a : a + rows, None].double()).t() @ hidden
    return total


def weight_error(run: Run, x: Inputs, pull: Tensor, truth: Tensor) -> dict[str, float]:
    weight = x.weight.detach().clone().requires_grad_()
    logps, _ = run(x.hidden.detach().requires_grad_(), weight, x.targets)
    (logps * pull).sum().backward()
    return {"off": float((weight.grad.double() - truth).norm() / truth.norm())}  # type: ignore[union-attr]


def linearity(device: str, sizes: Sizes) -> dict[str, Any]:
    """One call of so many tokens, and the same tokens as micro-batches of 8 × 2,048: time per token, and extra memory."""
    width, piece = sizes.widths[-1], sizes.batch * sizes.length
    fewer = Sizes(**{**vars(sizes), "times": max(3, sizes.times // 4)})
    table: dict[str, Any] = {}
    for n in sizes.long:
        x = draw(n, width, sizes.vocab, device, seed=2)

        def pieces(x: Inputs = x, n: int = n) -> None:
            for a in range(0, n, piece):
                part = (x.hidden, x.targets, x.advantages, x.ref)
                hidden, targets, advantages, ref = (t[a : a + piece] for t in part)
                update(ours, Inputs(hidden, x.weight, targets, advantages, ref, 1))()

        one, many = timed(update(ours, x), device, fewer), timed(pieces, device, fewer)
        saved = n * width * 4 / GIB
        table[str(n)] = {"one call": {**one, "us_per_token": 1e3 * one["ms"] / n, "saved_gib": saved},
                         "micro-batches": {**many, "us_per_token": 1e3 * many["ms"] / n}}  # fmt: skip
    return table


def odd_sizes(device: str, sizes: Sizes) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for n, width, vocab in sizes.odd:
        x = draw(n, width, vocab, device, seed=n + vocab)
        pull = torch.randn(n, device=device)
        truth = exact(x, pull)
        table[f"N={n} D={width} V={vocab}"] = {
            name: tried(lambda make=make, x=x, t=truth, p=pull: errors(make(), x, t, p))
            for name, make in (("ours", PEERS["ours"]), ("TRL fused head", trl_fused))
        }
    hidden = x.hidden.detach().requires_grad_()
    logps, _ = logps_and_entropies(
        hidden, x.weight, torch.full_like(x.targets, -100), mask_N=torch.zeros_like(x.targets)
    )
    logps.sum().backward()
    table["all masked"] = {"ours": {"all zero": bool((logps == 0).all() and (hidden.grad == 0).all())}}  # type: ignore[union-attr]
    return table


def sweep(device: str, sizes: Sizes) -> dict[str, Any]:
    """Ours over tile shapes (rows × columns of the logits plane), then over the softmax kernel's block and warps."""
    table: dict[str, Any] = {}
    shapes = [(t, v) for t in (1152, 2048, 2304, 2816, 3584, 4096, 4608) for v in (4096, 8192, 16_384, 32_768)]
    for width in sizes.widths:
        x = draw(sizes.batch * sizes.length, width, sizes.vocab, device, sizes.batch)
        rows = {"default": timed(update(ours, x), device, sizes)}
        for shape in shapes if device == "cuda" else [(8, 128)]:
            run = lambda h, w, t, shape=shape: logps_and_entropies(h, w, t, chunk=shape)  # noqa: E731
            rows[f"tile {shape}"] = tried(lambda run=run, x=x: timed(update(run, x), device, sizes))
            rows[f"tile {shape}"]["kernels_ms"] = sum(k["ms"] for k in kernels_of(update(run, x), device))
        if device == "cuda":
            from sage_rlvr.head import kernels

            kept = kernels.FOLD_BLOCK, kernels.FOLD_WARPS
            for block, warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16)):
                kernels.FOLD_BLOCK, kernels.FOLD_WARPS = block, warps
                rows[f"fold {block}/{warps}"] = tried(lambda x=x: timed(update(ours, x), device, sizes))
            kernels.FOLD_BLOCK, kernels.FOLD_WARPS = kept
        table[str(width)] = rows
    return table


def kernels_of(step: Callable[[], None], device: str) -> list[dict[str, Any]]:
    """One step's kernels, longest first: without the gaps between them, in which the GPU waits for the next launch."""
    if device == "cpu":
        return []
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
    return [{"kernel": e.key[:90], "calls": e.count, "ms": e.self_device_time_total / 1e3} for e in rows]


def kernels_by_time(device: str, sizes: Sizes) -> dict[str, Any]:
    """Where one step of ours spends the GPU's time, at each width."""
    inputs = {w: draw(sizes.batch * sizes.length, w, sizes.vocab, device, sizes.batch) for w in sizes.widths}
    return {str(width): kernels_of(update(ours, x), device)[:12] for width, x in inputs.items()}


def versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "triton", "trl", "verl", "liger-kernel", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU: a smoke test, no measurement")
    parser.add_argument("--sweep", action="store_true", help="tile and block sizes of ours instead of the comparison")
    parser.add_argument("--parts", help="some of head,odd,trainable,linearity,profile: the others in the file are kept")
    args = parser.parse_args()
    device, sizes = ("cpu", TINY) if args.tiny else ("cuda", FULL)
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here: use --tiny for a smoke test on the CPU")
    torch.manual_seed(0)
    result: dict[str, Any] = json.loads(args.out.read_text()) if args.parts and args.out.is_file() else {}
    result |= {
        "machine": machine(),
        "versions": versions(),
        "sizes": vars(sizes),
        "measurement": not args.tiny,
    }
    if args.sweep:
        parts: dict[str, Callable[[], Any]] = {"sweep": lambda: sweep(device, sizes)}
    else:
        parts = {
            "head": lambda: head_table(device, sizes), "odd": lambda: odd_sizes(device, sizes),
            "trainable": lambda: trainable_table(device, sizes), "linearity": lambda: linearity(device, sizes),
            "profile": lambda: kernels_by_time(device, sizes),
        }  # fmt: skip
    chosen = args.parts.split(",") if args.parts else list(parts)
    if set(chosen) - set(parts):
        parser.error(f"--parts {args.parts}: write some of {','.join(parts)}")
    for name in chosen:
        result[name] = parts[name]()
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1))  # after each part: a run cut short keeps what it has
        print(name, json.dumps(result[name], indent=1), flush=True)


if __name__ == "__main__":
    main()
