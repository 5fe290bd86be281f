"""``anchor_reset``: every N optimizer steps the reference becomes the policy (ProRL, arXiv 2505.24864).

Full fine-tuning: TRL's own copy of the weights into its reference model. An adapter: a copy of what is trained, from the
latest reset, lies in the model while TRL makes its reference pass. No second adapter is added, so that what is saved, sent to
the sampler or held by the optimizer is what it would be without resets. Optimizer and learning rate go on as they were.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback
from trl.trainer.callbacks import SyncRefModelCallback

from sage_rlvr.errors import UserError

METRIC = "sage/anchor_resets"


def check(args: Any) -> None:
    """Of a SAGEConfig."""
    every = args.anchor_reset
    if every and args.beta == 0:
        raise UserError(
            f"anchor_reset={every} with beta=0: there is no reference to reset; set anchor_reset to 0, or beta above 0."
        )
    if every and args.sync_ref_model:
        raise UserError(
            f"anchor_reset={every} and sync_ref_model=True both move the reference: leave one of them out (anchor_reset is "
            "sync_ref_model with ref_model_mixup_alpha=1, for adapters too and resumable)."
        )


def reference_file(checkpoint: str | Path, rank: int) -> Path:
    return Path(checkpoint) / f"sage_reference_{rank}.pt"


class AnchorReset(TrainerCallback):
    """Of one trainer; with ``anchor_reset=0`` it only refuses checkpoints of a run that had resets."""

    def __init__(self, trainer: Any):
        self.trainer, self.every, self.count = trainer, trainer.args.anchor_reset, 0
        self.held: dict[str, Tensor] | None = None  # name → this rank's part of the adapter at the latest reset
        if self.every:
            _check_sharding(trainer)
            trainer.add_callback(self)

    # ---- the reset -------------------------------------------------------------------------------------------------

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the step is logged and saved. Rollouts that are still in use keep the reference log-probs they came with."""
        if state.global_step % self.every == 0:
            self.reset()
        self.trainer._metrics["train"][METRIC] = [float(self.count)]  # so far: no mean over the steps of a log

    @torch.no_grad()
    def reset(self) -> None:
        if self.trainer.ref_model is None:
            self.held = {name: local.clone() for name, local in self._reference().items()}
        else:
            policy, ref = map(self.trainer.accelerator.unwrap_model, (self.trainer.model, self.trainer.ref_model))
            _reshard(policy)
            _reshard(ref)
            SyncRefModelCallback.sync_target_model(policy, ref, 1.0)
        self.count += 1

    @property
    def adapter(self) -> Callable[..., Any] | None:
        """In place of TRL's ``use_adapter``, which makes a model with an adapter its own reference; None leaves TRL's."""
        return self._use_held if self.held is not None else None

    @contextmanager
    def _use_held(self, model: Any, adapter_name: str | None) -> Iterator[None]:
        own = self._put(self.held)  # type: ignore[arg-type]
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """``weights`` into the model, by copies: optimizers and gradient buckets hold on to its parameters. What was there."""
        places = self._reference()
        before = {name: local.clone() for name, local in places.items()}
        for name, local in places.items():
            local.copy_(weights[name])
        return before

    def _reference(self) -> dict[str, Tensor]:
        """name → this rank's part of what the reference consists of: the reference model, or what an adapter trains."""
        trainer = self.trainer
        full = trainer.ref_model is not None
        model = trainer.accelerator.unwrap_model(trainer.ref_model if full else trainer.model)
        _reshard(model)
        return {name: _local(p) for name, p in model.named_parameters() if full or p.requires_grad}

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def save(self, checkpoint: Path) -> list[int]:
        """Writes the reference, if it is no longer that of the start; [N, resets so far]."""
        rank = self.trainer.accelerator.process_index
        if self.count and (rank == 0 or self._sharded()):
            path = reference_file(checkpoint, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            weights = self.held if self.held is not None else self._reference()
            torch.save({name: weight.detach().cpu() for name, weight in weights.items()}, path.with_suffix(".part"))
            os.replace(path.with_suffix(".part"), path)
        return [self.every, self.count]

    @torch.no_grad()
    def load(self, checkpoint: str | Path, saved: list[int]) -> None:
        every, count = saved
        if every != self.every:
            raise UserError(
                f"{checkpoint} was written with anchor_reset={every} and this run has {self.every}: set it back, or start a new "
                "run from its weights."
            )
        self.count = count
        if not count:
            return
        path = reference_file(checkpoint, self.trainer.accelerator.process_index if self._sharded() else 0)
        if not path.is_file():
            raise UserError(
                f"{checkpoint} has no {path.name}, the reference of its latest anchor reset: resume from another checkpoint, or "
                "start a new run from its weights."
            )
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        places = self._reference()
        if {k: v.shape for k, v in stored.items()} != {k: v.shape for k, v in places.items()}:
            raise UserError(
                f"{path} holds the reference of another model or adapter: start a new run from its weights."
            )
        if self.trainer.ref_model is None:
            self.held = {name: torch.empty_like(local).copy_(stored[name]) for name, local in places.items()}
        else:
            for name, local in places.items():
                local.copy_(stored[name])

    def _sharded(self) -> bool:
        return any(isinstance(p, DTensor) for p in (self.trainer.ref_model or self.trainer.model).parameters())


def _local(parameter: nn.Parameter) -> Tensor:
    """This rank's shard, or the whole; to be written to."""
    return parameter.data.to_local() if isinstance(parameter.data, DTensor) else parameter.data


def _reshard(model: nn.Module) -> None:
    """FSDP2 may hold gathered copies after a pass: they would hide what is written into the shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _check_sharding(trainer: Any) -> None:
    version_1 = trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2
    if trainer.is_deepspeed_enabled or version_1:
        raise UserError(
            f"anchor_reset={trainer.args.anchor_reset} is not made for {'FSDP1' if version_1 else 'DeepSpeed'}, whose weights "
            "are copied in ways of their own: use accelerate_config ddp or fsdp2, or set anchor_reset to 0."
        )
