"""Noise addressed by (key, row, column) instead of drawn in sequence.

A stream of random numbers depends on who draws first, so it changes with the number of processes, the micro-batch
and the padding. Here each token's noise is a hash of its address: the same on any split of the batch, on CPU and CUDA.
"""

import torch
from torch import Tensor

_STREAMS = 4  # independent numbers available per address


def batch_seed(seed: int, rollout_batch: int) -> int:
    """What a generator is seeded with, one per rollout batch; rows and columns address the noise within it."""
    return (seed * 1_000_003 + rollout_batch) % 2**63


def draw_key(generator: torch.Generator | None) -> int:
    """One 62-bit key from a torch generator (the global one if None): all the noise of one call follows from it."""
    device = generator.device if generator is not None else "cpu"
    return int(torch.randint(0, 2**62, (1,), generator=generator, device=device))


def _signed(value: int) -> int:
    """A 64-bit pattern as the signed integer torch stores."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # logical: torch's >> on int64 copies the sign


def _mix(x: Tensor) -> Tensor:
    """A 64-bit finaliser (xor-shift, multiply, twice): every input bit flips about half of the output bits."""
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def uniform(key: int, rows: Tensor, columns: int, stream: int) -> Tensor:
    """(B, columns) float32 in (0, 1), a function of key, row number, column number and stream alone."""
    gold = 0x9E3779B97F4A7C15  # odd, irrational-looking increment: consecutive counters land far apart
    row_hash = _mix(_mix(rows.long() + _signed(key)) + _signed(gold))[:, None]
    counter = torch.arange(columns, device=rows.device)[None, :] * _STREAMS + stream
    bits = _mix(row_hash + (counter + 1) * _signed(gold))
    return (_shift_right(bits, 41).float() + 0.5) / 2**23  # 23 bits and a half: exact in float32, never 0 or 1


def normal(key: int, rows: Tensor, columns: int, stream: int) -> Tensor:
    """(B, columns) standard normal by Box and Muller; uses ``stream`` and ``stream + 1``."""
    radius = torch.sqrt(-2 * torch.log(uniform(key, rows, columns, stream)))
    return radius * torch.cos(2 * torch.pi * uniform(key, rows, columns, stream + 1))
