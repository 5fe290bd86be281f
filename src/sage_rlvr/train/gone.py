"""Settings that are gone: what to write in their place, and what records made with them mean today.

``coverage`` and ``rarity`` were floats of SAGEConfig; they are advantages now, with the share as their argument.
"""

from collections.abc import Mapping
from typing import Any

from sage_rlvr.errors import UserError

SHARES = ("coverage", "rarity")


def instead(name: str, value: Any = None) -> str | None:
    """The sentence for a setting of that name; None for any other."""
    if name not in SHARES:
        return None
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = 1.0
    write = f"write advantage={name!r}, advantage_args={{'share': {share}}}" if share else "leave it out"
    return f"{name} is no setting of its own any more: {write}."


def refuse(settings: Mapping[str, Any], where: str = "") -> None:
    for name in settings:
        if (sentence := instead(name, settings[name])) is not None:
            raise UserError(f"{where}{sentence}")


def translated(settings: Mapping[str, Any], core: str = "group") -> dict[str, Any]:
    """Settings of an old record as they are written today, ``core`` the advantage they were laid over. Both shares at once were
    a product that no advantage is: they stay as they are, and equal nothing of today's."""
    out = {key: value for key, value in settings.items() if key not in SHARES}
    shares = {name: settings[name] for name in SHARES if settings.get(name)}
    if len(shares) == 2:
        return dict(settings)
    for name, share in shares.items():
        core = out.get("advantage", core)
        if core == "group":
            out |= {"advantage": name, "advantage_args": {"share": share}}
        else:
            out |= {"advantage": [name, core], "advantage_args": {name: {"share": share}}}
    return out


def translated_study(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a study's record: what all variants share goes down into each, where the two are laid over one another."""
    shared = {name: content["train"][name] for name in SHARES if name in content["train"]}
    train = {key: value for key, value in content["train"].items() if key not in shared}
    core = train.get("advantage", "group")
    variants = {name: translated({**shared, **own}, core) for name, own in content["variants"].items()}
    return {**content, "train": train, "variants": variants}
