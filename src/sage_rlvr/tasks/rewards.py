"""A user's reward functions (``--reward``): checked before a run, and called as TRL calls them where there is no trainer.

Training hands them to TRL. Evaluation and held-out measurements need right or wrong: a completion is right where the weighted sum
of its rewards reaches ``correct_at``.
"""

import asyncio
import hashlib
import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.extensions import load_function

# what TRL, and SAGETrainer (truncated), hand a reward function beside the columns
HANDED = {
    "prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments", "truncated",
}  # fmt: skip
ROUNDING = 1e-6  # TRL adds weighted rewards in single precision: 0.6 + 0.3 + 0.1 reaches 1


# ---- before a run ------------------------------------------------------------------------------------------------


def check_signature(func: Callable[..., Any], name: str, columns: set[str], task: str) -> None:
    """Refuses a function that does not take **kwargs, or that needs an argument which no column of the task is."""
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):  # written in C: it will show
        return
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise UserError(
            f"--reward {name} must take every column that TRL hands it: write "
            f"def {getattr(func, '__name__', 'reward')}({', '.join([*parameters, '**kwargs'])})."
        )
    for p in parameters.values():
        needed = p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if needed and p.name not in columns | HANDED:
            own = ", ".join(sorted(columns - {"task", "problem"}))
            raise UserError(f"--reward {name} asks for {p.name!r}, which is no column of {task}; it has {own}.")


def check_weights(weights: Sequence[float] | None, names: Sequence[str]) -> None:
    if weights is not None and len(weights) != len(names):
        raise UserError(
            f"--reward_weights has {len(weights)} numbers and there are {len(names)} rewards: give one each."
        )
    if weights is not None and not all(map(math.isfinite, weights)):
        raise UserError(f"--reward_weights must be finite numbers, and are {', '.join(map(str, weights))}.")


def code_digest(func: Any) -> str | None:
    """Of the file that holds it; None where there is none."""
    try:
        file = inspect.getsourcefile(func if inspect.isroutine(func) or inspect.isclass(func) else type(func))
    except TypeError:
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file and Path(file).is_file() else None


# ---- a call ------------------------------------------------------------------------------------------------------


class BadRewards(Exception):
    """What a reward function gave is no list of numbers, one per completion: what it is, and what to return."""


class RewardFailed(Exception):
    """A call of a reward function, or of --extract, failed: which, and why."""

    def __init__(self, func: Callable[..., Any], name: str, why: str):
        super().__init__(name, why)
        self.func, self.why = func, f"{name if name.startswith('--') else f'the reward function {name!r}'} {why}"


@contextmanager
def failures(func: Any, name: str) -> Iterator[None]:
    """Whatever a user's function raises, as a RewardFailed."""
    try:
        yield
    except RewardFailed:
        raise
    except BadRewards as error:
        raise RewardFailed(func, name, f"returned {error}") from error
    except UserError as error:
        raise RewardFailed(func, name, f"says: {str(error).rstrip('.')}") from error
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise RewardFailed(func, name, f"raised {what} ({Path(at.filename).name}, line {at.lineno})") from error


def checked(rewards: Any, problems: Sequence[str]) -> list[float | None]:
    """One number or None per completion; ``problems`` names the row that each completion answers."""
    if isinstance(rewards, str) or not isinstance(rewards, Iterable):
        raise BadRewards(f"{rewards!r}: return a list of {len(problems)} numbers, one per completion")
    out, given = list[float | None](), list(rewards)
    if len(given) != len(problems):
        raise BadRewards(f"{len(given)} rewards for {len(problems)} completions: return one number per completion")
    for i, (reward, problem) in enumerate(zip(given, problems)):
        try:
            value = None if reward is None else float(reward)
        except (TypeError, ValueError):
            value = math.nan
        if isinstance(reward, str) or (value is not None and not math.isfinite(value)):
            where = f" ({problem})" if problem else ""
            raise BadRewards(
                f"{reward!r} for completion {i} of {len(problems)}{where}: return a finite number, or None if it does not apply"
            )
        out.append(value)
    return out


class OwnReward:
    """The user's functions, weighted. Called as TRL calls one: 1.0 (right), 0.0, or None where every function says None, which
    training leaves out too."""

    def __init__(self, names: Sequence[str], weights: Sequence[float] | None = None, correct_at: float = 1.0):
        check_weights(weights, names)
        self.funcs = [load_function(name, "--reward") for name in names]
        self.weights, self.correct_at = weights or [1.0] * len(names), correct_at
        self.__name__ = ", ".join(names)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        totals = self.totals(prompts, completions, **columns)
        return [None if total is None else float(self.reached(total)) for total in totals]

    def reached(self, total: float) -> bool:
        return total >= self.correct_at - ROUNDING

    def totals(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The weighted rewards; raises RewardFailed. There is no trainer: what would be logged is dropped."""
        from transformers import TrainerState

        def drop(*args: Any, **kwargs: Any) -> None:
            pass

        rows = columns.get("problem") or [""] * len(completions)
        handed = {"trainer_state": TrainerState(), "log_extra": drop, "log_metric": drop, **columns}
        per_func = []
        for func in self.funcs:
            with failures(func, getattr(func, "__name__", type(func).__name__)):
                given = func(prompts=prompts, completions=completions, **handed)
                per_func.append(checked(asyncio.run(_wait(given)) if inspect.isawaitable(given) else given, rows))
        return [self._total(rewards) for rewards in zip(*per_func)]

    def _total(self, rewards: Sequence[float | None]) -> float | None:
        counted = [weight * r for weight, r in zip(self.weights, rewards) if r is not None]
        return math.fsum(counted) if counted else None


async def _wait(answer: Any) -> Any:
    return await answer
