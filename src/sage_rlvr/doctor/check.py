"""What a check found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """``ok`` is None where it could not be told, or is not needed here; ``fix`` is one sentence."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""
