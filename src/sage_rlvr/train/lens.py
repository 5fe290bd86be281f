"""What a forward pass is for: the trainer looks through one of these while TRL runs the model."""

from typing import Any

import torch
from torch import Tensor

from sage_rlvr.errors import Diverged
from sage_rlvr.runs.checkpoint import last_complete
from sage_rlvr.train.rollouts import counted

IN_TRL = ("k3", "k3+")  # estimators TRL computes itself, from the shaped reference


class RolloutLens:
    """Keeps the log-probs and entropies of the passes over a fresh rollout batch: the sampling policy's and the reference's."""

    def __init__(self, trainer: Any):
        self.trainer, self.seen = trainer, []  # type: ignore[var-annotated]

    def wants_entropy(self, model: Any) -> bool:
        tokens = self.trainer.credit.tokens
        needs = self.trainer.guide_needs | (frozenset() if tokens is None else tokens.reads)
        asked = (
            {"ref_entropies"} if model is self.trainer.ref_model else {"entropies", "ref_entropies"}
        )  # LoRA: one model
        return not needs.isdisjoint(asked)

    def see(self, logps: Tensor, entropies: Tensor | None) -> None:
        self.seen.append((logps, entropies))

    def entropies_of(self, logps: Tensor | None) -> Tensor | None:
        return next((h for seen, h in self.seen if seen is logps), None)


class LossLens:
    """Sees the policy inside ``_compute_loss`` and puts the shaped reference into the copied inputs."""

    def __init__(self, trainer: Any, inputs: dict[str, Any], shaped: dict[str, Any]):
        self.trainer, self.inputs, self.shaped = trainer, inputs, shaped
        self.mask = counted(inputs)
        self.ref: Any = inputs.get("ref_per_token_logps")
        self.logps: Tensor | None = None
        self.entropies: Tensor | None = None
        self.log_q: Tensor | None = None

    def wants_entropy(self, model: Any) -> bool:
        return True

    def see(self, logps: Tensor, entropies: Tensor | None) -> None:
        self.logps, self.entropies = logps, entropies
        tensors = {"log-probs": logps, "entropies": entropies, "reference log-probs": self.ref}
        check_finite(tensors | {"advantages": self.inputs["advantages"]}, self.mask, self.trainer)
        if self.trainer.guide is None:
            return
        self.log_q = self.trainer.held_log_q(self.inputs, logps, entropies, self.mask)
        if self.trainer.estimator in IN_TRL:
            self.shaped["ref_per_token_logps"] = self.ref + self.log_q


def check_finite(tensors: dict[str, Tensor | None], mask: Tensor, trainer: Any) -> None:
    """Stops the run at the first NaN or inf on a counted token, naming step, tensor and the checkpoint to resume from."""
    counted = mask.bool()
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        bad = ~torch.isfinite(tensor.detach())
        bad = bad & (counted if bad.dim() == 2 else counted.any(1))
        if bool(bad.any()):
            place = bad.nonzero()[0].tolist()
            saved = last_complete(trainer.args.output_dir)
            mend = f"resume from {saved} with a lower learning_rate or max_grad_norm"
            way = mend if saved else "no checkpoint was saved yet"
            where = f" (row {place[0]}" + (f", token {place[1]})" if len(place) > 1 else ")") if name != "loss" else ""
            value = tensor[tuple(place)].item()
            raise Diverged(f"{name} became {value} at step {trainer.state.global_step}{where}: {way}.")
