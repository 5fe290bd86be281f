"""A small tree of tokens, an autoregressive softmax policy on it, and every completion written out.

Shapes: Y completions of T tokens over a vocabulary of V; N prefixes (nodes) where a token is chosen. Any number of
policies is handled at once: logits are (..., N, V), everything per completion (..., Y) or (..., Y, T). float64.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sage_rlvr.anchor import Guide, Signals


@dataclass(frozen=True)
class World:
    """The reference policy's logits (N, V), the reward of each completion (Y,), and the completions themselves."""

    ref_logits: Tensor  # (N, V)
    reward: Tensor  # (Y,) 0 or 1
    tokens: Tensor  # (Y, T) which token
    nodes: Tensor  # (Y, T) at which prefix

    @cached_property
    def ref_logps(self) -> Tensor:
        return self.logps(self.ref_logits)

    @cached_property
    def ref(self) -> Tensor:
        """π_ref(y), (Y,)."""
        return self.probs(self.ref_logits)

    @property
    def valid(self) -> Tensor:
        return self.reward > 0

    def logps(self, logits: Tensor) -> Tensor:
        """log π(y_t | prefix), (..., Y, T)."""
        return logits.log_softmax(-1)[..., self.nodes, self.tokens]

    def probs(self, logits: Tensor) -> Tensor:
        """π(y), (..., Y)."""
        return self.logps(logits).sum(-1).exp()

    def entropies(self, logits: Tensor) -> Tensor:
        """H of the next-token distribution at each completion's prefixes, (..., Y, T), nats."""
        logp = logits.log_softmax(-1)
        return -(logp.exp() * logp).sum(-1)[..., self.nodes]

    def visits(self, probs: Tensor) -> Tensor:
        """Probability that a prefix is reached, (..., N), from π(y)."""
        out = probs.new_zeros(*probs.shape[:-1], self.ref_logits.shape[0])
        for t in range(self.nodes.shape[1]):
            out.index_add_(-1, self.nodes[:, t], probs)
        return out

    def signals(self, logits: Tensor, generator: torch.Generator | None = None) -> Signals:
        """What a guide sees of one policy (N, V)."""
        return Signals(
            logps=self.logps(logits),
            ref_logps=self.ref_logps,
            mask=torch.ones_like(self.ref_logps),
            entropies=self.entropies(logits),
            ref_entropies=self.entropies(self.ref_logits),
            generator=generator,
            rewards=self.reward,
        )

    def log_q(self, guide: Guide | None, generator: torch.Generator | None = None) -> Tensor:
        """A guide's log q at the reference policy, (Y, T). A guide that never looks at later tokens is made a function of
        the prefix: noise that falls on a token is the same for all completions that share it."""
        if guide is None:
            return torch.zeros_like(self.ref_logps)
        log_q = guide(self.signals(self.ref_logits, generator)).double()
        return log_q.gather(0, self.first_with_prefix) if guide.past_only else log_q

    @cached_property
    def first_with_prefix(self) -> Tensor:
        """(Y, T) the first completion that shares y_1..y_t."""
        edge = self.nodes * self.ref_logits.shape[1] + self.tokens  # one number per prefix that includes y_t
        return (edge[None] == edge[:, None]).int().argmax(1)


def tree(ref_logits: Tensor, reward: Tensor, depth: int) -> World:
    """The full V-ary tree: prefixes are numbered breadth first, completions in lexicographic order."""
    width = ref_logits.shape[1]
    tokens = torch.cartesian_prod(*[torch.arange(width)] * depth).reshape(-1, depth)
    nodes = torch.zeros_like(tokens)
    for t in range(1, depth):
        nodes[:, t] = nodes[:, t - 1] * width + tokens[:, t - 1] + 1
    return World(ref_logits, reward, tokens, nodes)


def random_world(seed: int = 0, width: int = 4, depth: int = 3, right: int = 12, spread: float = 1.2) -> World:
    """A full tree with normal reference logits and ``right`` completions of reward 1 drawn at random: 64 completions."""
    g = torch.Generator().manual_seed(seed)
    count = sum(width**t for t in range(depth))
    ref_logits = spread * torch.randn(count, width, generator=g, dtype=torch.float64)
    reward = torch.zeros(width**depth, dtype=torch.float64)
    reward[torch.randperm(width**depth, generator=g)[:right]] = 1.0
    return tree(ref_logits, reward, depth)
