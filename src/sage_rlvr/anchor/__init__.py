"""Floor 0. Guides, schedules, penalties and credit: pure tensor functions on torch alone."""

from sage_rlvr.anchor.covering import DIVERGENCES, covering_penalty
from sage_rlvr.anchor.guides import (
    BranchGuide,
    Guide,
    RandomGuide,
    Signals,
    TemperedGuide,
    TokenGuide,
    make_guide,
    register_guide,
    tellable,
)
from sage_rlvr.anchor.penalty import ESTIMATORS, anchor_penalty, anchor_reward
from sage_rlvr.anchor.relative import BranchQuantileGuide, TemperedQuantileGuide
from sage_rlvr.anchor.schedules import CosineRestarts
from sage_rlvr.anchor.taught import GroupGuide, ValueGuide
from sage_rlvr.anchor.verified import VerifiedGuide

__all__ = [
    "DIVERGENCES",
    "ESTIMATORS",
    "BranchGuide",
    "BranchQuantileGuide",
    "CosineRestarts",
    "GroupGuide",
    "Guide",
    "RandomGuide",
    "Signals",
    "TemperedGuide",
    "TemperedQuantileGuide",
    "TokenGuide",
    "ValueGuide",
    "VerifiedGuide",
    "anchor_penalty",
    "anchor_reward",
    "covering_penalty",
    "make_guide",
    "register_guide",
    "tellable",
]
