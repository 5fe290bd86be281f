"""The Triton kernels under Triton's interpreter, in a process of its own: TRITON_INTERPRET is read when triton is imported.

Prints one JSON object: case → errors against float64 beside those of the torch path on the same inputs. Exits with 77 and a
reason where the installed interpreter cannot run at all.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import numpy
import torch
import triton
import triton.language as tl

from sage_rlvr.head import functions, kernels, logps_and_entropies, softmax, tiles
from sage_rlvr.head.softmax import limit
from tests.head.exact import Case, answer, draw, off
from tests.head.test_reference import rising


@triton.jit
def _count(out_ptr, n):
    total = 0
    for _ in range(n):
        total += 1
    tl.store(out_ptr, total)


def probe():
    out = torch.zeros(1, dtype=torch.int32)
    try:
        _count[(1,)](out, 3)
    except Exception as error:  # Triton before 3.9 turns a one-element array into an int, which NumPy 2.4 refuses
        print(f"Triton {triton.__version__}'s interpreter fails with NumPy {numpy.__version__}: {error}")
        sys.exit(77)


def errors(case: Case, pull, lean=None, *, trainable=False, room=5 << 30, **options):
    tiles.KEPT = room
    shape = {k: v for k, v in options.items() if k in ("temperature", "softcap", "logit_scale")}
    exact = answer(case, pull, lean, mask=options.get("mask_N"), **shape)
    hidden = case.hidden.clone().requires_grad_()
    weight = case.weight.clone().requires_grad_(trainable)
    bias = None if case.bias is None else case.bias.clone().requires_grad_(trainable)
    options["entropy_grad"] = lean is not None
    logps, entropies = logps_and_entropies(hidden, weight, case.targets, bias=bias, **options)
    loss = (logps * pull).sum() + (0 if lean is None else (entropies * lean).sum())
    loss.backward()
    values = {"logps": logps.double() - exact[0], "entropies": entropies.double() - exact[1]}
    found = {name: float(gap.detach().abs().max()) for name, gap in values.items()}
    for name, tensor, gradient in zip(("hidden", "weight", "bias"), (hidden, weight, bias), exact[2]):
        if tensor is not None and tensor.requires_grad:
            found[f"d_{name}"] = off(tensor.grad, gradient)
    return found


def late(case: Case) -> Case:
    """Each 128 columns far above the last: rows are read again and what was summed is rescaled."""
    case.bias = torch.arange(len(case.weight)) // 128 * 130.0 + torch.randn(len(case.weight))
    return case


def cases():
    capped = {"softcap": 4.0, "temperature": 0.7, "logit_scale": 1.3}
    half = {"dtype": torch.bfloat16}
    yield "frozen", draw(7, 24, 700, spread=0.3), {}
    yield "frozen, bf16", draw(7, 24, 700, spread=0.3, **half), {}
    yield "frozen, capped, biased, bf16", draw(5, 24, 700, spread=0.3, bias=True, **half), capped
    yield "frozen, late logits", late(draw(6, 8, 512)), {"chunk": (4, 128)}
    yield "frozen, the reference moves", rising(draw(6, 8, 512, sure=0.0), limit(torch.float32)), {"chunk": (4, 128)}
    yield "frozen, wide", draw(2, 8, 5000, spread=0.5), {}
    yield "frozen, many tiles", draw(5, 1030, 300, spread=0.02), {"chunk": (3, 128)}
    yield "frozen, masked", draw(6, 8, 300), {"mask_N": torch.tensor([1, 0, 1, 0, 0, 1])}
    yield "frozen, nothing counts", draw(2, 8, 300), {"mask_N": torch.zeros(2)}
    yield "one token", draw(1, 8, 129), {}
    yield "trainable, late logits", late(draw(6, 8, 512)), {"chunk": (4, 128), "trainable": True}
    yield "trainable, no room", draw(5, 16, 500, spread=0.3, bias=True), {"trainable": True, "room": 0}
    yield "trainable", draw(5, 16, 500, spread=0.3, bias=True), {"trainable": True}
    yield "trainable, capped, bf16", draw(5, 16, 500, spread=0.3, bias=True, **half), {"trainable": True, **capped}
    yield "entropy gradient", draw(5, 16, 500, spread=0.3), {"lean": torch.randn(5), **capped}


def main():
    probe()
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN
    table = {}
    for name, case, options in cases():
        pull = torch.randn(len(case.hidden))
        options.setdefault("chunk", (4, 256))
        interpreted = errors(case, pull, **options)
        assert functions.tile_functions(case.hidden.device, case.hidden.dtype) is kernels
        functions.tile_functions, triton_functions = lambda *_: softmax, functions.tile_functions
        table[name] = {"triton": interpreted, "torch": errors(case, pull, **options)}
        functions.tile_functions = triton_functions
    print(json.dumps({"triton": triton.__version__, "cases": table}))


if __name__ == "__main__":
    main()
