"""Floor 0. How a group's rewards become advantages: every published way that claims pass@1 and pass@k, on torch alone."""

from sage_rlvr.advantage.advantage import (
    Advantage,
    Combined,
    Rollouts,
    make_advantage,
    names_by_kind,
    register_advantage,
)
from sage_rlvr.advantage.answers import (
    AlikeAdvantage,
    CoverageAdvantage,
    RarityAdvantage,
    SmoothAdvantage,
    UnlikelyAdvantage,
)
from sage_rlvr.advantage.prompts import FocalAdvantage, MaxRLAdvantage, PassKAdvantage, PKPOAdvantage
from sage_rlvr.advantage.signs import RiskAdvantage, SignedAdvantage
from sage_rlvr.advantage.tokens import ClipCovAdvantage, EntropyAdvantage, KLCovAdvantage, TokenAdvantage, Tokens
from sage_rlvr.advantage.whole import BetaAdvantage, GroupAdvantage

__all__ = [
    "Advantage",
    "AlikeAdvantage",
    "BetaAdvantage",
    "ClipCovAdvantage",
    "Combined",
    "CoverageAdvantage",
    "EntropyAdvantage",
    "FocalAdvantage",
    "GroupAdvantage",
    "KLCovAdvantage",
    "MaxRLAdvantage",
    "PKPOAdvantage",
    "PassKAdvantage",
    "RarityAdvantage",
    "RiskAdvantage",
    "Rollouts",
    "SignedAdvantage",
    "SmoothAdvantage",
    "TokenAdvantage",
    "Tokens",
    "UnlikelyAdvantage",
    "make_advantage",
    "names_by_kind",
    "register_advantage",
]
