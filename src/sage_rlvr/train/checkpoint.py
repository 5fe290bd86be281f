"""What TRL's checkpoints leave out: the place inside the rollout buffer, the buffer, the guide, the prompt stream.

Our file is written before TRL's own, and trainer_state.json last: a checkpoint without a readable one was cut short.
"""

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import torch
from trl.trainer.utils import RepeatSampler

from sage_rlvr.errors import UserError

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


def last_complete(output_dir: str | Path, ours: bool = True) -> str | None:
    """The newest checkpoint that was written to its end, with our state in it if it is ``ours``; one cut short by a kill is
    passed over."""
    numbered = [
        (int(p.name.rpartition("-")[2]), p) for p in Path(output_dir).glob("checkpoint-*") if p.name[11:].isdigit()
    ]
    for _, path in sorted(numbered, reverse=True):
        if _readable(path / "trainer_state.json") and (not ours or state_file(path, 0).is_file()):
            return str(path)
    return None


def set_aside(output_dir: str | Path) -> None:
    """Checkpoints of an earlier run here, into a folder of their own: the newest would be taken for this run's, were it cut
    short."""
    old = sorted(Path(output_dir).glob("checkpoint-*"))
    if old:
        to = next(p for i in count(1) if not (p := Path(output_dir, f"earlier-{i}")).exists())
        to.mkdir()
        for path in old:
            path.rename(to / path.name)


def _readable(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text()), dict)
    except (OSError, ValueError):
        return False


class ResumableSampler(RepeatSampler):
    """TRL's sampler, able to start at a later epoch: its generator is walked through the earlier epochs' shuffles."""

    def set_epoch(self, epoch: int) -> None:
        if self.shuffle:
            self.generator.manual_seed(self.seed)
            for _ in range(epoch):
                torch.randperm(self.num_samples, generator=self.generator)
