"""Ours (coverage, rarity) and BNPO's, each against its definition: every order of a group, the Beta's density, sums that stay."""

import itertools
import math
import random

import pytest
import torch

from sage_rlvr import UserError
from sage_rlvr.advantage import make_advantage
from sage_rlvr.advantage.advantage import rollouts

NAN = float("nan")


def paid(name, rewards, group, share, **given):
    """(N,) what a reward stage pays."""
    return make_advantage(name, share=share).shape(rollouts(rewards, group, 0, 1, **given)).reshape(-1)


def beta_pdf(p, a, b):
    return p ** (a - 1) * (1 - p) ** (b - 1) * math.gamma(a + b) / (math.gamma(a) * math.gamma(b))


def test_beta_advantage_by_hand():
    rewards = torch.tensor([1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1.0])
    got = make_advantage("beta")(rewards, 4)
    p = [0.25, 0.5, 0.75, 1.0]
    mean, var = sum(p) / 4, sum((x - sum(p) / 4) ** 2 for x in p) / 4
    both = mean * (1 - mean) / var - 1
    a, b = mean * both, (1 - mean) * both
    for i, r in enumerate(rewards.tolist()):
        here = p[i // 4]
        want = 0.0 if here == 1.0 else (r - here) / beta_pdf(here, 1 + a / 3, 1 + b / 3)
        assert float(got[i]) == pytest.approx(want, rel=1e-4)


def test_beta_advantage_special_cases():
    """(1, 1) is REINFORCE with a baseline; (3/2, 3/2) is GRPO up to a constant; nan and flat groups carry nothing."""
    extreme = torch.tensor([1, 1, 0, 0.0])  # p = 1 and 0: the fit degenerates to (1, 1), and r − p is 0 everywhere
    assert make_advantage("beta")(extreme, 2).tolist() == [0, 0, 0, 0]
    grpo = {x: (1 - x) / math.sqrt(x * (1 - x)) for x in (0.2, 0.5, 0.7)}
    ours = {x: (1 - x) / beta_pdf(x, 1.5, 1.5) for x in grpo}
    assert len({round(ours[x] / grpo[x], 9) for x in grpo}) == 1
    some = torch.tensor([float("nan"), 1, 0, 1, float("nan"), float("nan"), float("nan"), float("nan")])
    got = make_advantage("beta")(some, 4)
    assert got[0] == 0
    assert got[4:].tolist() == [0] * 4
    assert got[1] > 0 > got[2]
    alike = make_advantage("beta")(torch.tensor([1, 0, 1, 0.0]), 2)
    assert torch.isfinite(alike).all()
    assert alike[0] > 0
    with pytest.raises(UserError, match="takes rewards between 0 and 1"):
        make_advantage("beta")(torch.tensor([2.0, 0.0]), 2)


def test_coverage_pays_each_its_shapley_value_of_the_distinct_right_answers():
    """By definition: what a completion adds to the set of right answers, averaged over every order of its group."""
    draw = random.Random(3)
    for _ in range(20):
        group = draw.choice([2, 3, 5])
        answers = [draw.choice(["a", "b", "c", None]) for _ in range(2 * group)]
        right = [float(a in ("a", "b")) for a in answers]
        want = []
        for first in (0, group):
            added, orders = [0.0] * group, list(itertools.permutations(range(group)))
            for order in orders:
                found = set()
                for i in order:
                    if right[first + i] and answers[first + i] not in found:
                        found.add(answers[first + i])
                        added[i] += 1
            want += [a / len(orders) for a in added]
        rewards = torch.tensor(right)
        shapley = paid("coverage", rewards, group, 1.0, answers=answers)
        assert shapley.tolist() == pytest.approx(want)
        half = paid("coverage", rewards, group, 0.5, answers=answers)
        assert torch.allclose(half, (rewards + shapley) / 2)
    unscorable = paid("coverage", torch.tensor([NAN, 1.0, 1.0]), 3, 1.0, answers=["a", "a", "a"])
    assert unscorable.tolist()[1:] == [0.5, 0.5]
    unreadable = paid("coverage", torch.ones(8), 8, 1.0, answers=[None] * 8)
    assert unreadable.tolist() == [1.0] * 8  # a plain reward whose answers cannot be read: not one answer, eight times


def test_rarity_shares_a_groups_reward_by_surprisal():
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 2.0, NAN, 1.0, 1.0, 0.0])
    surprisal = torch.tensor([1.0, 9.0, 2.0, 6.0, 1.0, 1.0, 1.0, 5.0, 4.0, 0.0, 0.0, 1.0])
    whole = paid("rarity", rewards, 4, 1.0, ref_logps=-surprisal)
    # of three right ones by their share of 9; a lone one, and what is certain, keep theirs
    assert whole.tolist() == pytest.approx([1 / 3, 0, 2 / 3, 2, 0, 0, 0, 2, NAN, 1, 1, 0], nan_ok=True)
    part = paid("rarity", rewards, 4, 0.25, ref_logps=-surprisal)
    assert part.tolist() == pytest.approx((0.75 * rewards + 0.25 * whole).tolist(), nan_ok=True)
    unknown = -torch.tensor([2.0, NAN, 2.0, 6.0])  # nan: it was masked before it was looked at
    assert paid("rarity", torch.ones(4), 4, 1.0, ref_logps=unknown).tolist() == pytest.approx([0.6, 1, 0.6, 1.8])
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        right, rare = torch.randint(2, (32,), generator=draw).float(), 9 * torch.rand(32, generator=draw)
        shared = paid("rarity", right, 8, 1.0, ref_logps=-rare)
        assert torch.allclose(shared.view(-1, 8).sum(1), right.view(-1, 8).sum(1), atol=1e-5), (
            "none is added, none is lost"
        )


