"""Guides that learn from verdicts: what the paper leaves to future work.

At the optimum of E[r] − β·KL(π ‖ q·π_ref), logit π*(C) = logit π_ref(C) + 1/β + Δ(x), Δ(x) = log(E_ref[q|C]/E_ref[q|¬C]). A guide
beats every β on an average over prompts exactly where Δ grows with difficulty; where Δ is the same everywhere it is another β.

``group`` is of the first kind: a right answer earns more the more rarely its group was right. ``value`` is of the second, if its
head knows everything: Σ_t log q_t = κ·(V_T − V_0) is then κ·r but for a constant of the prompt, so 1/β becomes 1/β + κ. What it
changes is the path: tokens are paid when the chance to be right moves, not all alike when it is known.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sage_rlvr.anchor.guides import Guide, Signals, _not_negative, register_guide
from sage_rlvr.errors import UserError

AT_ONCE = 1 << 26  # float32 numbers of hidden states that are worked on together: 256 MiB
EPS = 1e-4  # Adam's: where a gradient cancels, what is left of it is rounding, and must not become a step


def shares(rewards: Tensor, guide: str) -> Tensor:
    """The rewards, float32, NaN where nobody could judge; refused where they are no share of 1."""
    rewards = rewards.detach().float()
    outside = rewards[(rewards < 0) | (rewards > 1)]
    if len(outside):
        raise UserError(
            f"guide {guide!r} takes rewards between 0 and 1, how much of it is right, and one is {outside[0].item():g}: use a "
            "0/1 reward, bring yours to that range, or choose another guide."
        )
    return rewards


@register_guide("group")
class GroupGuide(Guide):
    """Σ_t log q_t = (s/β)·r·(1 − p̂)^γ: a right answer earns the more, the fewer others of its group are right.

    p̂ is the mean reward of the *other* completions of the group that could be judged. They are independent of this one, so at
    γ = 1 the expected bonus is (s/β)·r·(1 − p), p the chance to be right. (With itself in p̂ a right answer of a 0/1 reward would
    earn ((G − 1)/G)^γ of that, whatever p: a weaker s.) With nobody to compare with, log q = 0.

    Every counted token carries the same part, so that length is not paid: under k1-reward the sum is all that matters, and under
    an estimator in the loss no single token has q = e^(s/β). There each is pulled by 1/|y| of what k1-reward gives.
    """

    past_only = False  # the verdict comes at the end
    across_rows = True
    pays_completions = True
    needs = frozenset({"rewards", "group", "beta"})

    def __init__(self, strength: float = 1.0, gamma: float = 1.0):
        if strength <= 0:
            raise UserError(f"strength={strength} must be above 0: at 1 the bonus weighs up to as much as the reward.")
        _not_negative(gamma=gamma)
        self.strength, self.gamma = strength, gamma

    def bonus(self, rate: Tensor, beta: float) -> Tensor:
        """log q of a right completion, from the chance of the others to be right."""
        return self.strength / beta * (1 - rate) ** self.gamma

    def log_q(self, s: Signals) -> Tensor:
        assert s.rewards is not None  # it is among the needs, and so are these
        assert s.group is not None
        assert s.beta is not None
        rewards = shares(s.rewards, self.name).view(-1, s.group)  # (groups, G)
        known = ~rewards.isnan()
        right = rewards.nan_to_num(0.0)
        others = known.sum(1, keepdim=True) - known.int()
        rate = (right.sum(1, keepdim=True) - right) / others.clamp(min=1)
        total = torch.where(others > 0, right * self.bonus(rate.clamp(0, 1), s.beta), 0.0).view(-1, 1)
        return (total / s.mask.sum(1, keepdim=True).clamp(min=1)).expand(s.mask.shape)


@register_guide("value")
class ValueGuide(Guide):
    """log q_t = κ·(V_t − V_{t−1}), V_t the chance to be right after y_t as a small head on the last hidden state foretells it.

    The head is logistic regression on h/‖h‖ (``width`` > 0: with one tanh layer in between). It learns from each rollout batch,
    ``passes`` steps of Adam at ``rate``, after that batch's log q was made: no q has seen its own verdicts. A completion weighs
    the same however long it is. Before the first batch V is ½ everywhere and log q = 0.

    V is a probability: |Σ_t log q_t| ≤ κ for any length, where logits would grow without end as the head becomes sure.
    """

    learns = True
    needs = frozenset({"hidden", "rewards"})

    def __init__(self, kappa: float = 1.0, width: int = 0, rate: float = 0.01, passes: int = 4):
        if kappa <= 0 or rate <= 0:
            raise UserError(f"kappa={kappa} and rate={rate} must both be above 0.")
        if width < 0 or passes < 1 or width != int(width) or passes != int(passes):
            raise UserError(
                f"width={width}, passes={passes}: width counts hidden units (0: none) and passes the steps the head takes on a "
                "rollout batch, 1 or more."
            )
        self.kappa, self.width, self.rate, self.passes = kappa, int(width), rate, int(passes)
        self._head: nn.Module | None = None
        self._optimizer: torch.optim.Adam | None = None
        self._saved: dict[str, Any] | None = None  # a checkpoint's, until hidden states say where the head is to lie

    def log_q(self, s: Signals) -> Tensor:
        assert s.hidden is not None  # it is among the needs
        return self.kappa * self.values(s.hidden).diff(dim=1)

    def values(self, hidden: Tensor) -> Tensor:
        """V, (B, T + 1): of hidden states (B, T + 1, d) after the prompt and after each token."""
        head = self._made(hidden)
        with torch.no_grad():
            return torch.cat([_logits(head, rows).sigmoid() for rows in hidden.split(_rows_at_once(hidden))])

    def learn(self, s: Signals, gather: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Towards each judged completion's reward at every state it passed through: after the prompt and after each counted
        token. Gradients are summed over the processes in one order, so that their heads stay the same to the last bit."""
        assert s.hidden is not None  # they are among the needs
        assert s.rewards is not None
        hidden, rewards = s.hidden.detach(), shares(s.rewards, self.name)
        head = self._made(hidden)
        counted = s.mask.bool()
        passed = torch.cat([counted.any(1, keepdim=True), counted], 1) & ~rewards.isnan()[:, None]  # (B, T + 1)
        weight = passed / passed.sum(1, keepdim=True).clamp(min=1)
        target = rewards.nan_to_num(0.0)[:, None].expand_as(weight)
        measured: dict[str, float] = {}
        for _ in range(self.passes):
            sums = self._sums(head, hidden, target, weight)
            if gather is not None:
                sums = gather(sums[None]).sum(0)
            loss, right, completions = sums[-3:].tolist()
            if completions == 0:
                return {}
            measured = measured or {
                "value_loss": loss / completions,
                "value_loss_constant": _entropy(right / completions),
            }
            self._step(head, sums[:-3] / completions)
        return measured

    def _sums(self, head: nn.Module, hidden: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Of this process: the gradient of every parameter, then the loss, the rewards and the number of completions."""
        size = _rows_at_once(hidden)
        total: Tensor | None = None
        for h, y, w in zip(hidden.split(size), target.split(size), weight.split(size)):
            with torch.enable_grad():
                loss = (nn.functional.binary_cross_entropy_with_logits(_logits(head, h), y, reduction="none") * w).sum()
                grads = torch.autograd.grad(loss, list(head.parameters()))
            told = torch.stack([loss.detach(), (y * w).sum(), w.sum().round()])
            sums = torch.cat([*(g.flatten() for g in grads), told])
            total = sums if total is None else total + sums
        assert total is not None
        return total

    def _step(self, head: nn.Module, gradient: Tensor) -> None:
        place = 0
        for p in head.parameters():
            p.grad = gradient[place : place + p.numel()].view_as(p).clone()
            place += p.numel()
        assert self._optimizer is not None
        self._optimizer.step()

    # ---- the head: made at the first sight of hidden states, kept in checkpoints -----------------------------------------

    def _made(self, hidden: Tensor) -> nn.Module:
        if self._head is None:
            saved, self._saved = self._saved, None
            self._head = _new_head(hidden.shape[-1], self.width).to(hidden.device)
            self._optimizer = torch.optim.Adam(self._head.parameters(), lr=self.rate, eps=EPS)
            if saved is not None:
                if saved["size"] != hidden.shape[-1]:
                    raise UserError(
                        f"the checkpoint's value head reads {saved['size']} numbers per token and this model has "
                        f"{hidden.shape[-1]}: resume with the model it was trained with."
                    )
                self._head.load_state_dict(saved["head"])
                self._optimizer.load_state_dict(saved["optimizer"])
        return self._head

    def state_dict(self) -> dict[str, Any]:
        learned = self._saved
        if self._head is not None and self._optimizer is not None:
            size = next(self._head.parameters()).shape[1]
            learned = {"size": size, "head": self._head.state_dict(), "optimizer": self._optimizer.state_dict()}
        return super().state_dict() | {"learned": learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._head = self._optimizer = None
        self._saved = state["learned"]


def _new_head(size: int, width: int) -> nn.Module:
    """0 everywhere, whatever it reads; the tanh layer's weights are always the same ones. No draw from torch's own generator,
    which samples the completions: a head that a resumed run makes would move it."""
    out = nn.utils.skip_init(nn.Linear, width or size, 1)
    nn.init.zeros_(out.weight)
    nn.init.zeros_(out.bias)
    if not width:
        return nn.Sequential(out)
    inner = nn.utils.skip_init(nn.Linear, size, width)
    nn.init.normal_(inner.weight, generator=torch.Generator().manual_seed(0))
    nn.init.zeros_(inner.bias)
    return nn.Sequential(inner, nn.Tanh(), out)


def _logits(head: nn.Module, hidden: Tensor) -> Tensor:
    """(n, T + 1) float32, whatever the model computes in; a direction has no scale that models differ in."""
    with torch.autocast(hidden.device.type, enabled=False):
        return head(nn.functional.normalize(hidden.float(), dim=-1)).squeeze(-1)


def _rows_at_once(hidden: Tensor) -> int:
    return max(1, AT_ONCE // max(1, hidden[0].numel()))


def _entropy(p: float) -> float:
    """The loss of the best constant: what a head must be under to know anything."""
    x = torch.tensor([p, 1 - p], dtype=torch.float64)
    return float(torch.special.entr(x).sum())
