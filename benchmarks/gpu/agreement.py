"""Does the head's path on a GPU give the CPU's numbers? The same inputs through both, every option of the head.

python benchmarks/gpu/agreement.py --out results/gpu/agreement.json
python benchmarks/gpu/agreement.py --tiny --out agreement_tiny.json      # a smoke test: the CPU with itself
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from head import draw, versions

from sage_rlvr.head import logps_and_entropies
from sage_rlvr.provenance import machine

KINDS: dict[str, dict[str, Any]] = {
    "plain": {}, "temperature 0.7": {"temperature": 0.7}, "soft-cap 30, scale 0.5": {"softcap": 30.0, "logit_scale": 0.5},
    "entropy gradient": {"entropy_grad": True}, "tiles of 128 × 512": {"chunk": (128, 512)},
}  # fmt: skip


def agreement(device: str) -> dict[str, Any]:
    """Ours on this device against ours on the CPU, the same inputs: largest differences, and gradients' as relative norms."""
    table: dict[str, Any] = {}
    for dtype, (n, width, vocab) in ((torch.bfloat16, (300, 256, 4099)), (torch.float32, (2000, 128, 19))):
        x = draw(n, width, vocab, "cpu", seed=7)
        mask = torch.rand(n, generator=torch.Generator().manual_seed(1)) < 0.8
        bias, pull = 0.1 * torch.randn(vocab).to(dtype), torch.randn(2, n)
        for kind, options in KINDS.items():
            for learns in (False, True):
                found = []
                for where in ("cpu", device):
                    given = [t.to(where, dtype).detach() for t in (x.hidden, x.weight, bias)]
                    hidden, weight, b = (t.requires_grad_(learns or t is given[0]) for t in given)
                    logps, entropies = logps_and_entropies(
                        hidden, weight, x.targets.to(where), bias=b, mask_N=mask.to(where), **options
                    )
                    loss = (logps * pull[0].to(where)).sum()
                    if "entropy_grad" in options:
                        loss = loss + (entropies * pull[1].to(where)).sum()
                    loss.backward()
                    grads = [g.grad.double().cpu() for g in given if g.grad is not None]
                    found.append((logps.detach().double().cpu(), entropies.detach().double().cpu(), grads))  # type: ignore[union-attr]
                (logps, entropies, grads), (others, other_entropies, other_grads) = found
                table[f"{kind}, {'trainable' if learns else 'frozen'}, {str(dtype)[6:]}"] = {
                    "logps": float((logps - others).abs().max()),
                    "entropies": float((entropies - other_entropies).abs().max()),
                    "gradient": max(float((a - b).norm() / a.norm()) for a, b in zip(grads, other_grads, strict=True)),
                }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="the CPU with itself: a smoke test, no measurement")
    args = parser.parse_args()
    if not args.tiny and not torch.cuda.is_available():
        parser.error("no CUDA device here: use --tiny for a smoke test on the CPU")
    torch.manual_seed(0)
    found = agreement("cpu" if args.tiny else "cuda")
    made = {"machine": machine(), "versions": versions(), "measurement": not args.tiny}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(made | {"agreement": found}, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
