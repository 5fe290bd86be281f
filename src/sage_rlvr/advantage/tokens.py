"""Which tokens count: a completion's advantage, given to its tokens unequally.

Entropy falls where likely tokens are raised: for a softmax policy whose logits move by η·A its slope in η is −Cov(A, log π) over
the tokens of a batch. ``clip_cov`` and ``kl_cov`` (arXiv 2505.22617) hold back the few tokens that make most of that covariance;
``entropy`` (arXiv 2506.14758) adds to the advantage where the policy was uncertain.

All see the whole rollout batch, at the policy that sampled it. So ranks, slices and micro-batches cannot change which tokens are
chosen, and they stay chosen for all updates of the batch. (verl's ``clip_cov`` and ``kl_cov`` choose anew in every micro-batch,
one token at the least, at the policy as it stands then: with small micro-batches its share is larger than the one it is given.)
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sage_rlvr.advantage.advantage import Advantage, Rollouts, register_advantage
from sage_rlvr.errors import UserError


@dataclass(frozen=True)
class Tokens:
    """A rollout batch, (N, T): a row per completion, a column per token."""

    advantages: Tensor
    logps: Tensor  # log π of each token, at the policy that sampled
    mask: Tensor  # bool: counted
    entropies: Tensor | None = None  # of that policy, in nats, before each token
    generator: torch.Generator | None = None  # for a random choice, on the CPU

    def noise(self) -> Tensor:
        """(N, T) uniform, one number per counted token in their order: no padding changes it. 1 where none is counted."""
        drawn = torch.rand(int(self.mask.sum()), generator=self.generator, dtype=torch.float64)
        out = torch.ones(self.mask.shape, dtype=torch.float64, device=self.mask.device)
        out[self.mask] = drawn.to(out.device)
        return out

    def covariance(self) -> Tensor:
        """(N, T) each counted token's (A − mean A)·(log π − mean log π), means over all counted tokens; 0 elsewhere."""

        def centred(x: Tensor) -> Tensor:
            x = x.double()
            # from the least on: exactly 0 where all are equal, so that no rounding is chosen from
            least = torch.where(self.mask, x, torch.inf).min() if bool(self.mask.any()) else 0.0
            x = torch.where(self.mask, x - least, 0.0)
            return torch.where(self.mask, x - x.sum() / self.mask.sum().clamp(min=1), 0.0)

        return centred(self.advantages) * centred(self.logps)


class TokenAdvantage(Advantage):
    """The last stage. Subclasses write ``per_token``, or ``pull``, or both. Called with rewards, one alone is ``group``."""

    kind, stage = "tokens", "tokens"
    reads: ClassVar[frozenset[str]] = frozenset({"logps"})  # of logps, entropies
    changes: ClassVar[bool] = True  # ``per_token`` gives other advantages than it was given

    def per_token(self, t: Tokens) -> Tensor:
        """(N, T) the advantages of the tokens."""
        raise TypeError(
            f"{type(self).__name__} must define per_token(self, tokens): it answers a tensor like advantages."
        )

    def pull(self, t: Tokens) -> Tensor | None:
        """(N, T) the coefficient of |log π − log π_old| that is added to each token's loss; None: nowhere."""
        return None

    def shape(self, r: Rollouts) -> Tensor:
        raise TypeError(f"advantage {self.name!r} is per token: call credit(tokens).")

    @torch.no_grad()
    def credit(self, t: Tokens) -> tuple[Tensor, Tensor | None]:
        """(N, T) advantages and pulls, checked; 0 where no token is counted."""
        if t.mask.dtype != torch.bool:
            raise UserError(
                f"advantage {self.name!r}: the mask is {t.mask.dtype}: give a bool, True where a token counts."
            )
        for name in ("advantages", "logps", "entropies"):
            value = getattr(t, name)
            if value is None and name in self.reads:
                raise UserError(f"advantage {self.name!r} needs {name}, which were not given: pass {name}=.")
            if value is not None and value.shape != t.mask.shape:
                raise UserError(
                    f"advantage {self.name!r}: {name} has shape {tuple(value.shape)}, the mask {tuple(t.mask.shape)}: one per "
                    "token."
                )
            if value is not None and not bool(torch.isfinite(value[t.mask]).all()):
                raise UserError(f"advantage {self.name!r}: {name} of a counted token are not finite.")
        pull = self.pull(t)
        advantages = self.per_token(t) if self.changes else t.advantages
        return self._counted(advantages, t), None if pull is None else self._counted(pull, t)

    @staticmethod
    def _counted(x: Tensor, t: Tokens) -> Tensor:
        return torch.where(t.mask, x, 0.0).to(t.advantages.dtype)


