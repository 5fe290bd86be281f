"""A guide and an advantage that ask for what no training run computes."""

import torch

from sage_rlvr import Guide
from sage_rlvr.advantage import Advantage


class NeedsMore(Guide):
    needs = frozenset({"weather"})

    def log_q(self, s):
        return torch.zeros_like(s.logps)


class AsksMore(Advantage):
    kind, stage, needs = "prompts", "factor", frozenset({"weather"})

    def shape(self, r):
        return torch.ones_like(r.rewards)
