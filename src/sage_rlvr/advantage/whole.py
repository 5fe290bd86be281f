"""The usual advantages: GRPO's, and BNPO's."""

import torch
from torch import Tensor

from sage_rlvr.advantage.advantage import Advantage, Rollouts, register_advantage
from sage_rlvr.errors import UserError

SCALES = ("group", "batch", "none")
EPSILON = 1e-4  # TRL's, beside the standard deviation


@register_advantage("group")
class GroupAdvantage(Advantage):
    """GRPO's, as TRL computes it: (r − mean)/(std + 1e-4), both over the group; ``scale`` batch: one std over all, none: 1.

    A group whose rewards are all alike, or of one completion, has advantage 0.
    """

    def __init__(self, scale: str = "group") -> None:
        if scale not in SCALES:
            raise UserError(f"advantage 'group': scale={scale!r} is unknown; choose one of {', '.join(SCALES)}.")
        self.scale = scale

    def shape(self, r: Rollouts) -> Tensor:
        centred = r.pay - torch.nanmean(r.pay, dim=1, keepdim=True)
        if self.scale == "none":
            return centred
        over = r.pay.reshape(1, -1) if self.scale == "batch" else r.pay
        return centred / (spread(over) + EPSILON)


def spread(rows: Tensor) -> Tensor:
    """(…, 1) the standard deviation of each row without its NaN, with n − 1; 0 where fewer than two are left."""
    squares = (rows - torch.nanmean(rows, dim=1, keepdim=True)) ** 2
    n = (~rows.isnan()).sum(1, keepdim=True)
    variance = torch.nanmean(squares, dim=1, keepdim=True) * (n / (n - 1))
    return torch.where(n > 1, variance, 0.0).sqrt()


@register_advantage("beta")
class BetaAdvantage(Advantage):
    """BNPO (arXiv 2506.02864): (r − p)/Beta(p; 1 + a/3, 1 + b/3), p a group's mean, (a, b) the Beta fitted to all p by moments.

    Rewards lie in [0, 1]. A batch whose p are all alike would fit an infinitely sharp Beta: a + b is held at ``sharpest``.
    """

    def __init__(self, sharpest: float = 100.0) -> None:
        if sharpest < 0:
            raise UserError(f"advantage 'beta': sharpest={sharpest} must not be negative.")
        self.sharpest = sharpest

    def shape(self, r: Rollouts) -> Tensor:
        if bool(((r.pay < 0) | (r.pay > 1)).any()):
            raise UserError(
                "advantage 'beta' takes rewards between 0 and 1: use a verifiable 0/1 reward, or advantage='group'."
            )
        rows = r.pay.double()
        p = rows.nanmean(1)  # (P,)
        judged = p[~p.isnan()]
        if judged.numel() == 0:
            return torch.zeros_like(rows)
        mean, variance = judged.mean(), judged.var(unbiased=False)
        most = mean * (1 - mean)  # the variance of p cannot exceed it
        concentration = (most / variance.clamp(min=1e-12) - 1).clamp(0, self.sharpest)
        alpha, beta = 1 + mean * concentration / 3, 1 + (1 - mean) * concentration / 3
        inside = p.clamp(1e-6, 1 - 1e-6)
        log_pdf = (alpha - 1) * inside.log() + (beta - 1) * (1 - inside).log()
        log_pdf = log_pdf - (alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma())
        return (rows - p[:, None]) / log_pdf.exp()[:, None]
