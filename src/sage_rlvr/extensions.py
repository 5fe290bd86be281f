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
    """Imports what MODULES names. Only where it names something is the working directory on Python's path, behind all that is
    installed: a wandb.py that happens to lie there is nobody's wandb."""
    names = [name for name in os.environ.get(MODULES, "").split(",") if name]
    if names and os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    for name in names:
        try:
            import_module(name.removesuffix(".py"))
        except ImportError as e:
            raise UserError(f"--import {name}: {e}; name a module that Python finds from {os.getcwd()}.") from e


def leave_working_directory() -> None:
    """For a module that is run by ``python -m``, which puts the working directory first on the path; PYTHONPATH stays."""
    if not sys.flags.safe_path:
        del sys.path[0]
