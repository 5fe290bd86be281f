"""Modules of the user's that register tasks, scorers, formats and guides, loaded before a verb runs.

``sage-rlvr --import mine train …`` puts the name into the environment, so that the processes a verb starts (a study's runs,
the ranks of a training) load it too.
"""

import os
import sys
from importlib import import_module

from sage_rlvr.errors import UserError

MODULES = "SAGE_RLVR_IMPORT"  # comma-separated


def load() -> None:
    """Imports what MODULES names; the working directory counts, as it does with ``python -m``."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    for name in filter(None, os.environ.get(MODULES, "").split(",")):
        try:
            import_module(name.removesuffix(".py"))
        except ImportError as e:
            raise UserError(f"--import {name}: {e}; name a module that Python finds from {os.getcwd()}.") from e
