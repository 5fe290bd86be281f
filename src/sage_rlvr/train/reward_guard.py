"""A reward function that raises or blocks: the run stops on every rank, with a checkpoint and a sentence that names it.

What can be interrupted: whatever the main thread runs or waits for, by a signal: Python code, sleeps, reads, locks, an async
function that blocks its event loop. An async function that awaits is cancelled by its loop first. What cannot: code in C that
never comes back to the interpreter, and rewards of a trainer that runs outside the main thread.
"""

import asyncio
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

GRACE_S = 2.0  # for an async function to be cancelled by its own loop, before the main thread is interrupted
LOOK_S = 0.25  # how often running calls are looked at
AGAIN_S = 1.0  # after an interrupt, should it be swallowed


class Overtime(BaseException):
    """Raised inside a reward call whose time is up; no Exception, so that ``except Exception`` there does not swallow it."""


class RewardGuard(TrainerCallback):
    """Calls the trainer's reward functions, each within ``limit`` seconds (None: without a limit)."""

    def __init__(self, trainer: Any, limit: float | None):
        self.trainer, self.limit = trainer, limit
        self._running: dict[object, tuple[float, Any, str]] = {}  # call → when it is late, function, name
        self._boundary: dict[str, Any] | None = None  # what a checkpoint of the latest finished step holds
        self._saved = -1  # the step of the latest checkpoint

    def rewards(self, calculate: Callable[..., Tensor], inputs: Any, prompts: Any, *rest: Any) -> Tensor:
        """TRL's ``_calculate_rewards``, (W·B, functions); where a call fails on any rank, all ranks save and stop."""
        trainer, failed = self.trainer, None
        funcs = trainer.reward_funcs
        rows = [str(row.get("problem", "")) for row in inputs]
        trainer.reward_funcs = [self._watched(f, n, rows) for f, n in zip(funcs, trainer.reward_func_names)]
        try:
            with self._interrupts():
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
            with self._interrupts(), self._call(judge, getattr(judge, "__name__", type(judge).__name__)):
                verdicts = list(judge(**columns))
        except RewardFailed as error:  # the other ranks wait
            failed = error
        self._agree(failed)
        return verdicts

    def _agree(self, failed: RewardFailed | None) -> None:
        cause = failed.__cause__ if failed is not None else None
        our_fault = failed is not None and cause is not None and _ours(failed.func)  # then with its traceback
        self.stop(failed.why if failed else None, cause, as_it_is=our_fault)

    def stop(self, why: str | None, cause: BaseException | None = None, as_it_is: bool = False) -> None:
        """Every process comes here; if one has a reason, all save and stop. ``as_it_is`` raises this process' ``cause``."""
        reasons = [why]
        if self.trainer.accelerator.num_processes > 1:
            reasons = gather_object(reasons)
        if not any(reasons):
            return
        saved = self._save()
        if cause is not None and as_it_is:
            raise cause
        raise UserError(
            f"{next(filter(None, reasons))}; {saved}. Fix it and run the same command again (in Python: "
            "trainer.train(resume_from_checkpoint=True))."
        ) from cause

    # ---- calls and their limit -------------------------------------------------------------------------------------

    def _watched(self, func: Any, name: str, rows: Sequence[str]) -> Any:
        """``func`` under the limit, what it raises or gives wrongly as a RewardFailed. A reward model is left as it is."""
        if isinstance(func, torch.nn.Module):
            return func

        async def watched_async(**columns: Any) -> list[float | None]:
            with self._call(func, name, GRACE_S):
                try:
                    async with asyncio.timeout(self.limit) as clock:
                        return checked(await func(**columns), rows)
                except TimeoutError as error:
                    raise Overtime if clock.expired() else error from None

        def watched(**columns: Any) -> list[float | None]:
            with self._call(func, name):
                return checked(func(**columns), rows)

        return watched_async if is_async_callable(func) else watched

    @contextmanager
    def _call(self, func: Any, name: str, grace: float = 0.0) -> Iterator[None]:
        call = object()
        if self.limit is not None:
            self._running[call] = time.monotonic() + self.limit + grace, func, name
        try:
            with failures(func, name):
                yield
        except Overtime as error:
            raise self._late(func, name) from error
        finally:
            self._running.pop(call, None)

    def _late(self, func: Any, name: str, more: str = "") -> RewardFailed:
        return RewardFailed(func, name, f"took longer than reward_timeout_s={self.limit:g} seconds{more}")

    def _overdue(self) -> list[tuple[float, Any, str]]:
        return [call for call in list(self._running.values()) if call[0] < time.monotonic()]

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """While a call in the block is late, Overtime in the main thread, which runs it or waits for its loop; again and again,
        should it be swallowed. SIGURG is ignored by default: one that comes late does nothing."""
        in_main = threading.current_thread() is threading.main_thread()
        if self.limit is None or not in_main or not hasattr(signal, "SIGURG"):
            yield
            return
        over, main = threading.Event(), threading.get_ident()

        def interrupt(number: int, frame: Any) -> None:
            for _, func, name in self._overdue():
                raise Overtime(func, name)

        def watch() -> None:
            pause = LOOK_S
            while not over.wait(pause):
                pause = AGAIN_S if self._overdue() else LOOK_S
                if pause == AGAIN_S:
                    signal.pthread_kill(main, signal.SIGURG)

        before = signal.signal(signal.SIGURG, interrupt)
        threading.Thread(target=watch, name="reward limit", daemon=True).start()
        try:
            try:
                yield
            except Overtime as error:  # a function that runs here would have met it: this one is awaited
                func, name = error.args
                raise self._late(func, name, " and blocks its event loop") from error
            finally:
                self._running.clear()
        finally:  # also where the signal came between the call's end and the line above
            self._running.clear()
            over.set()
            signal.signal(signal.SIGURG, before or signal.SIG_DFL)

    # ---- the checkpoint --------------------------------------------------------------------------------------------

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sampling draws random numbers and counts tokens: a step that is cut short is to leave no trace of that."""
        trainer = self.trainer
        self._boundary = {
            "step": trainer._step,
            "tokens": state.num_input_tokens_seen,
            "stream": trainer._stream.position if trainer._stream is not None else 0,
            "restore": random_state(),
        }

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._boundary is not None:  # after the log, which empties them
            self._boundary["metrics"] = {k: list(v) for k, v in self.trainer._metrics["train"].items()}

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = state.global_step

    def _save(self) -> str:
        """A checkpoint of the latest finished step, as it would have been then; answers with which one there is."""
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
            trainer._stream.position = at["stream"]
        if "metrics" in at:
            trainer._metrics["train"].clear()
            trainer._metrics["train"].update(at["metrics"])
        at["restore"]()
        trainer._save_checkpoint(trainer.model, None)
        return f"a checkpoint of step {step} is saved in {folder}"


def _ours(func: Any) -> bool:
    return func is verifiable_reward or bool(getattr(func, "built_in", False))


def random_state() -> Callable[[], None]:
    """The state of every generator of this process now; called, it puts them back there."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return restore
