"""A small real run in a process of its own, to be killed (tests/forked.py)."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

from sage_rlvr import cli
from sage_rlvr.launch import run, sft
from sage_rlvr.runs import checkpoint
from sage_rlvr.train import SAGEConfig, SAGETrainer, callbacks

from .. import forked
from . import keeping, server, tiny


class Killed(SAGETrainer):
    """Kills its own process with SIGKILL at a chosen place, tells it to end, or stops it."""

    die_at: tuple | None = None

    def training_step(self, *args):
        if self.die_at == ("step", self.state.global_step):
            os.kill(os.getpid(), signal.SIGKILL)
        for how, number in {"term": signal.SIGTERM, "int": signal.SIGINT}.items():
            if self.die_at == (how, self.state.global_step):
                os.kill(os.getpid(), number)
        if self.die_at == ("stop", self.state.global_step):
            Path(self.args.output_dir, ".stopped").write_text(str(os.getpid()))
            Path(self.args.output_dir, ".stopped").rename(Path(self.args.output_dir, "stopped"))
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().training_step(*args)

    def _save_rng_state(self, output_dir):
        if self.die_at == ("save", self.state.global_step):  # weights and optimizer are written, the rest is not
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_rng_state(output_dir)


def kill_before_the_list(step):
    """Everything of that checkpoint is written, as far as one process can see; only the list of it is not."""
    finish = checkpoint.finish

    def killed(folder):
        if folder.name == f"checkpoint-{step}":
            os.kill(os.getpid(), signal.SIGKILL)
        finish(folder)

    checkpoint.finish = killed


def main(options):
    torch.manual_seed(0)
    die_at = options.pop("die_at", None)
    resume = options.pop("resume", False)
    history = options.pop("history")
    model = options.pop("model")
    args = tiny.config(SAGEConfig, **options)
    if args.use_vllm:
        server.replace()
    data = keeping.dataset(12) if args.keep_from else tiny.dataset(12)
    trainer = Killed(model, tiny.hash_reward, args, data)
    trainer.die_at = tuple(die_at) if die_at else None
    if die_at and die_at[0] == "list":
        kill_before_the_list(die_at[1])
    trainer.train(resume_from_checkpoint=resume)
    if trainer.accelerator.is_main_process:
        with open(history, "w") as f:
            json.dump(trainer.state.log_history, f)


def command(folder, argv, where=None, step=0):
    """``sage-rlvr ARGV`` in that folder, with a Ctrl-C in the middle of one of PLACES (at that step), or two."""
    os.chdir(folder)
    if where is not None:
        owner, name = PLACES[where]
        inner = getattr(owner, name)

        def interrupted(self, *args, **kwargs):
            state = getattr(getattr(self, "trainer", self), "state", None)
            if state is None or state.global_step == step:
                os.kill(os.getpid(), signal.SIGINT)
            while where == "twice" and state.global_step == step:
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGINT)
            return inner(self, *args, **kwargs)

        setattr(owner, name, interrupted)
    sys.exit(cli.main(argv))


def several(folder, argv):
    """The same with ``--accelerate_config``: torchrun's ranks are forked, with the imports that are here."""
    SubprocessHandler._popen = lambda handler, rank, env: forked.Child(forked.module, list(rank), env)
    command(folder, argv)


PLACES = {
    "loading": (run, "build"),
    "sft": (sft.StageTrainer, "training_step"),
    "rl": (SAGETrainer, "training_step"),
    "twice": (SAGETrainer, "training_step"),
    "held out": (callbacks.HeldOutPassAtK, "_evaluate"),
}
