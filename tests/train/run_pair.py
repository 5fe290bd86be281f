"""Gradients and noise of a few steps on injected rollouts, for one process or several: torchrun -m tests.train.run_pair."""

import json
import sys

import torch
from accelerate.utils import gather_object
from peft import LoraConfig

from sage_rlvr.train import SAGEConfig, SAGETrainer

from . import tiny


class Recorded(SAGETrainer):
    grads: list
    log_q: dict

    def training_step(self, *args):
        out = super().training_step(*args)
        if self.accelerator.sync_gradients:
            grads = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
            self.grads = [*getattr(self, "grads", []), grads]
        return out

    def held_log_q(self, inputs, *rest):
        log_q = super().held_log_q(inputs, *rest)
        rows = {(int(self._step), int(r)): q[m.bool()].tolist()
                for r, q, m in zip(inputs["sage_rows"], log_q, inputs["completion_mask"])}  # fmt: skip
        self.log_q = {**getattr(self, "log_q", {}), **rows}
        return log_q


def uneven(prompts, completions, **kwargs):
    """Some groups are flat, so that dynamic sampling has work."""
    flat = [int(p.split("+")[0]) % 3 == 0 for p in prompts]
    return [0.0 if f else r for f, r in zip(flat, tiny.hash_reward(completions))]


def main(options):
    out, model = options.pop("save"), options.pop("model")
    lora = (
        LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights="gaussian")
        if options.pop("lora")
        else None
    )
    args = tiny.config(SAGEConfig, **options)
    trainer = Recorded(model, uneven, args, tiny.dataset(), rollout_func=tiny.given_rollouts, peft_config=lora)
    if lora is not None:  # PEFT draws the adapter at random: the same everywhere
        torch.manual_seed(0)
        for p in trainer.model.parameters():
            if p.requires_grad:
                p.data.normal_(0, 0.05)
    trainer.train()
    everyone = gather_object([getattr(trainer, "log_q", {})])
    if trainer.accelerator.is_main_process:
        log = [{k: v for k, v in h.items() if k != "step_time"} for h in trainer.state.log_history if "loss" in h]
        world = trainer.accelerator.num_processes
        torch.save(
            {
                "grads": trainer.grads,
                "log_q": {k: v for d in everyone for k, v in d.items()},
                "log": log,
                "world": world,
            },
            out,
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
