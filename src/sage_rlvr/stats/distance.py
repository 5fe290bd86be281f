"""At the same distance from the reference policy: what a family has that another β would not give it.

β decides how far a policy goes from π_ref, and that distance decides most of pass@k: runs of one method at many β lie on one
curve over their KL. The curve of the families called ``references`` is a cubic in √KL (a KL grows as the square of a distance);
a family's ``excess`` is the mean height of its runs above that curve, at each k. A method that is another β in disguise
has none at any k; one that moves the frontier has some. Runs beyond the references' own range of KL, and
runs that log none (β 0), are left out. An excess is a weighted sum of the runs' pass@k, so its interval is that of a sum of arms'
tables (``stats.intervals``): over problems, each with a curve of its own, and the seeds of each arm, about the curve.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sage_rlvr.stats.intervals import Interval, crossed

DEGREE = 3


@dataclass(frozen=True)
class Run:
    family: str
    variant: str
    estimator: str  # of the KL
    kl: float  # nats a token
    passes: dict[int, np.ndarray]  # k → (problems,) pass@k


@dataclass(frozen=True)
class Excess:
    family: str
    against: tuple[str, ...]  # whose curve
    runs: int  # those that were judged
    kl: tuple[float, float]  # their range
    above: dict[int, Interval]  # k → pass@k − the references' curve at the same KL, mean over the runs


def excesses(runs: Sequence[Run], references: Sequence[str]) -> list[Excess]:
    """Every family; the references each against the curve of all of them. Empty where they are too few for a curve."""
    own = np.array([r.family in references for r in runs], dtype=bool)
    root = np.sqrt([max(r.kl, 0.0) for r in runs])
    if len({r.variant for r in runs if r.family in references}) <= DEGREE + 1:  # any four heights lie on a cubic
        return []
    if not root[own].any():  # none of them has moved
        return []
    judged = (root >= root[own].min()) & (root <= root[own].max())
    design = np.vander(root / root[own].max(), DEGREE + 1)  # (runs, powers)
    fit = np.zeros((DEGREE + 1, len(runs)))  # of all runs' heights: the curve's coefficients
    fit[:, own] = np.linalg.pinv(design[own])
    off = {  # k → (runs, problems) above each problem's own curve
        k: (of_problem := np.stack([r.passes[k] for r in runs])) - design @ (fit @ of_problem) for k in runs[0].passes
    }
    found = []
    for family in dict.fromkeys(r.family for r in runs):
        member = np.array([r.family == family for r in runs]) & judged
        if member.any():
            # the excess is the sum of the runs' heights with these weights
            weights = member / member.sum() - design[member].mean(0) @ fit
            arms: dict[str, list[int]] = {}  # variant → its runs that count
            for i in np.flatnonzero(weights).tolist():
                arms.setdefault(runs[i].variant, []).append(i)
            # an arm's (seeds, problems): the sum of the arms' means is that of the weighted runs
            above = {
                k: crossed([len(at) * weights[at, None] * e[at] for at in arms.values()]).interval()
                for k, e in off.items()
            }
            span = float(root[member].min() ** 2), float(root[member].max() ** 2)
            found.append(Excess(family, tuple(references), int(member.sum()), span, above))
    return found


def curve_at(runs: Sequence[Run], k: int, kl: np.ndarray) -> np.ndarray:
    """Height of the curve through these runs, for a figure."""
    fit = np.polyfit(np.sqrt([max(r.kl, 0.0) for r in runs]), [r.passes[k].mean() for r in runs], DEGREE)
    return np.polyval(fit, np.sqrt(kl))
