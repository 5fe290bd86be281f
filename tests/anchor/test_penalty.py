"""Every estimator's gradient against METHOD's closed form, by enumeration of a tree, in float64."""

import numpy as np
import pytest
import torch

from sage_rlvr import ESTIMATORS, UserError, anchor_penalty, anchor_reward
from sage_rlvr.lab.world import random_world

IN_LOSS = ["k3", "k2", "k3+", "forward", "forward-value"]


def setting(seed=3):
    """A world, a policy away from the reference, and a q that depends on everything."""
    world = random_world(seed)
    g = torch.Generator().manual_seed(seed)
    logits = world.ref_logits + torch.randn(world.ref_logits.shape, generator=g, dtype=torch.float64)
    log_q = 0.3 * torch.randn(world.ref_logps.shape, generator=g, dtype=torch.float64)
    return world, logits, log_q


def autodiff(world, logits, log_q, estimator):
    """Σ_y π(y)·∇Σ_t penalty, π(y) not differentiated: what an infinite on-policy batch averages to."""
    logits = logits.clone().requires_grad_()
    logps = world.logps(logits)
    penalty = anchor_penalty(logps, world.ref_logps, log_q, estimator)
    loss = (logps.sum(-1).exp().detach() * penalty.sum(-1)).sum()
    return torch.autograd.grad(loss, logits)[0].numpy()


def closed_form(world, logits, log_q, estimator):
    """METHOD section 4, written with NumPy sums over prefixes and tokens: no autodiff, no code of ours.

    ∇log π(v|s) with respect to the logits of s is e_v − π(·|s). q may differ between completions that share a prefix, so
    each completion contributes its own weight.
    """
    z = logits.numpy()
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    z = world.ref_logits.numpy()
    ref = np.exp(z - z.max(1, keepdims=True))
    ref /= ref.sum(1, keepdims=True)
    nodes, tokens, q = world.nodes.numpy(), world.tokens.numpy(), np.exp(log_q.numpy())
    grad = np.zeros_like(p)
    for y in range(len(nodes)):
        steps = list(zip(nodes[y], tokens[y]))
        pi_y = np.prod([p[s, v] for s, v in steps])
        for t, (s, v) in enumerate(steps):
            anchor, score = q[y, t] * ref[s, v], np.eye(p.shape[1])[v] - p[s]
            others = pi_y / p[s, v]  # probability of the completion's other tokens: E over y_t is then an explicit sum
            log_rho = np.log(anchor / p[s, v])
            grad[s] += {
                # −E_{q·π_ref}[∇log π] plus E_π[∇log π], which vanishes only when summed over tokens with q the same
                "k3": others * (p[s, v] - anchor) * score,
                "forward": -others * anchor * score,
                "k2": -others * p[s, v] * log_rho * score,
                "k3+": -others * p[s, v] * log_rho * score,
                "forward-value": -others * anchor * log_rho * score,
            }[estimator]
    return grad


@pytest.mark.parametrize("estimator", IN_LOSS)
@pytest.mark.parametrize("seed", [3, 4])
def test_gradient_is_the_named_one(estimator, seed):
    world, logits, log_q = setting(seed)
    error = np.abs(autodiff(world, logits, log_q, estimator) - closed_form(world, logits, log_q, estimator)).max()
    assert error < 1e-8


def test_k3_is_forward_kl_and_k2_is_reverse_kl_of_each_prefix():
    """Against autodiff of the two divergences themselves, prefix by prefix, weighted by how often it is reached."""
    world, logits, _ = setting()
    none = torch.zeros_like(world.ref_logps)
    visits = world.visits(world.probs(logits))

    def divergence(forward):
        free = logits.clone().requires_grad_()
        a, b = free.log_softmax(-1), world.ref_logits.log_softmax(-1)
        per_node = (b.exp() * (b - a)).sum(-1) if forward else (a.exp() * (a - b)).sum(-1)
        return torch.autograd.grad((visits * per_node).sum(), free)[0].numpy()

    for estimator, forward in (("k3", True), ("forward", True), ("k2", False), ("k3+", False)):
        assert np.abs(autodiff(world, logits, none, estimator) - divergence(forward)).max() < 1e-10


