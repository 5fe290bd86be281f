"""Values in a flag, a recipe or a config: of the right type and in range, or one sentence that says what is wrong."""

import math
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from typing import Any

import yaml

from sage_rlvr.errors import UserError
from sage_rlvr.names import near
from sage_rlvr.strict_yaml import parse_yaml

AT_LEAST = {  # field → the least it may be
    "beta": 0, "learning_rate": 0, "weight_decay": 0, "max_grad_norm": 0, "max_completion_length": 1,
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "num_iterations": 1, "num_generations": 2, "rows": 1,
    "holdout": 1, "held_out_rows": 1, "held_out_every": 1, "held_out_n": 1, "min_p": 0, "lora_r": 1, "lora_dropout": 0,
    "anchor_reset": 0, "dynamic_sampling": 0, "keep_coef": 0, "keep_batch": 1, "keep_per_problem": 1,
    "tokens_per_microbatch": 1,
}  # fmt: skip
ABOVE = {
    "temperature": 0, "top_p": 0, "repetition_penalty": 0, "lora_alpha": 0, "reward_timeout_s": 0, "vllm_kv_cache_gib": 0,
}  # fmt: skip
AT_MOST = {"top_p": 1, "min_p": 1, "lora_dropout": 1}
KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {  # type → what it is called, and whether a value is one
    int: ("a whole number", lambda v: isinstance(v, Integral) and not isinstance(v, bool)),
    float: ("a number", lambda v: isinstance(v, Real) and not isinstance(v, bool)),
    bool: ("true or false", lambda v: isinstance(v, bool | int)),
    str: ("text", lambda v: isinstance(v, str | os.PathLike)),
}


def check(config: Any) -> None:
    """Of a dataclass: types as annotated, where those are plain ones, and the ranges above."""
    for name, kinds in _plain_fields(config.__class__).items():
        value = getattr(config, name)
        unset = value is None and not {int, float} & set(kinds)
        if unset or value == type(config).__dataclass_fields__[name].default:
            continue
        if not any(value is None if kind is types.NoneType else KINDS[kind][1](value) for kind in kinds):
            wanted = " or ".join(KINDS[kind][0] for kind in kinds if kind is not types.NoneType)
            raise UserError(f"{name} must be {wanted}, and is {value!r}.")
        if isinstance(value, Real) and not isinstance(value, bool):
            _check_range(name, value)  # type: ignore[arg-type]


def _check_range(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, and is {value}.")
    if name in AT_LEAST and value < AT_LEAST[name]:
        raise UserError(f"{name} must be {AT_LEAST[name]} or more, and is {value}.")
    if name in ABOVE and value <= ABOVE[name]:
        raise UserError(f"{name} must be above {ABOVE[name]}, and is {value}.")
    if name in AT_MOST and value > AT_MOST[name]:
        raise UserError(f"{name} must be at most {AT_MOST[name]}, and is {value}.")


@cache
def _plain_fields(cls: type) -> dict[str, tuple[Any, ...]]:
    """field → its types, for fields all of whose types are plain."""
    hints = typing.get_type_hints(cls)
    union = (typing.Union, types.UnionType)
    kinds = {f.name: hints[f.name] for f in fields(cls)}
    parts = {name: typing.get_args(h) if typing.get_origin(h) in union else (h,) for name, h in kinds.items()}
    return {name: each for name, each in parts.items() if set(each) <= {*KINDS, types.NoneType}}


def mapping(name: str, value: Any) -> Any:
    """A dict from text in braces, JSON or YAML: {"ratio": 0.5} and {ratio: 0.5} are the same. Anything else as it is."""
    if not (isinstance(value, str) and value.lstrip().startswith("{")):
        return value
    try:
        parsed = parse_yaml(value)
    except yaml.YAMLError:
        parsed = None
    if not isinstance(parsed, dict):
        raise UserError(f"{name}={value!r} cannot be read: write it in quotes, like '{{name: value, other: value}}'.")
    return parsed


def refuse_gone(settings: Mapping[str, Any], where: str = "") -> None:
    """``coverage`` and ``rarity`` were settings once: an old config is told what to write."""
    for name in ("coverage", "rarity"):
        if name in settings:
            share = settings[name]
            write = f"write advantage={name!r}, advantage_args={{'share': {share}}}" if share else "leave it out"
            raise UserError(f"{where}{name} is no setting of its own any more: {write}.")


# ---- what argparse refuses -----------------------------------------------------------------------------------------


def sentence(message: str) -> str:
    """argparse's message in our words."""
    argument = re.match(r"argument --(\w+)[^:]*: (.*)", message, re.S)
    if not argument:
        return message
    name, why = argument.groups()
    if wrong := re.match(r"invalid (float|int) value: (.*)", why):
        return f"{name}={wrong[2]} is not {KINDS[{'float': float, 'int': int}[wrong[1]]][0]}."
    if wrong := re.match(r"invalid choice: (\S+) \(choose from (.*)\)", why, re.S):
        known = [word.strip("' ") for word in wrong[2].split(",")]
        return f"{name}={wrong[1]} is unknown: {near(wrong[1].strip(chr(39)), known)}."
    if wrong := re.match(r"Truthy value expected: got (.*) but", why):
        return f"{name}={wrong[1]!r} is neither true nor false."
    if why.startswith("expected"):
        return f"--{name} has no value: write --{name} VALUE."
    return f"{name}: {why}"
