"""Ctrl-C and SIGTERM while training: the step is finished and saved, and it is said how to go on. Ctrl-C again ends at once."""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from sage_rlvr.extensions import MODULES

GO_ON = "SAGE_RLVR_GO_ON"  # in the environment of a process that another started: how its user goes on
IN_PYTHON = "run the script again with trainer.train(resume_from_checkpoint=True)"
SAME_S = 0.5  # a launcher may pass on the Ctrl-C that its processes had from the terminal: both are one
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ASKED = (
    "\nCtrl-C: the run finishes this step, saves a checkpoint and ends.\n"
    "Ctrl-C again ends it at once; the steps since the last checkpoint are lost.\n"
)


def go_on(verb: str, argv: Sequence[str]) -> str:
    """How a user goes on with ``sage-rlvr VERB ARGV``: their own command, without what asks for a fresh start."""
    if how := os.environ.get(GO_ON):
        return how
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--resume", nargs="?")
    parser.add_argument("--no_resume", action="store_true")
    words = parser.parse_known_args(argv)[1]
    modules = ["--import", os.environ[MODULES]] if os.environ.get(MODULES) else []
    return "run the same command again:\n  " + shlex.join(["sage-rlvr", *modules, verb, *words])


@contextmanager
def saved_on_signal(trainer: Trainer, how: str) -> Iterator[None]:
    """Around ``trainer.train()``. A run that was told to end leaves with the signal's exit code, 130 or 143, its checkpoint
    written; ``how`` is what the user is told to do to go on. All processes agree, whoever was told."""
    callback = _SaveOnSignal(trainer)
    trainer.add_callback(callback)  # the last: a held-out measurement of the same step comes before it
    try:
        yield
    finally:
        callback.restore()
        trainer.remove_callback(callback)
        for progress in (c for c in trainer.callback_handler.callbacks if hasattr(c, "close")):
            progress.close()  # else the terminal stays without a cursor
    state = trainer.state
    if callback.received and state.global_step < state.max_steps:
        if trainer.accelerator.is_main_process:
            saved = Path(trainer.args.output_dir, f"checkpoint-{state.global_step}")
            print(f"interrupted after step {state.global_step} of {state.max_steps}; saved in {saved}", flush=True)
            print(f"to go on, {how}", flush=True)
        sys.exit(128 + callback.received)


class _SaveOnSignal(TrainerCallback):
    def __init__(self, trainer: Trainer) -> None:
        self.accelerator = trainer.accelerator
        self.received = 0  # the first signal
        self._asked_at: float | None = None
        self._process = os.getpid()
        self._before: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Until here there is nothing to save: Ctrl-C ends at once."""
        for number in SIGNALS:
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup, or a shell's background job: as the user wants it
                continue
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: the host program keeps its own handling
                return

    def _note(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a worker that was forked: its parent decides
            return
        now = time.monotonic()
        if self._asked_at is None:
            self.received, self._asked_at = number, now
            if number == signal.SIGINT and self.accelerator.is_main_process:
                os.write(2, ASKED.encode())  # print is not safe inside a signal handler
        elif number == signal.SIGINT and now - self._asked_at > SAME_S:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        first = self.received
        if self.accelerator.num_processes > 1:
            flags = torch.tensor([float(first == number) for number in SIGNALS], device=self.accelerator.device)
            counts = self.accelerator.reduce(flags, reduction="sum").tolist()
            first = max((number for number, count in zip(SIGNALS, counts) if count), default=0)
        if first:
            self.received = first
            control.should_save = control.should_training_stop = True
        return control

    on_evaluate = on_step_end

    def restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
