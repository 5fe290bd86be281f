"""SAGE in verl 0.9: a V1 trainer, ``trainer.v1.trainer_mode=sage_sync``, with its options under ``+sage.*`` (docs/howto/verl.md).

verl imports this module in every process through the entry point group ``verl.plugins``, and passes over one that fails with
a line at debug level. So importing it costs next to nothing and cannot fail: it waits for ``verl.trainer.ppo.v1``, whose
import takes seconds and reaches into vLLM, and registers the trainer right after it, in the processes that ask for it. What
goes wrong there is logged as an error. ``sage-rlvr doctor --verl`` proves the whole chain in the user's environment.
"""

import functools
import logging
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from sage_rlvr.errors import UserError

HOME = "verl.trainer.ppo.v1"  # whose import fills verl's table of trainers
LEGACY = "verl.trainer.ppo.ray_trainer"  # the trainer of trainer.use_v1=False, which reads no options of ours
MODE = "sage_sync"
OLDER = ", since log q is taken at the policy that samples and a batch there may come from older ones"  # no asynchronous mode
ESTIMATOR = "sage"  # our name in verl's table of advantage estimators

logger = logging.getLogger(__name__)


def register() -> None:
    """Puts the trainer into verl's table. An error is said aloud; verl then knows no ``sage_sync`` and refuses to start."""
    try:
        import_module("sage_rlvr.integrations.verl.trainer")
    except Exception:
        logger.exception("sage: the trainer %r could not be registered with verl; runs that ask for it will stop", MODE)


class AfterImport(MetaPathFinder):
    """Calls ``then`` once, right after the module ``name`` has been imported."""

    def __init__(self, name: str, then: Callable[[], None]):
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_call(module: ModuleType) -> None:
                load(module)
                self.then()

            spec.loader.exec_module = load_and_call  # type: ignore[method-assign]
        return spec


def refuse_unread_options(trainer: Any, why: Callable[[Any, Any], str | None]) -> None:
    """``+sage.*`` that a trainer of verl's does not read would train without a word, and without a guide: it is refused when
    the trainer is built, with what ``why(trainer, config)`` says (None: it is read). So is our advantage estimator. The classes
    below ask as well, those still to come too: verl's asynchronous trainers call the ``__init__`` above them late, or never."""

    def ask_first(cls: Any) -> None:
        theirs = cls.__init__
        if getattr(theirs, "asks_for_sage", False):
            return

        @functools.wraps(theirs)
        def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            ours = (config.get("algorithm") or {}).get("adv_estimator") == ESTIMATOR
            options = {"sage.*": config.get("sage") is not None, f"algorithm.adv_estimator={ESTIMATOR}": ours}
            for name in (name for name, is_set in options.items() if is_set):
                if reason := why(self, config):
                    raise UserError(f"{name} is set but {reason}.")
            theirs(self, config, *args, **kwargs)

        __init__.asks_for_sage = True  # type: ignore[attr-defined]
        cls.__init__ = __init__

    def and_below(cls: Any) -> None:
        ask_first(cls)
        for below in cls.__subclasses__():
            and_below(below)

    and_below(trainer)
    trainer.__init_subclass__ = classmethod(lambda cls, **_: ask_first(cls))


def guard_legacy() -> None:
    refuse_unread_options(sys.modules[LEGACY].RayPPOTrainer, _why_not_the_legacy_one)


def _why_not_the_legacy_one(trainer: Any, config: Any) -> str:
    named = type(trainer).__name__
    # one-step-off, fully async
    separate = any(above.__name__ == "SeparateRayPPOTrainer" for above in type(trainer).__mro__)
    kind, why = ("asynchronous", OLDER) if separate else ("legacy", "")
    fix = f"run verl.trainer.main_ppo with trainer.use_v1=True and trainer.v1.trainer_mode={MODE}"
    return f"verl's {kind} trainer {named} does not read it{why}: {fix}"


def _install() -> None:
    for name, then in ((HOME, register), (LEGACY, guard_legacy)):
        if name in sys.modules:
            then()
        elif not any(isinstance(finder, AfterImport) and finder.name == name for finder in sys.meta_path):
            sys.meta_path.insert(0, AfterImport(name, then))


_install()
