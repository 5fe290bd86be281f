"""The taught guides where everything can be counted: prompts of different difficulty, and a value that is the true one."""

import pytest
import torch

from sage_rlvr import GroupGuide
from sage_rlvr.lab import difficulty, solutions, theory
from sage_rlvr.lab.descent import Arm, descend, expected_gradient
from sage_rlvr.lab.world import random_world

BETA = 0.3
HARD = [random_world(seed, right=right) for seed, right in ((0, 1), (1, 6), (2, 30))]
TWO = torch.tensor([0.002, 0.2], dtype=torch.float64)


def group_log_q(world, rate, guide):
    """(Y, T): what the guide answers for a group so large that its solve rate is the chance itself."""
    total = world.reward * guide.bonus(rate, BETA)
    return (total / world.tokens.shape[1])[:, None].expand_as(world.ref_logps)


def where_descent_ends(world, guide):
    """π(y), (Y,): q is made from the policy at every step."""

    def gradient(logits):
        log_q = group_log_q(world, world.probs(logits[0])[world.valid].sum(), guide)
        return expected_gradient(world, logits, [Arm("k1-reward", log_q)], BETA)

    return world.probs(descend(world, gradient))[0]


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_exact_credit_ends_in_the_closed_form_and_delta_grows_with_difficulty(gamma):
    """q is made anew from the policy's own solve rate at each step; Δ = log(E_ref[q|C]/E_ref[q|¬C]), summed over completions."""
    guide, found = GroupGuide(strength=0.7, gamma=gamma), []
    for world in HARD:
        ref, right = world.ref, world.valid
        end = where_descent_ends(world, guide)
        closed = group_log_q(world, difficulty.grouped(ref[right].sum()[None], BETA, guide), guide)
        assert solutions.total_variation(end, solutions.sage(world, BETA, closed)) < 1e-6
        p = end[right].sum()
        q = group_log_q(world, p, guide).sum(-1).exp()
        delta = ((ref * q)[right].sum() / ref[right].sum() / ((ref * q)[~right].sum() / ref[~right].sum())).log()
        assert float(p.logit() - ref[right].sum().logit() - 1 / BETA) == pytest.approx(float(delta), abs=1e-5)
        assert float(delta) == pytest.approx(0.7 / BETA * float(1 - p) ** gamma, abs=1e-5)
        found.append((float(ref[right].sum()), float(delta)))
    assert [d for _, d in sorted(found)] == sorted((d for _, d in found), reverse=True)
    assert len({round(d, 3) for _, d in found}) == 3


def frontier(rates):
    """(mean pass@1, mean pass@k) over a fine grid of β: against what bisection says of the one that matches."""
    betas = torch.logspace(-1.5, 3, 20_000, dtype=torch.float64)
    ends = torch.sigmoid(rates.logit()[None] + 1 / betas[:, None])
    return ends.mean(1), (1 - (1 - ends) ** 16).mean(1)


@pytest.mark.parametrize("beta", [0.3, 0.5, 2.0])
def test_two_difficulties_gain_at_the_same_pass_at_1(beta):
    ends = difficulty.grouped(TWO, beta, GroupGuide())
    ones, sixteens = frontier(TWO)
    below = ones <= ends.mean()
    above_frontier = difficulty.pass_at(ends, 16) - float(sixteens[below].max())  # pass@k rises with pass@1 along it
    gain = difficulty.gain(TWO, ends, 16)
    assert 0 < gain <= above_frontier + 1e-12
    assert above_frontier == pytest.approx(gain, abs=2e-3)
    assert ends[0] < ends[1], "the hard one stays the harder one"


def test_when_it_gains_nothing():
    guide = GroupGuide()
    ends = difficulty.grouped(TWO, 0.5, guide)
    assert difficulty.gain(TWO, ends, 1) == pytest.approx(0, abs=1e-12), "pass@1 is what is matched"
    same = torch.tensor([0.1, 0.1], dtype=torch.float64)
    assert difficulty.gain(same, difficulty.grouped(same, 0.5, guide), 16) == pytest.approx(0, abs=1e-12)
    flat = difficulty.grouped(TWO, 0.5, GroupGuide(gamma=0.0))
    assert difficulty.gain(TWO, flat, 16) == pytest.approx(0, abs=1e-12)
    assert flat.tolist() == pytest.approx(torch.sigmoid(TWO.logit() + 1 / 0.25).tolist()), "γ = 0 is half the β"
    backwards = torch.sigmoid(TWO.logit() + 2 + 2 * TWO)  # a Δ that grows with ease
    assert difficulty.gain(TWO, backwards, 16) < -1e-3


def test_it_gains_most_in_between_and_nothing_where_all_is_certain_or_nothing_moves():
    gains = [difficulty.gain(TWO, difficulty.grouped(TWO, b, GroupGuide()), 16) for b in (0.1, 0.3, 0.5, 2.0, 100.0)]
    assert gains[0] < 1e-4 < gains[1] < gains[2]
    assert gains[2] > gains[3] > 1e-3 > gains[4] > 0
    assert gains[2] == pytest.approx(0.1757, abs=1e-4), "what docs/theory.md says"


def test_the_checks_can_fail(monkeypatch):
    world = random_world(0)
    assert theory.grows_with_difficulty(worlds=4).holds
    monkeypatch.setattr(GroupGuide, "bonus", lambda self, rate, beta: rate / beta)  # pays what is often solved
    assert not theory.grows_with_difficulty(worlds=4).holds
    monkeypatch.undo()
    monkeypatch.setattr(difficulty, "values", lambda w, logits: torch.zeros(len(w.reward), 4, dtype=torch.float64))
    assert not theory.a_perfect_value(world).holds


# ---- value ---------------------------------------------------------------------------------------------------------


def test_the_value_of_a_prefix_is_the_share_of_right_among_what_may_follow():
    world = random_world(3)
    found = difficulty.values(world, world.ref_logits)
    ref, t = world.ref, world.tokens
    for y in (0, 17, 42):
        for length in range(4):
            follows = (t[:, :length] == t[y, :length]).all(1)
            told = float((ref * world.reward)[follows].sum() / ref[follows].sum())
            assert float(found[y, length]) == pytest.approx(told, abs=1e-12)


@pytest.mark.parametrize("estimator", ["k2", "k3+"])
def test_of_the_policy_it_adds_the_policy_gradient_to_an_estimator_without_credit(estimator):
    """k2 pays a token for itself alone. With V of the policy itself, β·κ·(V_t − V_{t−1}) is the advantage of y_t: summed over
    tokens, β·κ times the gradient of E[r], credit to earlier tokens included. With π_ref's V it is not."""
    world, kappa = random_world(1), 1.5
    g = torch.Generator().manual_seed(0)
    logits = world.ref_logits + torch.randn(world.ref_logits.shape, generator=g, dtype=torch.float64)

    def added(v):
        log_q = kappa * v.diff(dim=-1)
        with_, without = (
            expected_gradient(world, logits[None], [Arm(estimator, q)], BETA)[0] for q in (log_q, 0 * log_q)
        )
        return without - with_

    at = logits.clone().requires_grad_()
    (wanted,) = torch.autograd.grad((world.probs(at) * world.reward).sum(), at)
    assert torch.allclose(added(difficulty.values(world, logits)), BETA * kappa * wanted, atol=1e-12)
    assert not torch.allclose(added(difficulty.values(world, world.ref_logits)), BETA * kappa * wanted, atol=1e-3)
