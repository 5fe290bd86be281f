"""Floor 0. How a group's rewards become advantages: every published way that claims pass@1 and pass@k, on torch alone."""

from sage_rlvr.advantage import prompts, signs  # noqa: F401 - to be known by name, as those below
from sage_rlvr.advantage.advantage import (
    Advantage,
    Combined,
    Rollouts,
    make_advantage,
    names_by_kind,
    register_advantage,
)
from sage_rlvr.advantage.answers import AlikeAdvantage
from sage_rlvr.advantage.tokens import TokenAdvantage, Tokens
from sage_rlvr.advantage.whole import GroupAdvantage

__all__ = [
    "Advantage",
    "AlikeAdvantage",
    "Combined",
    "GroupAdvantage",
    "Rollouts",
    "TokenAdvantage",
    "Tokens",
    "make_advantage",
    "names_by_kind",
    "register_advantage",
]
