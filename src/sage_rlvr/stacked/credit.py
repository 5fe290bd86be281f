"""One run's loss: advantage, guide and penalty by the run's SAGEConfig, over its rows of the stack.

Shapes as in train/trainer.py: B = P·G rows, T columns. Every update is on-policy: the policy's own pass is the sampling pass.
"""

import hashlib
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.anchor import Signals, anchor_penalty, anchor_reward, noise
from sage_rlvr.errors import UserError
from sage_rlvr.train.config import SAGEConfig
from sage_rlvr.train.credit import mean_logps

# what the stack computes; every other field must have its default, and those of QUIET may say what they like
READ = {
    "max_steps", "per_device_train_batch_size", "num_generations", "max_completion_length", "learning_rate", "warmup_steps",
    "lr_scheduler_type", "weight_decay", "max_grad_norm", "loss_type", "beta", "guide", "guide_args", "guide_center",
    "anchor_estimator", "advantage", "advantage_args", "scale_rewards", "entropy_coef", "seed", "adam_beta1", "adam_beta2",
    "adam_epsilon",
}  # fmt: skip
QUIET = {
    "output_dir", "bf16", "use_cpu", "gradient_checkpointing", "dataloader_pin_memory", "report_to", "logging_steps",
    "save_steps", "save_total_limit", "disable_dropout", "use_bias_correction_kl", "generation_batch_size", "run_name",
    "steps_per_generation", "tf32", "accelerator_config", "disable_tqdm", "temperature",
}  # fmt: skip
LOSSES = {"bnpo", "dr_grpo", "grpo"}


def refuse(args: SAGEConfig, run: str) -> None:
    """What the stack has no code for, by name."""
    plain = SAGEConfig(output_dir="", use_cpu=True)
    odd = [
        f.name for f in fields(args) if f.name not in READ | QUIET and getattr(args, f.name) != getattr(plain, f.name)
    ]
    odd += ["temperature"] * (args.temperature != 1.0) + ["loss_type"] * (args.loss_type not in LOSSES)
    odd += ["steps_per_generation"] * (args.steps_per_generation != args.gradient_accumulation_steps)
    odd += ["advantage"] * (args.make_advantage().token_part is not None)
    if odd:
        said = ", ".join(f"{name}={getattr(args, name)!r}" for name in odd)
        raise UserError(
            f"run {run}: the stacked engine has no {said}: leave --engine out, or take that out of the study."
        )


@dataclass
class Batch:
    """A run's rollouts of one step, and the policy that made them."""

    logps: Tensor  # (B, T), with gradient
    entropies: Tensor  # (B, T), with gradient
    ref_logps: Tensor  # (B, T)
    mask: Tensor  # (B, T) bool
    hidden: Tensor  # (B, T + 1, D)
    rewards: Tensor  # (B,) as trained on
    answers: list[str | None] | None  # which solution each is, where the advantage reads that


class Credit:
    def __init__(self, args: SAGEConfig):
        self.args, self.guide, self.advantage = args, args.make_guide(), args.make_advantage()
        self.group = args.num_generations

    @property
    def reads_answers(self) -> bool:
        return "answers" in self.advantage.needs

    def loss(self, b: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss that SAGETrainer has for these rollouts, and what the log says."""
        args, logps = self.args, b.logps.detach()
        advantage = self.advantages(b, logps, step)
        log_q = self.log_q(b, logps, step)
        if args.anchor_estimator == "k1-reward" and args.beta:
            bonus = anchor_reward(logps, b.ref_logps, log_q, b.mask).view(-1, self.group)
            advantage = advantage + args.beta * (bonus - bonus.mean(1, keepdim=True)).flatten()
        ratio = (b.logps - logps).exp()  # 1, with the gradient of log π
        per_token = -ratio * advantage[:, None]
        k3 = anchor_penalty(logps, b.ref_logps, torch.zeros_like(log_q))  # for the log: to the plain reference
        if args.beta and args.anchor_estimator != "k1-reward":
            per_token = per_token + args.beta * anchor_penalty(b.logps, b.ref_logps, log_q, args.anchor_estimator)
        loss = self.normed(per_token, b.mask)
        if args.entropy_coef:
            loss = loss - args.entropy_coef * over(b.entropies, b.mask)
        return loss, {
            "loss": loss.detach(),
            "reward": b.rewards.mean(),
            "entropy": over(b.entropies.detach(), b.mask),
            "kl_ref": over(k3, b.mask),
            "completions/mean_length": b.mask.sum(1).float().mean(),
        }

    def advantages(self, b: Batch, logps: Tensor, step: int) -> Tensor:
        """(B,)"""
        given: dict[str, Any] = {"lengths": b.mask.sum(1)}
        if "logps" in self.advantage.needs:
            given["logps"] = mean_logps(logps, b.mask)
        if "ref_logps" in self.advantage.needs:
            given["ref_logps"] = mean_logps(b.ref_logps, b.mask)
        if self.reads_answers:
            given["answers"] = b.answers
        scale = self.args.scale_rewards
        return self.advantage(b.rewards, self.group, step=step, max_steps=self.args.max_steps, scale=scale, **given)

    def log_q(self, b: Batch, logps: Tensor, step: int) -> Tensor:
        """(B, T)"""
        if self.guide is None or not self.args.beta:
            return torch.zeros_like(logps)
        signals = Signals(
            logps=logps,
            ref_logps=b.ref_logps,
            mask=b.mask,
            entropies=b.entropies.detach(),
            step=step,
            max_steps=self.args.max_steps,
            generator=torch.Generator().manual_seed(noise.batch_seed(self.args.seed, step)),
            rows=torch.arange(len(logps), device=logps.device),
            rewards=b.rewards,
            group=self.group,
            beta=self.args.beta,
            hidden=b.hidden.detach(),
        )
        log_q = self.guide(signals)
        if self.args.guide_center == "batch":
            log_q = (log_q - over(log_q, b.mask)) * b.mask
        if self.guide.learns:
            self.guide.learn(signals)
        return log_q

    def normed(self, per_token: Tensor, mask: Tensor) -> Tensor:
        if self.args.loss_type == "bnpo":
            return over(per_token, mask)
        total = (per_token * mask).sum(1)
        if self.args.loss_type == "dr_grpo":
            return total.mean() / self.args.max_completion_length
        return (total / mask.sum(1).clamp(min=1)).mean()


def over(x: Tensor, mask: Tensor) -> Tensor:
    """The mean over counted tokens."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def seeded(*what: Any) -> int:
    """A seed for a generator, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:7], "big")
