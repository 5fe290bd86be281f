"""A GRPOTrainer that goes on from a checkpoint as if nothing had happened, also inside a rollout buffer."""

from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from torch import Tensor
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer

from sage_rlvr.anchor import Guide
from sage_rlvr.runs import interrupt, writer
from sage_rlvr.runs.checkpoint import (
    ResumableSampler,
    WholeCheckpoints,
    load_state,
    refuse_damaged,
    save_state,
    take_last_complete,
)


class ResumableTrainer(WholeCheckpoints, GRPOTrainer):
    guide: Guide | None
    credit: Any  # of train/, whose trainer this is the base of, as the next five
    rehearsal: Any
    ahead: Any
    prompt_stream: Any  # the class of _stream, DAPO's new prompts
    _stream: Any
    _anchor_reset: Any
    go_on: str = interrupt.IN_PYTHON  # what a user who interrupts the run is told to do

    def _get_train_sampler(self, dataset: Any = None) -> ResumableSampler:
        theirs = super()._get_train_sampler(dataset)
        names = ("data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed")
        return ResumableSampler(**{name: getattr(theirs, name) for name in names})

    def save_beside(self, checkpoint: Path) -> None:
        inside = self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        state = {
            "step": self._step,
            "world": self.accelerator.num_processes,
            "buffer": self._buffered_inputs if inside else None,
            "metrics": {k: list(v) for k, v in self._metrics["train"].items()},
            "stream": self._stream.position if self._stream is not None else None,
            "guide": self.guide.state_dict() if self.guide is not None else None,
            "advantage": self.credit.advantage.state_dict(),
            "anchor_reset": self._anchor_reset.save(checkpoint),
            "ahead": self.ahead.state_dict() if self.ahead is not None else None,
            "kept": self.rehearsal.digest if self.rehearsal is not None else None,
        }
        save_state(checkpoint, self.accelerator.process_index, state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        state = load_state(checkpoint, self.accelerator.process_index, self.accelerator.num_processes)
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.rehearsal is not None:
            self.rehearsal.refuse_others(state["kept"], checkpoint)
        if self.guide is not None and state["guide"] is not None:
            self.guide.load_state_dict(state["guide"])
        self.credit.advantage.load_state_dict(state["advantage"])
        if self.ahead is not None and state.get("ahead") is not None:
            self.ahead.load_state_dict(state["ahead"])
        self._anchor_reset.load(checkpoint, state["anchor_reset"])
        device = self.accelerator.device
        on_device = lambda x: x.to(device) if isinstance(x, Tensor) else x  # noqa: E731
        self._step = state["step"]
        if state["buffer"] is not None:
            self._buffered_inputs = [{k: on_device(v) for k, v in part.items()} for part in state["buffer"]]
        for name, values in state["metrics"].items():
            self._metrics["train"][name].extend(values)
        if state["stream"] is not None:
            self._stream = self.prompt_stream(self.train_dataset, self.args.seed)
            self._stream.position = state["stream"]

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """The adapter that is trained, alone. Where one was given, TRL keeps a frozen copy beside it, "ref". Saved, that is a
        folder nobody asked for; and on resume transformers loads it alone, and not the trained one."""
        adapters = self.model.peft_config if is_peft_model(self.model) else {}
        aside = adapters.pop("ref", None)
        try:
            super()._save(output_dir, state_dict)
        finally:
            if aside is not None:
                adapters["ref"] = aside

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """TRL's train. ``resume_from_checkpoint=True`` takes the newest checkpoint that is whole, or starts if there is none."""
        with writer.only_writer(self.args.output_dir):
            return self._train_alone(self._checkpoint_to_take(resume_from_checkpoint), *args, **kwargs)

    def _checkpoint_to_take(self, asked: str | bool | None) -> str | None:
        """One answer for all processes: the first looks."""
        if not asked:
            return None
        if self.accelerator.is_main_process:
            if asked is True:
                asked = take_last_complete(self.args.output_dir)
            else:
                refuse_damaged(asked)
        return writer.same_everywhere(asked)

    def _train_alone(self, checkpoint: str | None, *args: Any, **kwargs: Any) -> Any:
        if checkpoint and not (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            state = TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME)))
            if state.global_step >= self.args.max_steps > 0:  # transformers would run one more step
                self._load_from_checkpoint(checkpoint)
                self.state = state
                return TrainOutput(state.global_step, 0.0, {})
        if self.ahead is not None:
            self.ahead.forget()
        with interrupt.saved_on_signal(self, self.go_on):
            out = super().train(checkpoint, *args, **kwargs)
        if self.ahead is not None:
            self.ahead.wait()
        return out
