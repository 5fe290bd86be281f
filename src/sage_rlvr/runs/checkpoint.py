"""What TRL's checkpoints leave out: the place inside the rollout buffer, the buffer, the guide, the prompt stream; and which
checkpoints are whole (manifest.py)."""

import os
import shutil
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_utils import rotate_checkpoints
from trl.trainer.utils import RepeatSampler

from sage_rlvr.errors import UserError
from sage_rlvr.runs.manifest import CUT_SHORT, begin, fault, finish

VERSION = 1


def state_file(checkpoint: str | Path, rank: int) -> Path:
    return Path(checkpoint) / f"sage_state_{rank}.pt"


def save_state(checkpoint: str | Path, rank: int, state: dict[str, Any]) -> None:
    path = state_file(checkpoint, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save({"version": VERSION, **state}, part)
    os.replace(part, path)


def load_state(checkpoint: str | Path, rank: int, world: int = 1) -> dict[str, Any]:
    path = state_file(checkpoint, rank)
    if not path.is_file():
        raise UserError(
            f"{checkpoint} has no {path.name}: it was not written by SAGETrainer on this many processes; resume with the "
            "number of processes that wrote it, or start a new run from its weights."
        )
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state["version"] != VERSION:
        raise UserError(
            f"{path} is of version {state['version']}, this release reads {VERSION}: start from its weights."
        )
    if state.get("world", world) != world:
        raise UserError(
            f"{checkpoint} was written by {state['world']} processes and this run has {world}: resume with as many, or start a "
            "new run from its weights."
        )
    return state


def last_complete(output_dir: str | Path) -> str | None:
    """The newest checkpoint that is whole."""
    return next((str(path) for path in _newest_first(output_dir) if not fault(path)), None)


def take_last_complete(output_dir: str | Path) -> str | None:
    """The same, for a run that goes on from it: newer ones that are not whole are named and put out of the way, where neither
    the rotation nor a later resume counts them. One that a kill cut short is removed, unless there is nothing else."""
    whole = last_complete(output_dir)
    go_on = f"going on from {Path(whole).name}" if whole else "there is no other, the run starts from its beginning"
    for path in takewhile(lambda path: str(path) != whole, _newest_first(output_dir)):
        wrong = fault(path)
        if whole and wrong == CUT_SHORT:
            shutil.rmtree(path)
            print(f"{path} {wrong}; {go_on}")
        else:
            aside = _moved(path, Path(output_dir, "damaged"))
            print(f"{path} {wrong}; it is kept as {aside}; {go_on}")
    return whole


def refuse_damaged(checkpoint: str | Path) -> None:
    """For one that was asked for by name."""
    if wrong := fault(Path(checkpoint)):
        raise UserError(
            f"{checkpoint} {wrong}: resume from another (resume_from_checkpoint=True takes the newest whole one)."
        )


def _newest_first(output_dir: str | Path) -> list[Path]:
    numbered = [p for p in Path(output_dir).glob("checkpoint-*") if p.name[11:].isdigit()]
    return sorted(numbered, key=lambda p: int(p.name[11:]), reverse=True)


def _moved(path: Path, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    shutil.rmtree(to / path.name, ignore_errors=True)  # an earlier one of the same step
    return path.rename(to / path.name)


def set_aside(output_dir: str | Path) -> None:
    """Checkpoints of an earlier run here, into a folder of their own: the newest would be taken for this run's, were it cut
    short."""
    old = sorted(Path(output_dir).glob("checkpoint-*"))
    if old:
        to = next(p for i in count(1) if not (p := Path(output_dir, f"earlier-{i}")).exists())
        to.mkdir()
        for path in old:
            path.rename(to / path.name)


class WholeCheckpoints(Trainer):
    """Mixed into a trainer: its checkpoints end with a manifest, and older ones are deleted after that alone."""

    def save_beside(self, checkpoint: Path) -> None:
        """What this process adds to a checkpoint."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        output_dir = self._get_output_dir(trial=trial)
        checkpoint = Path(output_dir) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            begin(checkpoint)
        self.save_beside(checkpoint)
        self.accelerator.wait_for_everyone()
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # every process has written its part
        if self.args.should_save:
            finish(checkpoint)
            rotate_checkpoints(output_dir, limit, self.state.best_model_checkpoint, use_mtime=True)


class ResumableSampler(RepeatSampler):
    """TRL's sampler, able to start at a later epoch: its generator is walked through the earlier epochs' shuffles."""

    def set_epoch(self, epoch: int) -> None:
        if self.shuffle:
            self.generator.manual_seed(self.seed)
            for _ in range(epoch):
                torch.randperm(self.num_samples, generator=self.generator)
