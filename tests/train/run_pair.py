"""Losses, gradients and noise of a few steps, for one process or several, whole or sharded (tests/forked.py).

One process start serves many cases: {"cases": {name: options}, "save": file, "model": folder, "out": folder, "fsdp": bool}.
"""

import os

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, gather_object
from peft import LoraConfig
from torch.distributed.tensor import DTensor

from sage_rlvr.launch.random_reward import RandomReward
from sage_rlvr.runs.writer import same_everywhere
from sage_rlvr.train import SAGEConfig, SAGETrainer

from . import keeping, server, tiny


def let_cpu_shard():
    """Accelerate reads the FSDP settings, and then ignores them where the processes are on CPU: plain data parallel, without
    a word. This one switch sends it down its own FSDP2 path (fully_shard over gloo); all that follows is Accelerate's."""
    init = AcceleratorState.__init__

    def with_fsdp(self, *args, fsdp_plugin=None, **kwargs):
        init(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = with_fsdp


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


class Recorded(SAGETrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.grads, self.losses, self.log_q, self.held = [], [], {}, 0.0

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.held += self.accelerator.reduce(loss.detach().double(), reduction="mean").item()
        return loss

    def training_step(self, *args):
        out = super().training_step(*args)
        if self.accelerator.sync_gradients:
            trained = {n: p for n, p in self.model.named_parameters() if p.grad is not None}
            self.sharded = {n: isinstance(p, DTensor) for n, p in self.model.named_parameters()}
            self.grads.append({n.replace("module.", ""): whole(p.grad) for n, p in trained.items()})
            self.losses.append(self.held)
            self.held = 0.0
        return out

    def held_log_q(self, inputs, *rest):
        log_q = super().held_log_q(inputs, *rest)
        for row, q, m in zip(inputs["sage_rows"], log_q, inputs["completion_mask"]):
            self.log_q[int(self._step), int(row)] = q[m.bool()].tolist()
        return log_q


def uneven(prompts, completions, **kwargs):
    """Some groups are flat, so that dynamic sampling has work."""
    flat = [int(p.split("+")[0]) % 3 == 0 for p in prompts]
    return [0.0 if f else r for f, r in zip(flat, tiny.hash_reward(completions))]


uneven.key = lambda text: "ab"[ord(text[0]) % 2]  # two solutions, for coverage


def adapter(model):
    """PEFT draws the adapter at random: the same everywhere, and the same before it is sharded."""
    draw = torch.Generator().manual_seed(0)
    for p in model.parameters():
        if p.requires_grad:
            p.data.copy_(torch.randn(p.shape, generator=draw) * 0.05)


def head_of(guide):
    """What a guide has learned, if it does."""
    head = getattr(guide, "_head", None)
    return torch.cat([p.detach().flatten() for p in head.parameters()]) if head is not None else None


def run(model, out, rows, options):
    lora, flat, sampled, again, damaged, chance, gone = (
        options.pop(key, False) for key in ("lora", "flat", "sampled", "resume", "damaged", "chance", "gone")
    )
    world = int(os.environ.get("WORLD_SIZE", "1"))
    # the rows on a process times the number of processes is the same global batch
    args = tiny.config(SAGEConfig, out=out, per_device_train_batch_size=rows // world, **options)
    peft = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights="gaussian") if lora else None
    if args.use_vllm:
        server.replace()
    rollouts = {} if sampled or args.use_vllm else {"rollout_func": tiny.given_rollouts}
    data = keeping.dataset() if args.keep_from else tiny.dataset()
    reward = uneven if flat else tiny.hash_reward
    if chance:
        reward = RandomReward(reward, chance, seed=7)
    trainer = Recorded(model, reward, args, data, peft_config=peft, **rollouts)
    if lora:
        adapter(trainer.model)
    if gone and trainer.accelerator.is_main_process:
        trainer.vllm_generation.vllm_client.answers = gone
    if damaged and trainer.accelerator.is_main_process:
        os.truncate(os.path.join(out, damaged), 7)
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=again or None)
    everyone = gather_object([trainer.log_q])
    return {
        "losses": trainer.losses,
        "grads": trainer.grads,
        "log_q": {k: v for d in everyone for k, v in d.items()},
        "log": [{k: v for k, v in h.items() if k not in tiny.TIMES} for h in trainer.state.log_history if "loss" in h],
        "world": trainer.accelerator.num_processes,
        "head": gather_object([head_of(trainer.guide)]),
        "agreed": gather_object([same_everywhere(trainer.accelerator.process_index)]),
        "sharded": trainer.sharded,
        "ref_sharded": [isinstance(p, DTensor) for p in trainer.ref_model.parameters()] if trainer.ref_model else [],
        "weights": {n.replace("module.", ""): whole(p) for n, p in trainer.model.named_parameters()},
    }


def main(job):
    if job.get("fsdp"):
        let_cpu_shard()
    done = {}
    for name, options in job["cases"].items():
        rows = options.pop("global_rows", 8)
        folder = f"{job['out']}/{options.pop('folder', name)}".replace(" ", "_")
        done[name] = run(job["model"], folder, rows, options)
    if PartialState().is_main_process:
        torch.save(done, job["save"])