def log_beta_pdf(p, a, b):
    return (a - 1) * math.log(p) + (b - 1) * math.log(1 - p) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)


@pytest.mark.parametrize("right", [1, 2, 3])
def test_a_beta_fitted_to_groups_all_alike_is_held(right):
    """Their variance is 0, and a + b would be infinite: 100 is as sharp as it gets, a = 100·p and b = 100·(1 − p)."""
    p, group = right / 4, [1.0] * right + [0.0] * (4 - right)
    got = make_advantage("beta")(torch.tensor(group * 3), 4)
    density = math.exp(log_beta_pdf(p, 1 + 100 * p / 3, 1 + 100 * (1 - p) / 3))
    assert got.tolist() == pytest.approx([(r - p) / density for r in group] * 3, rel=1e-5)
    blunt = make_advantage("beta", sharpest=0.0)(torch.tensor(group * 3), 4)
    assert blunt.tolist() == pytest.approx([r - p for r in group] * 3), "held at 0 it is uniform: r − p"


def test_what_cannot_be_scored_moves_no_mean():
    with_gap = make_advantage("beta")(torch.tensor([1, 0, 1, NAN, 1, 0, 0, 0]), 4)
    p = [2 / 3, 1 / 4]
    mean = sum(p) / 2
    both = mean * (1 - mean) / (sum((x - mean) ** 2 for x in p) / 2) - 1
    densities = [math.exp(log_beta_pdf(x, 1 + mean * both / 3, 1 + (1 - mean) * both / 3)) for x in p]
    rewards = ((1, 0, 1), (1, 0, 0, 0))
    first, second = ([(r - x) / d for r in group] for x, d, group in zip(p, densities, rewards))
    assert with_gap.tolist() == pytest.approx([*first, 0.0, *second], rel=1e-5)


def test_a_wrong_twin_takes_nothing():
    """The same extracted answer, wrong in another completion (cut at the limit, say): it is not paid, and does not share."""
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert paid("coverage", rewards, 4, 1.0, answers=["a", "a", "b", None]).tolist() == [1, 0, 1, 0]
