"""An advantage of your own: what a group's completions are credited with, and a short run. Half a minute on a CPU.

python examples/own_advantage.py
sage-rlvr --import own_advantage train --config recipes/gsm8k_0.5b_24gb.yaml --advantage brief     # in this folder
"""

from importlib.resources import files

import torch
from datasets import Dataset

from sage_rlvr import Advantage, SAGEConfig, SAGETrainer, register_advantage
from sage_rlvr.advantage import Rollouts
from sage_rlvr.study.plan import load_study
from sage_rlvr.tasks import load_task, rows, task_reward


@register_advantage("brief")
class BriefAdvantage(Advantage):
    """Right answers are paid up to ``share`` more the shorter they are within their group; wrong ones as before."""

    kind = "answers"  # the question it is about: which right answers count
    stage = "reward"  # it changes what completions are paid; GRPO's (r − mean)/std is then taken of that
    needs = frozenset({"lengths"})

    def __init__(self, share: float = 0.2):
        self.share = share

    def shape(self, r: Rollouts) -> torch.Tensor:
        longest = r.lengths.amax(1, keepdim=True).clamp(min=1)  # tensors are (prompts, group)
        return torch.where(r.right, r.pay * (1 + self.share * (1 - r.lengths / longest)), r.pay)


if __name__ == "__main__":
    base = str(files("sage_rlvr") / "studies" / "demo-base")  # the demo's small model; yours: a Hub id or a folder
    task = load_study("demo").train["task"]  # an arithmetic game that this model knows
    data = Dataset.from_list(rows(load_task(task, limit=200, split="train"), "symbols", conversational=False))
    config = SAGEConfig(
        "runs/own_advantage", guide="none", advantage="brief", advantage_args={"share": 0.5}, max_steps=10,
        per_device_train_batch_size=64, max_completion_length=9,
    )  # fmt: skip
    SAGETrainer(base, task_reward(task, "symbols"), config, data).train()
