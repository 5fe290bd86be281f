"""The loss seam: verl's own loss around a current-policy guide, or with a penalty that verl does not have.

Installed with ``set_loss_fn``; runs on the workers, once per micro-batch. verl's loss is called, never copied: where verl has
the estimator it gets a shallow copy of the data whose ``ref_log_prob`` is ref + log q; where it has not, it runs with its KL
off and our term is added under its own normaliser, so that ``kl_loss_coef`` means the same on both seams.
"""

import copy
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

from sage_rlvr.anchor import anchor_penalty
from sage_rlvr.integrations.verl import shape
from sage_rlvr.integrations.verl.options import Options

LOG_Q, ROWS = "sage_log_q", "sage_rows"  # fields the driver puts into TransferQueue
KEY, STEP, MAX_STEPS = "sage_key", "sage_step", "sage_max_steps"  # what it says with each update


class SageLoss:
    """verl's loss function for one actor: ``loss(model_output=…, data=…, dp_group=…)`` → (loss, metrics)."""

    def __init__(self, config: Any, options: Options, entropy_asked: bool):
        """``config`` is verl's ActorConfig; ``entropy_asked``: the user, not we, had the update compute entropies."""
        self.config, self.options, self.entropy_asked = config, options, entropy_asked
        self.without_kl = copy.copy(config)
        object.__setattr__(self.without_kl, "use_kl_loss", False)  # verl's configs are frozen
        object.__setattr__(self.without_kl, "global_batch_info", {})
        self.guide = options.make_guide()
        self.held = self.guide is not None and options.hold  # log q is the driver's

    def __call__(
        self, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        lengths = data["response_mask"]  # nested (B, j): the shape of every per-token field
        wanted = ["response_mask", "old_log_probs", "ref_log_prob", *[LOG_Q] * self.held]
        padded = data.select(*wanted).to_padded_tensor()
        mask = padded["response_mask"].bool()
        ref = padded["ref_log_prob"].float()
        logps = no_padding_2_padding(model_output["log_probs"], data)  # (B, T), with gradient
        log_q = padded[LOG_Q] if self.held else self._log_q(model_output, data, logps.detach(), ref, mask)
        if not self.entropy_asked:
            model_output = {k: v for k, v in model_output.items() if k != "entropy"}
        if self.options.own_loss:
            loss, metrics = ppo_loss(self.without_kl, model_output, data, dp_group)
            # not clamped at 10 as verl's k3 is: a clamp under π/π_old would turn the gradient's sign
            old = padded["old_log_probs"] if self.options.estimator == "k3+" else None
            penalty = anchor_penalty(logps, ref, log_q, self.options.estimator, old_logps=old)  # (B, T)
            term = agg_loss(penalty, mask, self.config.loss_agg_mode, **self.without_kl.global_batch_info)
            loss = loss + self.config.kl_loss_coef * term
            metrics["kl_loss"] = Metric(value=term, aggregation=AggregationType.SUM)
            metrics["kl_coef"] = self.config.kl_loss_coef
        else:
            shaped = data.copy()  # shallow: the batch in verl's hands is never changed
            shaped["ref_log_prob"] = response_to_nested(ref + log_q, lengths)
            loss, metrics = ppo_loss(self.config, model_output, shaped, dp_group)
        share = float(mask.sum()) * data["dp_size"] / max(data["batch_num_tokens"], 1)
        measured = shape.measure(logps.detach(), ref, log_q, mask, self.options.estimator)
        return loss, metrics | _over_the_mini_batch(measured, share)

    def _log_q(
        self, model_output: dict[str, Any], data: TensorDict, logps: Tensor, ref: Tensor, mask: Tensor
    ) -> Tensor:
        """The guide looks at the policy as it is now."""
        if self.guide is None:
            return torch.zeros_like(ref)
        entropies = None
        if "entropies" in self.guide.needs:
            entropies = no_padding_2_padding(model_output["entropy"], data).detach()
        return shape.log_q(
            self.guide, logps, ref, mask, entropies, data[ROWS] if self.guide.stochastic else None,
            seed=tu.get_non_tensor_data(data, KEY, None), step=tu.get_non_tensor_data(data, STEP, None),
            max_steps=tu.get_non_tensor_data(data, MAX_STEPS, None),
        )  # fmt: skip


def _over_the_mini_batch(measured: dict[str, float], share: float) -> dict[str, Metric]:
    """Means of a micro-batch, weighted by its share of the tokens: verl sums over micro-batches and averages over ranks."""
    ends = {"sage/q_min": AggregationType.MIN, "sage/q_max": AggregationType.MAX}
    return {
        name: Metric(value=value if name in ends else value * share, aggregation=ends.get(name, AggregationType.SUM))
        for name, value in measured.items()
    }
