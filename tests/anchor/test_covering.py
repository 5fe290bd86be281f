"""Divergences on π_ref's own samples, against every completion written out and the textbook's formulas."""

import pytest
import torch

from sage_rlvr.anchor import covering_penalty
from sage_rlvr.errors import UserError
from sage_rlvr.lab.world import random_world

WORLD = random_world(seed=3, width=3, depth=3, right=9)


def kl(p, q):
    return (p * (p / q).log()).sum(-1)


def exact(logits, divergence):
    """Per prefix, (N,), from the two next-token distributions."""
    p, ref = logits.softmax(-1), WORLD.ref_logits.softmax(-1)
    mixed = (p + ref) / 2
    return kl(ref, p) if divergence == "forward" else (kl(p, mixed) + kl(ref, mixed)) / 2


def gradient(value, logits):
    return torch.autograd.grad(value, logits)[0]


@pytest.fixture
def logits():
    noise = torch.randn(WORLD.ref_logits.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return (WORLD.ref_logits + 1.5 * noise).requires_grad_()


@pytest.mark.parametrize("divergence", ["forward", "js"])
def test_value_and_gradient_are_the_divergences_at_the_prefixes_that_the_reference_visits(logits, divergence):
    visits = WORLD.visits(WORLD.ref)  # no gradient: π_ref's
    truth = (visits * exact(logits, divergence)).sum()
    sampled = (WORLD.ref[:, None] * covering_penalty(WORLD.logps(logits), WORLD.ref_logps, divergence)).sum()
    assert sampled.item() == pytest.approx(truth.item(), abs=1e-12)
    assert truth > 0.1
    wanted = gradient(truth, logits)
    torch.testing.assert_close(gradient(sampled, logits), wanted, rtol=0, atol=1e-12)
    assert wanted.abs().max() > 0.01


def test_forward_kl_adds_up_to_that_of_whole_completions_and_needs_no_reference(logits):
    whole = kl(WORLD.ref, WORLD.probs(logits))
    sampled = (WORLD.ref[:, None] * covering_penalty(WORLD.logps(logits), WORLD.ref_logps)).sum()
    assert sampled.item() == pytest.approx(whole.item(), abs=1e-12)
    plain = (WORLD.ref[:, None] * covering_penalty(WORLD.logps(logits), None)).sum()
    torch.testing.assert_close(gradient(plain, logits), gradient(whole, logits), rtol=0, atol=1e-12)


def test_right_answers_alone_pull_toward_the_reference_given_that_it_is_right(logits):
    """Forward KL on right samples is the forward KL to π_ref(y | right)."""
    target = WORLD.ref * WORLD.valid / (WORLD.ref * WORLD.valid).sum()
    right = WORLD.valid
    truth = kl(target[right], WORLD.probs(logits)[right])
    sampled = (target[:, None] * covering_penalty(WORLD.logps(logits), None)).sum()
    torch.testing.assert_close(gradient(sampled, logits), gradient(truth, logits), rtol=0, atol=1e-12)


def test_js_is_still_where_the_policy_is_the_reference():
    logps = WORLD.ref_logps.clone().requires_grad_()
    loss = covering_penalty(logps, WORLD.ref_logps, "js")
    assert loss.abs().max() < 1e-15
    assert torch.autograd.grad(loss.sum(), logps)[0].abs().max() < 1e-15


def test_js_far_away_is_finite_and_right():
    """log u of ±60: by the limits ½·log 2 and ½·u·log 2."""
    u = torch.tensor([-60.0, 60.0], dtype=torch.float64, requires_grad=True)
    low, high = covering_penalty(u, torch.zeros(2, dtype=torch.float64), "js")
    assert low.item() == pytest.approx(0.5 * torch.tensor(2.0).double().log().item())
    assert high.item() == pytest.approx(0.5 * torch.tensor(60.0).double().exp().item() * 0.6931471805599453)
    assert torch.autograd.grad(low + high, u)[0].isfinite().all()


def test_what_is_refused():
    x = torch.zeros(1, 1)
    with pytest.raises(UserError, match="divergence='reverse' is unknown; choose one of forward, js"):
        covering_penalty(x, x, "reverse")
    with pytest.raises(UserError, match="'js' compares with π_ref token by token"):
        covering_penalty(x, None, "js")
