"""What a store was sampled with, and where two of them differ."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON will give them back."""
    return json.loads(json.dumps(settings, default=str))


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}"""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return out


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted field → (value in one, value in the other), where they differ; "unset" where a field is not there."""
    a, b = flat(one), flat(other)
    pairs = {k: (a.get(k, "unset"), b.get(k, "unset")) for k in {**a, **b}}
    return {k: (x, y) for k, (x, y) in pairs.items() if x != y}


# the name of what was sampled → a fingerprint of its files; not there for a model whose files are only on the Hub
WEIGHTS = {"model": "model_weights", "adapter": "adapter_weights"}
INPUTS = "inputs"  # all else that decides a sample: "chat template", "tokenizer", "config.json" → a digest
JUDGE = "reward_digest"  # of a user's own reward
OWN = {"dataset_digest": "data have", JUDGE: "reward has"}  # digests of what a user named


def refuse_other(folder: Path, stored: Mapping[str, Any], given: Mapping[str, Any], begun: bool = True) -> None:
    """Samples drawn under two settings never share a store. Weights are known by their files, where both sides have
    looked: a folder that was moved is the same model, one whose files were replaced is not. Before the first sample
    (``begun``) a reward may be fixed."""
    if not begun and JUDGE in given:
        stored = {**stored, JUDGE: given[JUDGE]}
    differs = {k: v for k, v in differences(stored, given).items() if k.partition(".")[0] != INPUTS}
    for name, what in OWN.items():
        if name in stored and name in given and stored[name] != given[name]:
            raise UserError(
                f"the {what} changed since {folder} was begun: give --out another folder, or put the old one back."
            )
    for source, files in WEIGHTS.items():
        known = files in stored and files in given
        if known and files not in differs:
            differs.pop(source, None)
        elif known and source not in differs:
            raise UserError(
                f"{folder} holds samples of other weights than {given[source]} has now; give --out another folder, or put "
                "the old weights back."
            )
        differs.pop(files, None)
    if differs:
        first = "; ".join(f"{k} was {was!r} and is now {now!r}" for k, (was, now) in list(differs.items())[:3])
        raise UserError(
            f"{folder} holds samples drawn with other settings: {first}; give --out another folder, or set that back."
        )
    was, now = (side.get(INPUTS, {}) for side in (stored, given))  # again by what both sides have looked at
    if changed := [name for name, value in now.items() if was.get(name, value) != value]:
        raise UserError(
            f"{folder} holds samples drawn with another {' and '.join(changed)} than {given.get('model')} has now; give --out "
            "another folder, or put the old one back."
        )


def learned(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The stored settings, with where the weights lie and what judges now, and with what was not yet known of the files."""
    places = {name: given[name] for name in (*WEIGHTS, *WEIGHTS.values(), JUDGE) if name in given}
    inputs = {**stored.get(INPUTS, {}), **given.get(INPUTS, {})}
    return {**stored, **places, **({INPUTS: inputs} if inputs else {})}
