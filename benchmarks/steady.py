"""Figures of records, compared across processors: the last bits of a sum differ from one kind to another."""

import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from sage_rlvr.stats.intervals import Interval


def same(path: Path, a: bytes, b: bytes) -> bool:
    """Whether two versions of a file say the same: figures to a ten-thousandth of a point, since the last bits of a sum differ
    from one kind of processor to another."""
    if path.suffix != ".svg" or a == b:
        return a == b
    number = rb"-?\d+\.\d+"
    numbers = [[float(x) for x in re.findall(number, steady_names(file))] for file in (a, b)]
    words = [re.sub(number, b"", steady_names(file)) for file in (a, b)]
    return words[0] == words[1] and all(abs(x - y) < 1e-4 for x, y in zip(*numbers))


def steady_names(svg: bytes) -> bytes:
    """The figure with its parts numbered: Matplotlib names clips and markers by a hash of such last bits."""
    names = dict.fromkeys(re.findall(rb'id="([a-z][0-9a-f]{10})"', svg))
    numbers = {name: b"%c%d" % (name[0], i) for i, name in enumerate(names)}
    return re.sub(rb"\b[a-z][0-9a-f]{10}\b", lambda found: numbers.get(found[0], found[0]), svg)


def steady(x: Any) -> Any:
    """Nine decimals of every number: how a processor orders its sums must decide no rounding, here or in a figure."""
    if isinstance(x, float):
        return round(x, 9) + 0.0  # no −0.0
    if isinstance(x, Interval):
        return Interval(*map(steady, x))
    if isinstance(x, list | tuple):
        return type(x)(map(steady, x))
    if isinstance(x, dict):
        return {key: steady(value) for key, value in x.items()}
    return replace(x, **{f.name: steady(getattr(x, f.name)) for f in fields(x)}) if is_dataclass(x) else x