def test_forward_value_is_the_gradient_of_half_squared_log_ratio_under_the_reference():
    world, logits, _ = setting()
    visits = world.visits(world.probs(logits))
    free = logits.clone().requires_grad_()
    a, b = free.log_softmax(-1), world.ref_logits.log_softmax(-1)
    (expected,) = torch.autograd.grad((visits * (b.exp() * 0.5 * (b - a).square()).sum(-1)).sum(), free)
    none = torch.zeros_like(world.ref_logps)
    assert np.abs(autodiff(world, logits, none, "forward-value") - expected.numpy()).max() < 1e-10


@pytest.mark.parametrize("credit", ["sequence", "to_go"])
def test_k1_reward_gives_the_gradient_of_equation_6(credit):
    """Autodiff of J = Σ_y π(y)·(r − β·(log π − log π_ref − log q)), differentiated through π, for a q of the past alone."""
    world, logits, log_q = setting()
    log_q = log_q.gather(0, world.first_with_prefix)
    beta = 0.3
    free = logits.clone().requires_grad_()
    logp = world.logps(free).sum(-1)
    j = (logp.exp() * (world.reward - beta * (logp - world.ref_logps.sum(-1) - log_q.sum(-1)))).sum()
    (expected,) = torch.autograd.grad(j, free)
    free = logits.clone().requires_grad_()
    logps = world.logps(free)
    bonus = anchor_reward(logps, world.ref_logps, log_q, torch.ones_like(log_q), credit)
    bonus = bonus[:, None] if credit == "sequence" else bonus
    pi = logps.sum(-1).exp().detach()
    (got,) = torch.autograd.grad((pi[:, None] * (world.reward[:, None] + beta * bonus) * logps).sum(), free)
    assert (got - expected).abs().max() < 1e-10


def test_values_against_scalar_arithmetic():
    logp, ref, q, old = -1.3, -0.7, 0.2, -1.1
    rho = np.exp(ref + q - logp)
    t = [torch.tensor([[x]], dtype=torch.float64) for x in (logp, ref, q, old)]
    expected = {
        "k3": rho - np.log(rho) - 1,
        "k2": 0.5 * np.log(rho) ** 2,
        "k3+": (rho - np.log(rho) - 1) * np.exp(logp - old),
        "forward": -rho * logp,
        "forward-value": rho * np.log(rho) - rho + 1,
    }
    for estimator, value in expected.items():
        got = anchor_penalty(*t[:3], estimator, old_logps=t[3] if estimator == "k3+" else None)
        assert float(got) == pytest.approx(value, abs=1e-12)


def test_only_logps_receive_gradient():
    a, b, c = (torch.randn(2, 3, requires_grad=True) for _ in range(3))
    for estimator in IN_LOSS:
        anchor_penalty(a, b, c, estimator).sum().backward()
    assert a.grad is not None
    assert b.grad is None
    assert c.grad is None
    assert not anchor_reward(a, b, c, torch.ones(2, 3)).requires_grad


def test_bf16_inputs_are_computed_in_float32():
    logps, ref = torch.randn(2, 8).bfloat16(), torch.randn(2, 8).bfloat16()
    for estimator in IN_LOSS:
        got = anchor_penalty(logps, ref, torch.zeros(2, 8), estimator)
        assert got.dtype == torch.float32
        assert torch.equal(got, anchor_penalty(logps.float(), ref.float(), torch.zeros(2, 8), estimator))


def test_reward_credit_and_masks():
    logps = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, float("nan"), float("inf")], [0.0, 0.0, 0.0]])
    ref, log_q = torch.zeros(3, 3), torch.tensor([[0.5, 0.0, 0.25]]).repeat(3, 1)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    assert anchor_reward(logps, ref, log_q, mask).tolist() == [6.75, 1.5, 0.0]
    to_go = anchor_reward(logps, ref, log_q, mask, credit="to_go")
    assert to_go.tolist() == [[6.75, 5.25, 3.25], [1.5, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_wrong_words_name_the_field_and_the_choices():
    x = torch.zeros(1, 1)
    with pytest.raises(
        UserError, match=r"estimator='k4' is unknown; choose one of k3, k2, k3\+, forward, forward-value"
    ):
        anchor_penalty(x, x, x, "k4")
    with pytest.raises(UserError, match="use anchor_reward"):
        anchor_penalty(x, x, x, "k1-reward")
    with pytest.raises(UserError, match="old_logps is used by estimator='k3\\+' alone"):
        anchor_penalty(x, x, x, "k3", old_logps=x)
    with pytest.raises(UserError, match="credit='token' is unknown; choose one of sequence, to_go"):
        anchor_reward(x, x, x, x, credit="token")
    assert set(IN_LOSS) | {"k1-reward"} == ESTIMATORS
