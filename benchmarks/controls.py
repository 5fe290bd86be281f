"""Controls of the instrument: a gain that exists by arithmetic, which the study must find, and one that does not.

**Positive.** Half of the samples of each of two seeds of one arm, put together. That is what a mixture of both models gives.
Its pass@1 is their mean; for k > 1 its pass@k is above their mean wherever the two differ on a problem, since 1 − (1 − p)^k is
concave. The halves are of unlike evaluation seeds: all runs answer an evaluation seed with the same draws, so two models that
differ little would give the same samples twice, which lowers pass@k. **Null.** The seeds of a family, split in two: both halves
have the same true frontier.
"""

from dataclasses import replace

import numpy as np

from sage_rlvr.stats.counts import TaskCounts
from sage_rlvr.stats.frontier import Planes

MIXED, HALF = "pairs of seeds, mixed", "every second seed"


def positive(planes: Planes, family: str) -> Planes:
    """The family beside its mixtures, of seeds 0 and 1, 2 and 3, and so on."""
    mixed = {
        variant: [_mixture(*two) for two in zip(own[::2], own[1::2])] for variant, own in planes.runs[family].items()
    }
    return replace(planes, runs={family: planes.runs[family], MIXED: _renamed(mixed, MIXED)})


def null(planes: Planes, family: str) -> Planes:
    """The family's even seeds beside its odd ones."""
    even, odd = ({v: own[i::2] for v, own in planes.runs[family].items()} for i in (0, 1))
    return replace(planes, runs={family: even, HALF: _renamed(odd, HALF)})


def _renamed(arms: dict[str, list[TaskCounts]], name: str) -> dict[str, list[TaskCounts]]:
    """grpo+beta0.1 → NAME+beta0.1: a family is what stands before the +."""
    return {"+".join([name, *variant.split("+")[1:]]): own for variant, own in arms.items()}


def _mixture(a: TaskCounts, b: TaskCounts) -> TaskCounts:
    """Every second evaluation seed of each; the first of one, the second of the other, and so on."""
    state = np.concatenate([a.state[:, ::2], b.state[:, 1::2]], axis=1)
    return replace(a, state=state, seeds=[*a.seeds[::2], *b.seeds[1::2]], finish=None, answer=None)
