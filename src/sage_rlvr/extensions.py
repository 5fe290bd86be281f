"""Modules of the user's that register tasks, scorers, formats and guides, loaded before a verb runs.

``sage-rlvr --import mine train …`` puts the name into the environment, so that the processes a verb starts (a study's runs,
the ranks of a training) load it too.
"""

import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.names import closest

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


# ---- one function by name ----------------------------------------------------------------------------------------


def load_function(name: str, flag: str) -> Callable[..., Any]:
    """What ``file.py:function`` or ``package.module:function`` names; ``flag`` is what asked for it, for the sentences.

    A file may import what lies beside it. A module is looked for as Python does, and in the working directory.
    """
    source, colon, attribute = str(name).rpartition(":")
    if not (source and colon and attribute):
        raise UserError(f"{flag} {name}: write file.py:function or package.module:function.")
    module = _module(source, f"{flag} {name}")
    function: Any = module
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        what = "is not a function" if function is not None else "is not there"
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        near = closest(attribute, functions)[:1] or functions[:8]
        there = f"{source} has {', '.join(near)}" if near else f"{source} has no function"
        raise UserError(f"{flag} {name}: {attribute!r} {what}; {there}.")
    return function


def _module(source: str, asked: str) -> ModuleType:
    path = Path(source)
    a_file = path.suffix == ".py"
    if a_file and not path.is_file():
        here = sorted(p.name for p in (path.parent if path.parent.is_dir() else Path()).glob("*.py"))
        near = closest(path.name, here)
        raise UserError(f"{asked}: there is no file {source}{f'; did you mean {near[0]}?' if near else '.'}")
    folder = str(path.resolve().parent) if a_file else os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return _from_file(path) if a_file else import_module(source)
    except UserError:
        raise
    except (Exception, SystemExit) as e:
        if isinstance(e, ModuleNotFoundError) and not a_file and source.split(".")[0] == e.name:
            raise UserError(
                f"{asked}: Python finds no module {source!r} from {os.getcwd()}; write file.py:function for a file."
            ) from e
        why = " ".join(f"{type(e).__name__}: {e}".split()).rstrip(".")
        frames = [f for f in traceback.extract_tb(e.__traceback__) if a_file and Path(f.filename) == path.resolve()]
        line = f", line {frames[-1].lineno}" if frames else ""
        raise UserError(f"{asked}: {source} cannot be imported ({why}{line}).") from e


def _from_file(path: Path) -> ModuleType:
    """The file as a module of its own name, loaded once; a library that has that name is left alone."""
    path = path.resolve()
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_{path.parent.name}"
    for known in list(sys.modules.values()):
        if getattr(known, "__file__", None) == str(path):
            return known
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # so that what it defines can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def leave_working_directory() -> None:
    """For a module that is run by ``python -m``, which puts the working directory first on the path; PYTHONPATH stays."""
    if not sys.flags.safe_path:
        del sys.path[0]
