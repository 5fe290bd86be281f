"""A reward function that raises or blocks: the run stops on every rank, with a checkpoint and a sentence that names it.

What can be interrupted. In the main thread a signal does it: Python code, sleeps, reads, locks. In another thread the call runs
in a thread of its own, which is left behind. An async function is cancelled where it awaits; one that blocks its event loop is
left behind, if the trainer runs in the main thread. What cannot: code in C that never comes back to the interpreter, and an
async function that blocks its loop under a trainer outside the main thread.
"""

import asyncio
import contextvars
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather, gather_object
from torch import Tensor
from transformers import TrainerCallback
from trl.trainer.utils import is_async_callable

from sage_rlvr.errors import UserError
from sage_rlvr.tasks.rewards import RewardFailed, checked, failures
from sage_rlvr.verify import verifiable_reward

GRACE_S = (
    2.0  # for an async function to be cancelled by its own loop, before the thread that waits for it is interrupted
)


class Overtime(BaseException):
    """Raised inside a reward call whose time is up; no Exception, so that ``except Exception`` there does not swallow it."""


class RewardGuard(TrainerCallback):
    """Calls the trainer's reward functions, each within ``limit`` seconds (None: without a limit)."""

    def __init__(self, trainer: Any, limit: float | None):
        self.trainer, self.limit = trainer, limit
        self._boundary: dict[str, Any] | None = None  # what a checkpoint of the latest finished step holds
        self._saved = -1  # the step of the latest checkpoint
        self._awaited: dict[str, Any] = {}  # async functions that have not answered yet

    def rewards(self, calculate: Callable[..., Tensor], inputs: Any, prompts: Any, *rest: Any) -> Tensor:
        """TRL's ``_calculate_rewards``, (W·B, functions); where a call fails on any rank, all ranks save and stop."""
        trainer, failed = self.trainer, None
        funcs = trainer.reward_funcs
        names = trainer.reward_func_names
        rows = [str(row.get("problem", "")) for row in inputs]
        trainer.reward_funcs = [self._watched(f, n, rows) for f, n in zip(funcs, names)]
        self._awaited.clear()
        try:
            with self._loop_watched(len(funcs)):
                per_func = calculate(inputs, prompts, *rest)
        except RewardFailed as error:  # the other ranks wait in TRL's gather
            failed = error
            per_func = gather(torch.full((len(prompts), len(funcs)), torch.nan, device=trainer.accelerator.device))
        finally:
            trainer.reward_funcs = funcs
        self._agree(failed)
        return per_func

    def held_out(self, judge: Any, **columns: Any) -> list[float | None]:
        """``judge``'s verdicts on this rank's held-out completions; where it fails on any rank, all ranks save and stop."""
        failed, verdicts = None, list[float | None]()
        try:
            with _failures(judge, getattr(judge, "__name__", type(judge).__name__), self.limit):
                verdicts = list(within(self.limit, partial(judge, **columns)))
        except RewardFailed as error:  # the other ranks wait
            failed = error
        self._agree(failed)
        return verdicts

    def _agree(self, failed: RewardFailed | None) -> None:
        told = [failed.why if failed else None]
        if self.trainer.accelerator.num_processes > 1:
            told = gather_object(told)
        if why := next((why for why in told if why), None):
            self._stop(failed, why)

    def _watched(self, func: Any, name: str, rows: Sequence[str]) -> Any:
        """``func`` under the limit, what it raises or gives wrongly as a RewardFailed. A reward model is left as it is."""
        if isinstance(func, torch.nn.Module):
            return func
        if is_async_callable(func):

            async def watched_async(**columns: Any) -> list[float | None]:
                self._awaited[name] = func
                with _failures(func, name, self.limit):
                    answer = checked(await _awaited(func(**columns), self.limit), rows)
                del self._awaited[name]
                return answer

            return watched_async

        def watched(**columns: Any) -> list[float | None]:
            with _failures(func, name, self.limit):
                return checked(within(self.limit, partial(func, **columns)), rows)

        return watched

    @contextmanager
    def _loop_watched(self, funcs: int) -> Iterator[None]:
        """An async function that blocks its loop hears no limit of that loop: the wait for it is interrupted here, once every
        function has had its time."""
        in_main = threading.current_thread() is threading.main_thread()
        watched = self.limit is not None and self.trainer._has_async_funcs and in_main
        limit = (self.limit or 0.0) * funcs + GRACE_S
        try:
            with _interrupted_after(limit, self._awaited) if watched else nullcontext():
                yield
        except Overtime as error:
            name, func = next(iter(self._awaited.items()))
            why = f"took longer than reward_timeout_s={self.limit:g} seconds and blocks its event loop"
            raise RewardFailed(func, name, why) from error

    def _stop(self, failed: RewardFailed | None, why: str) -> None:
        saved = self._save()
        if failed is not None and failed.__cause__ is not None and _ours(failed.func):
            raise failed.__cause__  # our fault, so with its traceback
        raise UserError(
            f"{why}; {saved}. Fix it and run again with the same output_dir (in Python: trainer.train("
            "resume_from_checkpoint=True)): it goes on from there."
        ) from (failed and failed.__cause__)

    # ---- the checkpoint --------------------------------------------------------------------------------------------

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sampling draws random numbers and counts tokens: a step that is cut short is to leave no trace of that."""
        trainer = self.trainer
        self._boundary = {
            "step": trainer._step,
            "tokens": state.num_input_tokens_seen,
            "stream": trainer._stream.position if trainer._stream is not None else None,
            "random": (random.getstate(), np.random.get_state(), torch.get_rng_state()),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        }

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._boundary is not None:  # after the log, which empties them
            self._boundary["metrics"] = {k: list(v) for k, v in self.trainer._metrics["train"].items()}

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = state.global_step

    def _save(self) -> str:
        """A checkpoint of the latest finished step, as it would have been then; says which one there is."""
        trainer, at = self.trainer, self._boundary
        step = trainer.state.global_step
        if step == 0:
            return "no step was finished, so there is nothing to save"
        folder = Path(trainer.args.output_dir, f"checkpoint-{step}")
        if self._saved == step:
            return f"{folder} has every finished step"
        if at is None or at["step"] != trainer._step:  # inside an optimizer step that takes several rollout batches
            return f"the latest checkpoint in {trainer.args.output_dir} stands"
        trainer.state.num_input_tokens_seen = at["tokens"]
        if trainer._stream is not None:
            trainer._stream.position = at["stream"] or 0
        if "metrics" in at:
            trainer._metrics["train"].clear()
            trainer._metrics["train"].update(at["metrics"])
        python, numpy, cpu = at["random"]
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if at["cuda"] is not None:
            torch.cuda.set_rng_state_all(at["cuda"])
        trainer._save_checkpoint(trainer.model, None)
        return f"a checkpoint of step {step} is saved in {folder}"


def _ours(func: Any) -> bool:
    return func is verifiable_reward or bool(getattr(func, "built_in", False))


@contextmanager
def _failures(func: Any, name: str, limit: float | None) -> Iterator[None]:
    try:
        with failures(func, name):
            yield
    except Overtime as error:
        raise RewardFailed(func, name, f"took longer than reward_timeout_s={limit:g} seconds") from error


# ---- the limit -----------------------------------------------------------------------------------------------------


def within(limit: float | None, call: Callable[[], Any]) -> Any:
    """``call()``, or Overtime after ``limit`` seconds."""
    if limit is None:
        return call()
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGURG"):
        with _interrupted_after(limit):
            return call()
    return _in_a_thread(limit, call)


async def _awaited(answer: Awaitable[Any], limit: float | None) -> Any:
    """``answer`` within the limit; the thread that waits for this loop is interrupted where the loop itself is blocked."""
    if limit is None:
        return await answer
    try:
        async with asyncio.timeout(limit) as clock:
            return await answer
    except TimeoutError:
        if clock.expired():
            raise Overtime from None
        raise  # the function's own


@contextmanager
def _interrupted_after(limit: float, waits: Sized | None = None) -> Iterator[None]:
    """Overtime in the main thread after ``limit`` seconds and, should it be swallowed, each second from then on. SIGURG is
    ignored by default: one that comes late does nothing. ``waits``: only while there is something in it."""
    over, main = threading.Event(), threading.get_ident()
    expired = False

    def interrupt(number: int, frame: Any) -> None:
        if expired and not over.is_set():
            if waits is None or len(waits):
                raise Overtime
        elif callable(before):  # a limit around this one
            before(number, frame)

    def watch() -> None:
        nonlocal expired
        wait = limit
        while not over.wait(wait):
            expired, wait = True, 1.0
            signal.pthread_kill(main, signal.SIGURG)

    before = signal.signal(signal.SIGURG, interrupt)
    threading.Thread(target=watch, name="reward limit", daemon=True).start()
    try:
        try:
            yield
        finally:
            over.set()
    finally:  # also where the signal came between the call's end and the line above
        over.set()
        signal.signal(signal.SIGURG, signal.SIG_DFL if before is None else before)


def _in_a_thread(limit: float, call: Callable[[], Any]) -> Any:
    """For a trainer outside the main thread, which no signal reaches. The thread has this one's context and grad mode."""
    found: list[tuple[Any, BaseException | None]] = []
    grad, device = torch.is_grad_enabled(), torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> None:
        if device is not None:
            torch.cuda.set_device(device)
        try:
            with torch.set_grad_enabled(grad):
                found.append((call(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="reward", daemon=True)
    thread.start()
    thread.join(limit)
    if not found:
        raise Overtime
    answer, error = found[0]
    if error is not None:
        raise error
    return answer
