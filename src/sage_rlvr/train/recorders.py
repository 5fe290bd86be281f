"""What a forward pass is for: TRL runs the model, and the trainer hands log-probs and entropies, both (B, T), to a recorder."""

from typing import Any

import torch
from torch import Tensor

from sage_rlvr.errors import Diverged
from sage_rlvr.runs.checkpoint import last_complete
from sage_rlvr.train.rollouts import advantages_BT, counted

IN_TRL = ("k3", "k3+")  # estimators TRL computes itself, from the shaped reference


class RolloutRecorder:
    """Of the passes over a fresh rollout batch: the sampling policy's and the reference's."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.passes: list[tuple[Tensor, Tensor | None]] = []

    def wants_entropy(self, model: Any) -> bool:
        tokens = self.trainer.credit.tokens
        needs = self.trainer.guide_needs | (frozenset() if tokens is None else tokens.reads)
        reference_alone = model is self.trainer.ref_model  # with LoRA, one model is both
        return not needs.isdisjoint({"ref_entropies"} if reference_alone else {"entropies", "ref_entropies"})

    def record(self, logps: Tensor, entropies: Tensor | None) -> None:
        self.passes.append((logps, entropies))

    def entropies_of(self, logps: Tensor | None) -> Tensor | None:
        """Those of the pass that gave this very tensor."""
        return next((entropies for recorded, entropies in self.passes if recorded is logps), None)


class LossRecorder:
    """Of the policy's pass inside ``_compute_loss``. Here q enters the loss: the reference in the copied inputs, which TRL reads
    next, becomes log π_ref + log q."""

    def __init__(self, trainer: Any, inputs: dict[str, Any], shaped: dict[str, Any]):
        self.trainer, self.inputs, self.shaped = trainer, inputs, shaped
        self.mask = counted(inputs)  # (B, T), as are all below
        self.ref: Any = inputs.get("ref_per_token_logps")
        self.logps: Any = None
        self.entropies: Any = None
        self.log_q: Tensor | None = None

    def wants_entropy(self, model: Any) -> bool:
        return True

    def record(self, logps: Tensor, entropies: Tensor | None) -> None:
        self.logps, self.entropies = logps, entropies
        tensors = {"log-probs": logps, "entropies": entropies, "reference log-probs": self.ref}
        check_finite(tensors | {"advantages": advantages_BT(self.inputs)}, self.mask, self.trainer)
        if self.trainer.guide is None:
            return
        self.log_q = self.trainer.held_log_q(self.inputs, logps, entropies, self.mask)
        if self.trainer.estimator in IN_TRL:
            self.shaped["ref_per_token_logps"] = self.ref + self.log_q


def check_finite(tensors: dict[str, Tensor | None], mask: Tensor, trainer: Any) -> None:
    """Stops the run at the first NaN or inf of (B, T) tensors on a counted token, naming step, tensor and row."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        bad = ~torch.isfinite(tensor.detach()) & mask.bool()
        if bool(bad.any()):
            row, token = bad.nonzero()[0].tolist()
            raise diverged(f"{name} became {tensor[row, token].item()}", f" (row {row}, token {token})", trainer)


def diverged(what: str, where: str, trainer: Any) -> Diverged:
    saved = last_complete(trainer.args.output_dir)
    fix = f"resume from {saved} with a lower learning_rate or max_grad_norm" if saved else "no checkpoint was saved yet"
    return Diverged(f"{what} at step {trainer.state.global_step}{where}: {fix}.")
