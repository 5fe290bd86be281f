"""A guide of your own: log q from signals the model gives anyway, and a short run with it. Half a minute on a CPU.

python examples/own_guide.py
sage-rlvr --import own_guide train --config recipes/gsm8k_0.5b_24gb.yaml --guide early-fork     # in this folder
"""

import math
from importlib.resources import files

import torch
from datasets import Dataset

from sage_rlvr import Guide, SAGEConfig, SAGETrainer, Signals, register_guide
from sage_rlvr.study.plan import load_study
from sage_rlvr.tasks import load_task, rows, task_reward


@register_guide("early-fork")
class EarlyForkGuide(Guide):
    """q = ``q`` where the policy is undecided within the first ``tokens`` tokens, 1 elsewhere: where a solution is chosen."""

    needs = frozenset({"entropies"})  # optional signals that must be computed for it
    token_dependent = False  # q is the same for every next token: refused under k2 and k3+, where it would do nothing
    past_only = True  # q_t looks at nothing after t

    def __init__(self, q: float = 1.4, threshold: float = 0.8, tokens: int = 4):
        self.q, self.threshold, self.tokens = q, threshold, tokens

    def log_q(self, s: Signals) -> torch.Tensor:
        place = s.mask.cumsum(-1)  # (B, T) 1, 2, 3, … along a completion
        return ((s.entropies > self.threshold) & (place <= self.tokens)) * math.log(self.q)


if __name__ == "__main__":
    base = str(files("sage_rlvr") / "studies" / "demo-base")  # the demo's small model; yours: a Hub id or a folder
    task = load_study("demo").train["task"]  # an arithmetic game that this model knows
    data = Dataset.from_list(rows(load_task(task, limit=200, split="train"), "symbols", conversational=False))
    config = SAGEConfig(
        "runs/own_guide", guide="early-fork", guide_args={"tokens": 3}, max_steps=10, per_device_train_batch_size=64,
        max_completion_length=9,
    )  # fmt: skip
    SAGETrainer(base, task_reward(task, "symbols"), config, data).train()
