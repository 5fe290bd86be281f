"""One name for one thing: the flags that every verb shares, what TRL calls them, and what a misspelled name may mean."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from sage_rlvr.errors import UserError

# the name every verb takes → the field of TRL behind it in a training
FIELDS = {"model": "model_name_or_path", "out": "output_dir", "max_tokens": "max_completion_length"}
# the names that still work → the name --help shows
OLD = {field: name for name, field in FIELDS.items()} | {"tasks": "task"}

# what other trainers call it → what is called so here
ELSEWHERE = {
    "lr": "learning_rate", "group_size": "num_generations", "rollouts": "num_generations", "samples": "n", "steps": "max_steps",
    "epochs": "num_train_epochs", "batch_size": "per_device_train_batch_size", "kl_coef": "beta", "kl_loss_coef": "beta",
    "max_new_tokens": "max_tokens", "max_response_length": "max_tokens", "data": "dataset", "reward_func": "reward",
    "rank": "lora_r", "clip_ratio": "epsilon", "output": "out",
}  # fmt: skip


def near(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the names most like this one, or all of them."""
    known = list(known)
    close = closest(name, known)
    return f"perhaps you mean {' or '.join(close)}" if close else f"choose from {', '.join(known)}"


def closest(name: str, known: Iterable[str]) -> list[str]:
    """At most three of the known names: those that begin so and those that a slip makes of it, else the most alike."""
    spelled, asked = {str(k).lower(): str(k) for k in known}, str(name).lower()
    here = ELSEWHERE.get(asked.lstrip("-").replace("-", "_"))
    if meant := [shown for name, shown in spelled.items() if name.lstrip("-") == here]:
        return meant
    begin = [k for k in spelled if k.startswith(asked) and len(asked) > 2]
    sure = list(dict.fromkeys([*begin[:2], *difflib.get_close_matches(asked, spelled, n=3, cutoff=0.8)]))[:3]
    return [spelled[k] for k in sure or difflib.get_close_matches(asked, spelled, n=3, cutoff=0.5)]


def shown_flags(argv: Iterable[str]) -> list[str]:
    """A command with each old flag under the name that --help shows."""
    return _renamed(argv, OLD)


def field_flags(argv: Iterable[str]) -> list[str]:
    """A command with each shared flag under the name of TRL's field."""
    return _renamed(_renamed(argv, {"tasks": "task"}), FIELDS)


def field_keys(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same for the keys of a YAML file, which may not say one thing under two names."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        field = FIELDS.get(key, key)
        if field in out:
            raise UserError(f"{where}: {OLD[field]} and {field} are two names of one setting: keep one of them.")
        out[field] = value
    return out


def _renamed(argv: Iterable[str], table: Mapping[str, str]) -> list[str]:
    out = []
    for word in argv:
        name, equals, value = word.partition("=")
        new = table.get(name[2:]) if name.startswith("--") else None
        out.append(f"--{new}{equals}{value}" if new else word)
    return out
