"""SAGE: reverse-KL RLVR whose anchor is q·π_ref, with a guide q built from signals the model already gives.

Names are loaded when they are first used, so ``import sage_rlvr`` costs milliseconds and pulls in neither TRL nor
Transformers; the guides, penalties and metrics need torch and NumPy alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "anchor": (
        "Signals Guide RandomGuide TokenGuide BranchGuide TemperedGuide BranchQuantileGuide TemperedQuantileGuide VerifiedGuide "
        "GroupGuide ValueGuide make_guide register_guide CosineRestarts anchor_penalty anchor_reward ESTIMATORS"
    ),
    "advantage": "Advantage make_advantage register_advantage",
    "stats.pass_at_k": "pass_at_k support_metrics mean_at_n majority_at_k",
    "stats.intervals": "bootstrap_interval",
    "train": "SAGEConfig SAGETrainer",
    "verify": "Verifier verifiable_reward",
    "errors": "UserError",
}
_ROOM_OF = {name: room for room, names in _HOME.items() for name in names.split()}

if TYPE_CHECKING:
    from sage_rlvr.advantage import Advantage, make_advantage, register_advantage
    from sage_rlvr.anchor import (  # isort: skip
        ESTIMATORS, BranchGuide, BranchQuantileGuide, CosineRestarts, GroupGuide, Guide, RandomGuide, Signals, TemperedGuide,
        TemperedQuantileGuide, TokenGuide, ValueGuide, VerifiedGuide, anchor_penalty, anchor_reward, make_guide, register_guide,
    )  # fmt: skip
    from sage_rlvr.errors import UserError
    from sage_rlvr.stats.intervals import bootstrap_interval
    from sage_rlvr.stats.pass_at_k import majority_at_k, mean_at_n, pass_at_k, support_metrics
    from sage_rlvr.train import SAGEConfig, SAGETrainer
    from sage_rlvr.verify import Verifier, verifiable_reward

__all__ = [
    "ESTIMATORS", "Advantage", "BranchGuide", "BranchQuantileGuide", "CosineRestarts", "GroupGuide", "Guide", "RandomGuide",
    "SAGEConfig", "SAGETrainer", "Signals", "TemperedGuide", "TemperedQuantileGuide", "TokenGuide", "UserError", "ValueGuide",
    "VerifiedGuide", "Verifier", "anchor_penalty", "anchor_reward", "bootstrap_interval", "majority_at_k", "make_advantage",
    "make_guide", "mean_at_n", "pass_at_k", "register_advantage", "register_guide", "support_metrics", "verifiable_reward",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'sage_rlvr' has no attribute {name!r}")
    return getattr(import_module(f"sage_rlvr.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
