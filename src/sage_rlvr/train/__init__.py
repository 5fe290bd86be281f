"""Floor 3. SAGEConfig and SAGETrainer on TRL: one training step and what it needs.

Both names are loaded when they are first used: a recipe or a study is read, listed and shown without TRL, which takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sage_rlvr.train.config import SAGEConfig
    from sage_rlvr.train.trainer import SAGETrainer

__all__ = ["SAGEConfig", "SAGETrainer"]
_HOME = {"SAGEConfig": "config", "SAGETrainer": "trainer"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sage_rlvr.train' has no attribute {name!r}")
    return getattr(import_module(f"sage_rlvr.train.{_HOME[name]}"), name)