def share_of(name: str, share: float, t: Tokens | None = None) -> int:
    """How many tokens a share of the counted ones is: one at the least, where any is counted."""
    if not 0 < share <= 1:
        raise UserError(f"advantage {name!r}: share={share} is a share of all tokens: above 0, and 1 at most.")
    counted = 0 if t is None else int(t.mask.sum())
    return min(counted, max(1, int(share * counted)))


def largest(values: Tensor, among: Tensor, count: int) -> Tensor:
    """(N, T) bool: the ``count`` largest values where ``among`` is set, or all of those; of equal ones the first."""
    places = among.flatten().nonzero().flatten()
    chosen = torch.zeros(among.numel(), dtype=torch.bool, device=among.device)
    count = min(count, len(places))
    if count:
        candidates = values.flatten()[places]
        least = candidates.topk(count).values[-1]
        above, level = candidates > least, (candidates == least).nonzero().flatten()
        chosen[places[above]] = True
        chosen[places[level[: count - int(above.sum())]]] = True
    return chosen.view(among.shape)


@register_advantage("clip_cov")
class ClipCovAdvantage(TokenAdvantage):
    """Clip-Cov: of the tokens whose covariance lies between ``low`` and ``high``, a random ``share`` of all counted tokens has
    advantage 0: no part in the policy gradient. The penalty and the normaliser still count them."""

    def __init__(self, share: float = 2e-4, low: float = 1.0, high: float = 5.0) -> None:
        share_of("clip_cov", share)
        if not low < high:
            raise UserError(f"advantage 'clip_cov': low={low} must lie below high={high}; published: 1 and 5.")
        self.share, self.low, self.high = share, low, high

    def chosen(self, t: Tokens) -> Tensor:
        """(N, T) bool."""
        covariance = t.covariance()
        within = t.mask & (covariance > self.low) & (covariance < self.high)
        return largest(-t.noise(), within, share_of("clip_cov", self.share, t))

    def per_token(self, t: Tokens) -> Tensor:
        return torch.where(self.chosen(t), 0.0, t.advantages)


@register_advantage("kl_cov")
class KLCovAdvantage(TokenAdvantage):
    """KL-Cov: ``coef``·|log π − log π_old| is added to the loss of the ``share`` of tokens of largest covariance. Published:
    2e-3 for a 7B, 2e-4 for a 32B. The advantages stay; no token is pulled whose covariance is not above 0.

    Nothing pulls at the first update of a rollout batch, where π is π_old: later ones are held back. (verl takes the slope of |x|
    there too, x the rounding between two passes over the same weights: a push of full size and random sign.) The publication has
    no ratio clipping; here the loss type keeps its own.
    """

    changes = False

    def __init__(self, share: float = 2e-3, coef: float = 1.0) -> None:
        share_of("kl_cov", share)
        if coef <= 0:
            raise UserError(f"advantage 'kl_cov': coef={coef} must be above 0; published: 1.")
        self.share, self.coef = share, coef

    def pull(self, t: Tokens) -> Tensor:
        covariance = t.covariance()
        return largest(covariance, covariance > 0, share_of("kl_cov", self.share, t)).double() * self.coef


@register_advantage("entropy")
class EntropyAdvantage(TokenAdvantage):
    """A + min(``alpha``·H, |A|/``kappa``), H the entropy before the token: no gradient goes through it, no sign is turned, and
    where the advantage is 0 it stays 0."""

    reads = frozenset({"entropies"})

    def __init__(self, alpha: float = 0.4, kappa: float = 2.0) -> None:
        if alpha < 0:
            raise UserError(f"advantage 'entropy': alpha={alpha} must not be negative; published: 0.4.")
        if kappa <= 1:
            raise UserError(f"advantage 'entropy': kappa={kappa} must be above 1, or it turns signs; published: 2.")
        self.alpha, self.kappa = alpha, kappa

    def per_token(self, t: Tokens) -> Tensor:
        assert t.entropies is not None, "it reads them"
        return t.advantages + torch.minimum(self.alpha * t.entropies, t.advantages.abs() / self.kappa)
