"""Which right answers count: more for those that the model, or the group, rarely gives."""

from collections import Counter

import torch
from torch import Tensor

from sage_rlvr.advantage.advantage import Advantage, Rollouts, register_advantage
from sage_rlvr.errors import UserError


def _share(name: str, share: float) -> float:
    if not 0 <= share <= 1:
        raise UserError(
            f"advantage {name!r}: share={share} is the part of a reward that is moved, so it must lie in 0..1."
        )
    return share


@register_advantage("rarity")
class RarityAdvantage(Advantage):
    """Ours: each right completion is paid r·(1 − c + c·s/mean(s)), c = ``share``, s its mean surprisal per token under π_ref, the
    mean over its group's right ones. It moves reward from likely right answers to unlikely ones, and adds none. A completion
    whose surprisal is not known (NaN) keeps its reward."""

    kind, stage, needs = "answers", "reward", frozenset({"ref_logps"})
    pays_above_one = True

    def __init__(self, share: float = 1.0) -> None:
        self.share = _share("rarity", share)

    def shape(self, r: Rollouts) -> Tensor:
        assert r.ref_logps is not None, "it is among needs"
        surprisal = -r.ref_logps
        right = r.right & ~surprisal.isnan()
        s = surprisal.nan_to_num().clamp(min=0) * right
        mean = s.sum(1, keepdim=True) / right.sum(1, keepdim=True).clamp(min=1)
        rare = torch.where(right & (mean > 0), s / mean.clamp(min=1e-12), 1.0)
        return r.rewards * (1 - self.share + self.share * rare)


@register_advantage("coverage")
class CoverageAdvantage(Advantage):
    """Ours: each right completion is paid r·(1 − c + c/m), c = ``share``, m the right ones of its group with the same answer.
    With c = 1 a group earns its number of distinct right answers, and each its Shapley value. An answer that cannot be read
    (None) is like no other."""

    kind, stage, needs = "answers", "reward", frozenset({"answers"})

    def __init__(self, share: float = 1.0) -> None:
        self.share = _share("coverage", share)

    def shape(self, r: Rollouts) -> Tensor:
        factor = torch.ones_like(r.rewards)
        for row, (answers, right) in enumerate(zip(r.answers or [], r.right.tolist())):
            times = Counter(a for a, good in zip(answers, right) if good and a is not None)
            for i, (answer, good) in enumerate(zip(answers, right)):
                if good and answer is not None:
                    factor[row, i] = 1 - self.share + self.share / times[answer]
        return r.rewards * factor


@register_advantage("unlikely")
class UnlikelyAdvantage(Advantage):
    """Unlikeliness (arXiv 2506.02355): r·(1 − ``share``·rank/G), rank of the completion's log-prob among its group's judged
    ones, 0 the least likely; equal ones share their mean rank. The paper trains two epochs per batch (num_iterations=2)."""

    kind, stage, needs = "answers", "reward", frozenset({"logps"})

    def __init__(self, share: float = 0.25) -> None:
        self.share = _share("unlikely", share)

    def shape(self, r: Rollouts) -> Tensor:
        assert r.logps is not None, "it is among needs"
        logps = torch.where(r.known, r.logps, torch.nan)
        below = (logps[:, None, :] < logps[:, :, None]).sum(-1)  # (P, G): how many are less likely
        level = (logps[:, None, :] == logps[:, :, None]).sum(-1)  # itself included
        rank = below + (level.clamp(min=1) - 1) / 2
        return r.rewards * (1 - self.share * rank / r.known.sum(1, keepdim=True).clamp(min=1))


@register_advantage("alike")
class AlikeAdvantage(Advantage):
    """MARA (arXiv 2510.20817): every right completion is paid its anchor's reward plus β·(log π_ref(anchor) − log π_ref(y)), the
    anchor being the group's likeliest right one under π_ref. With the penalty k1 in the reward, the same β and no scaling, all
    right answers end equally likely. ``ref_logps`` are means per token: with ``lengths`` they are made sums."""

    kind, stage, needs = "answers", "reward", frozenset({"ref_logps", "lengths"})
    pays_above_one = True

    def __init__(self, beta: float = 0.05) -> None:
        if beta < 0:
            raise UserError(f"advantage 'alike': beta={beta} must not be negative; it is the run's own beta.")
        self.beta = beta

    def shape(self, r: Rollouts) -> Tensor:
        assert r.ref_logps is not None, "it is among needs"
        whole = r.ref_logps if r.lengths is None else r.ref_logps * r.lengths
        right = r.right & ~whole.isnan()
        among = torch.where(right, whole, -torch.inf)
        anchor = among.argmax(1, keepdim=True)
        lifted = r.rewards.gather(1, anchor) + self.beta * (among.gather(1, anchor) - whole)
        return torch.where(right, lifted, r.rewards)


@register_advantage("smooth")
class SmoothAdvantage(Advantage):
    """Differential smoothing (arXiv 2511.19942): −γ·(mean log π per token) is added for right completions, +γ times it for wrong
    ones: right answers are spread, wrong ones are not."""

    kind, stage, needs = "answers", "term", frozenset({"logps"})

    def __init__(self, gamma: float = 0.05) -> None:
        if gamma < 0:
            raise UserError(f"advantage 'smooth': gamma={gamma} must not be negative; published: 0.05.")
        self.gamma = gamma

    def shape(self, r: Rollouts) -> Tensor:
        assert r.logps is not None, "it is among needs"
        logps = r.logps.nan_to_num()
        return self.gamma * torch.where(r.right, -logps, logps)
