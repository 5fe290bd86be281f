"""Dropout in the policy: where it is, and how it is turned off.

A policy that trains with dropout is not the one whose samples it is trained on: each log-prob is that of another, thinned
network, and exp(log π_ref − log π) over such noise is large. TRL's ``disable_dropout`` stills ``nn.Dropout`` alone, and most
models keep the rate of their attention dropout in a number.
"""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


def _rates(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """(module, attribute) of every rate above 0."""
    for module in model.modules():
        names = ["p"] if isinstance(module, _DropoutNd) else [n for n in vars(module) if n.endswith("dropout")]
        yield from ((module, n) for n in names if type(rate := getattr(module, n)) in (float, int) and rate > 0)


def active_dropout(model: nn.Module) -> str | None:
    """What is still on, as in "attention_dropout=0.1"; None where nothing is."""
    rates = {f"{'dropout' if name == 'p' else name}={getattr(module, name)}" for module, name in _rates(model)}
    return ", ".join(sorted(rates)) or None


def disable_dropout(model: nn.Module) -> None:
    for module, name in list(_rates(model)):
        setattr(module, name, 0.0)
