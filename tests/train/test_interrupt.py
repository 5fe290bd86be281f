"""Ctrl-C in ``sage-rlvr train``, from loading to the last step: real processes, real signals."""

import json
import os
import shlex
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sage_rlvr.runs import interrupt
from sage_rlvr.runs.checkpoint import last_complete

from .. import forked
from . import run_tiny, tiny
from .test_run import place  # noqa: F401  (a fixture)

FLAGS = [
    "--config", "tiny.yaml", "--save_steps", "1000", "--held_out", "countdown", "--held_out_rows",
    "2", "--held_out_n", "2", "--held_out_every", "2",
]  # fmt: skip


def train(folder, *argv, where=None, step=0):
    return forked.run(run_tiny.command, str(folder), ["train", *argv], where, step)


def logged(folder):
    """Every log without the clock, the held-out ones too."""
    entries = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    clock = {*tiny.TIMES, "train_runtime", "train_samples_per_second", "train_steps_per_second"}
    return [{k: v for k, v in entry.items() if k not in clock} for entry in entries if "train_runtime" not in entry]


def test_ctrl_c_saves_says_how_to_go_on_and_changes_nothing(place):  # noqa: F811
    """In the SFT stage, in a step, in a held-out measurement; each time the command that was printed is run."""
    whole = train(place, *FLAGS, "--output_dir", "whole/run")
    assert whole.returncode == 0, whole.stderr

    early = train(place, *FLAGS, "--output_dir", "cut/run", where="loading")
    assert early.returncode == 130, early.stderr
    assert early.stderr.rstrip().endswith("sage-rlvr train: interrupted")
    assert "Traceback" not in early.stderr

    argv = [*FLAGS, "--output_dir", "cut 2/run"]
    for where, step, saved in (("sft", 1, "cut 2/sft/checkpoint-2"), ("rl", 0, "cut 2/run/checkpoint-1"),
                               ("held out", 2, "cut 2/run/checkpoint-2")):  # fmt: skip
        cut = train(place, *argv, where=where, step=step)
        assert cut.returncode == 130, cut.stderr
        assert "Traceback" not in cut.stderr
        assert interrupt.ASKED.strip() in cut.stderr
        said = cut.stdout.splitlines()
        at = next(i for i, line in enumerate(said) if line.startswith("interrupted after step"))
        assert said[at].endswith(f"saved in {saved}")
        assert said[at + 1] == "to go on, run the same command again:"
        assert last_complete((place / saved).parent) == str(place / saved)
        first, verb, *argv = shlex.split(said[at + 2])
        assert (first, verb, argv) == ("sage-rlvr", "train", [*FLAGS, "--out", "cut 2/run"])
    done = train(place, *argv)
    assert done.returncode == 0, done.stderr
    assert logged(place / "cut 2" / "run") == logged(place / "whole" / "run")
    weights = [(place / folder / "run" / "adapter_model.safetensors").read_bytes() for folder in ("whole", "cut 2")]
    assert weights[0] == weights[1]


def test_a_second_ctrl_c_ends_at_once(place):  # noqa: F811
    cut = train(place, *FLAGS, where="twice", step=1)
    assert cut.returncode == 130, cut.stderr
    assert "Traceback" not in cut.stderr
    assert cut.stderr.rstrip().endswith("sage-rlvr train: interrupted")
    assert last_complete(place / "runs" / "tiny") is None
    assert not list((place / "runs" / "tiny").glob("*.lock")), "and the folder is free"


@pytest.mark.parametrize(
    ("argv", "again"),
    [
        (["--no_resume", "--beta", "0.1"], "train --beta 0.1"),
        (["--resume", "false", "--task", "my task"], "train --task 'my task'"),
        (["--resume=false", "--resume_from_checkpoint", "x"], "train --resume_from_checkpoint x"),
    ],
)
def test_the_command_that_is_shown_does_not_start_anew(argv, again, monkeypatch):
    monkeypatch.delenv(interrupt.GO_ON, raising=False)
    assert interrupt.go_on("train", argv).splitlines()[-1].strip() == f"sage-rlvr {again}"
    monkeypatch.setenv("SAGE_RLVR_IMPORT", "mine.py")
    assert interrupt.go_on("train", argv).splitlines()[-1].strip() == f"sage-rlvr --import mine.py {again}"


class Trainer:
    """As much of one as a signal needs."""

    def __init__(self, step=1):
        self.accelerator = SimpleNamespace(is_main_process=True, num_processes=1)
        self.args, self.callback_handler = SimpleNamespace(output_dir="out"), SimpleNamespace(callbacks=[])
        self.state, self.control = SimpleNamespace(global_step=step, max_steps=2), SimpleNamespace()

    def add_callback(self, callback):
        self.callback = callback
        callback.on_train_begin(None, None, None)

    def remove_callback(self, callback):
        self.callback.on_step_end(None, None, self.control)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler, lambda number, frame: None])
def test_the_program_keeps_its_own_handlers_and_an_ignored_ctrl_c_stays_ignored(handler):
    """nohup and a shell's background jobs ignore it. A worker that a run forks leaves the signal to its parent."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        trainer = Trainer()
        ends = pytest.raises(SystemExit) if handler is not signal.SIG_IGN else nullcontext()
        with ends as left, interrupt.saved_on_signal(trainer, "do it again"):
            trainer.callback._process += 1  # as in a worker
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)
            trainer.callback._process -= 1
            assert not trainer.callback.received
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is handler
        assert left is None or left.value.code == 130
        with interrupt.saved_on_signal(Trainer(step=2), "do it again"):  # the last step: there is nothing to go on with
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
