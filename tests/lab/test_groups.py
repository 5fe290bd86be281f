"""What an advantage credits on average, against all groups written out, and against the gradients it is published for."""

from itertools import product

import pytest
import torch

from sage_rlvr.advantage import make_advantage
from sage_rlvr.lab.groups import credit

ALL = [("group", {}), ("maxrl", {}), ("passk", {"k": 2}), ("pkpo", {"k": 2, "anneal": 0}), ("focal", {}), ("risk", {})]


@pytest.mark.parametrize(("name", "args"), ALL)
def test_the_average_is_that_over_every_group(name, args):
    size, p = 4, 0.3
    made, sums = make_advantage(name, **args), {True: 0.0, False: 0.0}
    for others in product([0.0, 1.0], repeat=size - 1):
        chance = torch.tensor([p if r else 1 - p for r in others]).prod()
        for own in (True, False):
            rewards = torch.tensor([float(own), *others], dtype=torch.float64)
            sums[own] += float(chance * made(rewards, size)[0])
    assert credit(name, size, **args).averages(p) == pytest.approx((sums[True], sums[False]), abs=1e-6)


@pytest.mark.parametrize("p", [0.05, 0.4, 0.9])
def test_the_gap_is_the_slope_of_what_is_published(p):
    """PKPO: pass@k over k. MaxRL: log p cut after G − 1 terms. No scaling: pass@1, times 1 − 1/G."""
    group, k = 8, 4
    assert credit("pkpo", group, k=k, anneal=0).gap(p) == pytest.approx((1 - p) ** (k - 1))
    assert credit("maxrl", group).gap(p) == pytest.approx(sum((1 - p) ** (n - 1) for n in range(1, group)))
    assert credit("group", group, scale="none").gap(p) == pytest.approx(1 - 1 / group)
