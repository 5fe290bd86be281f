"""verl's own KL functions, fed with the shaped reference, against anchor_penalty and anchor_reward on the same tensors."""

import math

import pytest
import torch
from verl.trainer.ppo.core_algos import kl_penalty

from sage_rlvr.anchor import anchor_penalty
from sage_rlvr.integrations.verl import shape
from sage_rlvr.integrations.verl.options import VERL_LOSS

torch.manual_seed(0)
LOGPS = torch.randn(8, 16, dtype=torch.float64) - 3
REF = LOGPS + 0.5 * torch.randn(8, 16, dtype=torch.float64)
LOG_Q = 0.3 * torch.randn(8, 16, dtype=torch.float64)
WEIGHT = torch.randn(8, 16, dtype=torch.float64)  # any upstream gradient


def value_and_gradient(function):
    logps = LOGPS.clone().requires_grad_(True)
    value = function(logps)
    return value.detach(), torch.autograd.grad((value * WEIGHT).sum(), logps)[0]


@pytest.mark.parametrize("name", sorted(VERL_LOSS))
def test_verls_estimators_are_ours_with_the_shaped_reference(name):
    value, gradient = value_and_gradient(lambda x: kl_penalty(x, REF + LOG_Q, name))
    ours, our_gradient = value_and_gradient(lambda x: anchor_penalty(x, REF, LOG_Q, VERL_LOSS[name]))
    assert ours.max() < 10
    torch.testing.assert_close(value, ours, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, our_gradient, rtol=1e-9, atol=1e-12)


def test_verl_clamps_k3_at_10_and_lets_go_there():
    logps = torch.tensor([-15.0, -5.0, -4.0, -0.1], dtype=torch.float64)
    ref = torch.tensor([-1.0, -2.7, -2.7, -12.0], dtype=torch.float64)  # log ρ = 14, 2.3, 1.3, −11.9
    x = logps.clone().requires_grad_(True)
    value = kl_penalty(x, ref, "low_var_kl")
    gradient = torch.autograd.grad(value.sum(), x)[0]
    y = logps.clone().requires_grad_(True)
    ours = anchor_penalty(y, ref, torch.zeros(4, dtype=torch.float64), "k3")
    torch.testing.assert_close(value, ours.clamp(max=10), rtol=1e-12, atol=0)
    assert (ours > 10).tolist() == [True, False, False, True]
    assert gradient[[0, 3]].tolist() == [0, 0]  # far tokens feel no pull at all under verl's k3
    ours_gradient = torch.autograd.grad(ours.sum(), y)[0]
    assert (ours_gradient.abs() > 0.9).tolist() == [True, True, True, True]
    torch.testing.assert_close(gradient[1:3], ours_gradient[1:3])


def test_off_policy_verls_k3_plus_lacks_the_ratio_and_nothing_else():
    """Per token: ours = π/π_old × verl's gradient. So the two agree exactly where the policy has not moved."""
    old = LOGPS + 0.3 * torch.randn(8, 16, dtype=torch.float64)
    _, theirs = value_and_gradient(lambda x: kl_penalty(x, REF + LOG_Q, "k3+"))
    _, ours = value_and_gradient(lambda x: anchor_penalty(x, REF, LOG_Q, "k3+", old_logps=old))
    torch.testing.assert_close(ours, theirs * (LOGPS - old).exp(), rtol=1e-9, atol=1e-12)
    assert (ours - theirs).abs().max() > 0.1


def test_a_bonus_as_strong_as_the_reward_is_told_in_numbers():
    """A q of e⁴⁰⁰ on one token: means stay finite, and what q does not touch is as it was."""
    logps, ref, mask = torch.full((2, 3), -1.0), torch.full((2, 3), -1.5), torch.ones(2, 3)
    log_q = torch.zeros(2, 3)
    log_q[0, 1] = 400.0
    told, plain = (shape.measure(logps, ref, x, mask, "k3") for x in (log_q, torch.zeros(2, 3)))
    assert all(map(math.isfinite, told.values()))
    assert told["sage/q_max"] > 1e20
    assert (told["sage/kl_ref"], told["sage/q_min"]) == (plain["sage/kl_ref"], 1.0)
