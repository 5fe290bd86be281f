"""A GRPOTrainer that goes on from a checkpoint as if nothing had happened, also inside a rollout buffer."""

import sys
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer

from sage_rlvr.anchor import Guide
from sage_rlvr.train import rollouts
from sage_rlvr.train.callbacks import SaveOnSigterm
from sage_rlvr.train.checkpoint import ResumableSampler, last_complete, load_state, save_state


class ResumableTrainer(GRPOTrainer):
    guide: Guide | None
    _stream: rollouts.PromptStream | None  # of DAPO's new prompts
    _sigterm: SaveOnSigterm

    def _get_train_sampler(self, dataset: Any = None) -> ResumableSampler:
        theirs = super()._get_train_sampler(dataset)
        names = ("data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed")
        return ResumableSampler(**{name: getattr(theirs, name) for name in names})

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        inside = self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        state = {
            "step": self._step,
            "world": self.accelerator.num_processes,
            "buffer": self._buffered_inputs if inside else None,
            "metrics": {k: list(v) for k, v in self._metrics["train"].items()},
            "stream": self._stream.position if self._stream is not None else None,
            "guide": self.guide.state_dict() if self.guide is not None else None,
        }
        save_state(folder, self.accelerator.process_index, state)
        self.accelerator.wait_for_everyone()  # trainer_state.json, written next, says that all ranks have saved
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        state = load_state(checkpoint, self.accelerator.process_index, self.accelerator.num_processes)
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.guide is not None and state["guide"] is not None:
            self.guide.load_state_dict(state["guide"])
        device = self.accelerator.device
        on_device = lambda x: x.to(device) if isinstance(x, Tensor) else x  # noqa: E731
        self._step = state["step"]
        if state["buffer"] is not None:
            self._buffered_inputs = [{k: on_device(v) for k, v in part.items()} for part in state["buffer"]]
        for name, values in state["metrics"].items():
            self._metrics["train"][name].extend(values)
        if state["stream"] is not None:
            self._stream = rollouts.PromptStream(self.train_dataset, self.args.seed)
            self._stream.position = state["stream"]

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """TRL's train. ``resume_from_checkpoint=True`` takes the newest checkpoint that is whole, or starts if there is none."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete(self.args.output_dir)
        if resume_from_checkpoint and not (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            state = TrainerState.load_from_json(str(Path(resume_from_checkpoint, TRAINER_STATE_NAME)))
            if (
                state.global_step >= self.args.max_steps > 0
            ):  # all that is left is to save: one step more would be taken
                self._load_from_checkpoint(resume_from_checkpoint)
                self.state = state
                return TrainOutput(state.global_step, 0.0, {})
        out = super().train(resume_from_checkpoint, *args, **kwargs)
        if self._sigterm.received and self.state.global_step < self.state.max_steps:
            sys.exit(143)  # what SIGTERM would have done, now that the checkpoint is on disk
        return out
