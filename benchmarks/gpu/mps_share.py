"""Does a process with a share of the GPU's SMs (CUDA MPS) still compute what it should?

    python benchmarks/gpu/mps_share.py --out results/gpu/mps_share.json [--shares 30 40 50] [--beside 3]
    python benchmarks/gpu/mps_share.py --tiny --out tiny.json    # smoke test on a CPU

A process for each share (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE) makes bf16 products and attention of Qwen2.5-1.5B's shapes again
and again, counts what is not a number, and holds a sample of the rest against float64 on the CPU. --beside: so many others, with
half of the SMs each, keep the card busy meanwhile. Why: a vLLM engine and a transformers model with 40% gave nonsense, those with
50% did not (docs/reference/faq.md).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from study import start_mps
from torch import Tensor

from sage_rlvr.provenance import made_with

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
WEIGHTS = {"q": (1536, 1536), "k": (1536, 256), "up": (1536, 8960), "down": (8960, 1536), "head": (1536, 151_936)}
ROWS, HEADS, GROUPS, WIDTH = (1, 8, 64, 512, 4096), 12, 2, 128
SAMPLE = 48  # rows and columns of a product that are computed again
LOOSE = 0.03  # of the largest of them: bf16 keeps 8 bits


def products(scale: int, device: str) -> dict[str, tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    made = {}
    for name, (a, b) in WEIGHTS.items():
        w = (torch.randn(a // scale, b // scale, generator=g) / (a // scale) ** 0.5).bfloat16().to(device)
        for rows in ROWS:
            x = torch.randn(max(1, rows // scale), a // scale, generator=g).bfloat16()
            made[f"{name} {rows}"] = x.to(device), w
    return made


def gap(found: Tensor, x: Tensor, w: Tensor) -> float:
    """Largest difference to float64 over the sample, in the sample's largest value."""
    rows, columns = (torch.linspace(0, n - 1, min(n, SAMPLE)).long().to(found.device) for n in found.shape)
    want = x[rows].cpu().double() @ w[:, columns].cpu().double()
    return float((found[rows][:, columns].cpu().double() - want).abs().max() / want.abs().max())


def attention(scale: int, device: str) -> tuple[int, float]:
    """(numbers that are none, gap of one head's last rows) of a causal attention with grouped keys."""
    g, length = torch.Generator().manual_seed(1), 1024 // scale
    q, k, v = (torch.randn(4, n, length, WIDTH, generator=g).bfloat16() for n in (HEADS, GROUPS, GROUPS))
    out = torch.nn.functional.scaled_dot_product_attention(
        q.to(device), k.to(device), v.to(device), is_causal=True, enable_gqa=True
    )
    scores = q[3, 0].double() @ k[3, 0].double().T / WIDTH**0.5
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    want = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[3, 0].double()
    return int(out.isnan().sum()), float((out[3, 0].cpu().double() - want).abs().max() / want.abs().max())


def probe(seconds: float, tiny: bool) -> dict[str, Any]:
    device, scale = ("cpu", 64) if tiny else ("cuda", 1)
    made, end, rounds = products(scale, device), time.monotonic() + seconds, 0
    broken: dict[str, int] = {}
    worst: dict[str, float] = {}
    while rounds == 0 or time.monotonic() < end:
        for name, (x, w) in made.items():
            y = x @ w
            broken[name] = broken.get(name, 0) + int(y.isnan().sum())
            if rounds % 10 == 0:
                worst[name] = max(worst.get(name, 0.0), gap(y, x, w))
        lost, far = attention(scale, device)
        broken["attention"] = broken.get("attention", 0) + lost
        worst["attention"] = max(worst.get("attention", 0.0), far)
        rounds += 1
    sms = None if tiny else torch.cuda.get_device_properties(0).multi_processor_count
    wrong = sorted(name for name in worst if broken[name] or worst[name] > LOOSE)
    return {"sms": sms, "rounds": rounds, "wrong": wrong, "not_numbers": broken, "gap": worst}


def start(share: int, seconds: float, tiny: bool) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", str(seconds), *(["--tiny"] if tiny else [])]
    return subprocess.Popen(command, env=os.environ | {SHARE: str(share)}, stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument(
        "--shares", type=int, nargs="+", default=[10, 20, 30, 40, 45, 50, 60, 80, 100], metavar="PERCENT"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="for each share")
    parser.add_argument("--beside", type=int, default=0, help="other processes that keep the card busy")
    parser.add_argument("--tiny", action="store_true", help="small shapes, on the CPU: its numbers mean nothing")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(probe(args.child, args.tiny)))
        return
    if not args.tiny and not start_mps():
        parser.exit(2, "this needs CUDA's multi-process service (nvidia-cuda-mps-control).\n")
    others = [start(50, 1e9, args.tiny) for _ in range(args.beside)]
    found = {}
    try:
        for share in args.shares:
            child = start(share, args.seconds, args.tiny)
            told = child.communicate()[0]
            found[share] = json.loads(told) if child.returncode == 0 else {"failed": child.returncode}
            print(f"{share}%: {found[share].get('wrong', found[share])}", flush=True)
            if args.out:  # after each: cut short, what was found is kept
                record = {"beside": args.beside, "shares": found, **made_with()}
                args.out.write_text(json.dumps(record, indent=1) + "\n")
    finally:
        for other in others:
            other.kill()


if __name__ == "__main__":
    main()
