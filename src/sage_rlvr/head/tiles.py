"""How the (tokens × vocabulary) plane is cut into tiles, and the one matrix product everything is built of.

A tile of logits is held as the float32 product and, beside it, what the next product reads (bf16). Its size is bounded by
bytes, not by the batch: 8 × 2,048 tokens at hidden size 3,584 stay under 0.6 GiB, the saved vectors included.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Tuned on an H200 (benchmarks/gpu/head.py --sweep).
BUDGET = 368 << 20  # bytes of one tile; 235 MB of saved vectors come on top at 16,384 tokens of 3,584
MIN_TOKENS, MAX_TOKENS = 2048, 4096  # rows of a tile: enough to fill the matrix units, few enough for a wide vocabulary
OUT_ROWS, OUT_COLS = 128, 256  # the output block one multiprocessor works on in a large bf16 product on Hopper
KEPT = 5 << 30  # bytes of exponentials that may wait for the backward of a head that learns; beyond, computed again
SQUARE = 8192  # side of a tile where both gradients are summed: each sum is read and written once per tile
MULTIPROCESSORS = 132  # of an H100 or H200; read off the device where there is one

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Tiles:
    tokens: int
    vocab: int


def product(out: Tensor, a: Tensor, b: Tensor, *, add: bool = False) -> None:
    """out (+)= a @ b, summed in float32 (float64) and rounded once, to ``out``'s dtype."""
    if not a.is_cuda and out.dtype in HALF:
        out.copy_(torch.mm(a.float(), b.float()))
    elif a.is_cuda and a.dtype in HALF:
        if add:
            torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
        else:
            torch.mm(a, b, out_dtype=out.dtype, out=out)
    elif add:
        out.addmm_(a.to(out.dtype), b.to(out.dtype))
    else:
        torch.mm(a.to(out.dtype), b.to(out.dtype), out=out)


def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def _waves(rows: int, width: int, units: int) -> int:
    """Rounds in which ``units`` multiprocessors compute a (rows, width) product, one output block each a round."""
    return -(-(-(-rows // OUT_ROWS) * -(-width // OUT_COLS)) // units)


def _vocab_tile(vocab: int, fits: int) -> int:
    """The fewest equal tiles that fit: a narrow last one would be a slow product."""
    count = -(-vocab // max(fits, OUT_COLS))
    return min(_up(-(-vocab // count), 128), _up(vocab, 128))


def frozen_tiles(n: int, vocab: int, width: int, kept_bytes: int, units: int) -> Tiles:
    """For the frozen head's two products. p @ W has only (tokens, D) outputs, so the number of tokens decides how many
    multiprocessors its last round leaves idle: take the one with the fewest rounds over all ``n`` tokens."""

    def rounds(tokens: int) -> int:
        whole, rest = divmod(n, tokens)
        return whole * _waves(tokens, width, units) + (_waves(rest, width, units) if rest else 0)

    tokens = min(range(MIN_TOKENS, MAX_TOKENS + 1, OUT_ROWS), key=rounds)
    tokens = max(1, min(tokens, n))
    return Tiles(tokens, _vocab_tile(vocab, BUDGET // tokens // (4 + kept_bytes)))


def reading_tiles(n: int, vocab: int) -> Tiles:
    """For a pass that only reads the logits."""
    tokens = max(1, min(MAX_TOKENS, n))
    return Tiles(tokens, _vocab_tile(vocab, BUDGET // tokens // 4))


def square_tiles(n: int, vocab: int) -> Tiles:
    """For the backward of a trainable head: (V, D) and (N, D) sums, each touched once per tile."""
    return Tiles(max(1, min(SQUARE, n)), _vocab_tile(vocab, SQUARE))
