"""The verified guide: its formula, its optimum in closed form and by enumeration, and what a real training run shows it."""

import math
from dataclasses import replace

import pytest
import torch

from sage_rlvr import Signals, UserError, make_guide
from sage_rlvr.lab import descent, solutions
from sage_rlvr.lab.world import random_world
from tests.slow import but_few


def signals(rewards):
    g = torch.Generator().manual_seed(0)
    made = {f: -3 * torch.rand(len(rewards), 4, generator=g) for f in ("logps", "ref_logps")}
    mask = torch.arange(4)[None] < torch.randint(1, 5, (len(rewards), 1), generator=g)
    return Signals(
        **made, mask=mask, rewards=torch.tensor(rewards),
        ref_entropies=torch.rand(len(rewards), 4, generator=g), entropies=torch.rand(len(rewards), 4, generator=g),
    )  # fmt: skip


@pytest.mark.parametrize(("source", "logps", "entropies"), [
    ("reference", "ref_logps", "ref_entropies"), ("policy", "logps", "entropies"),
])  # fmt: skip
def test_formula(source, logps, entropies):
    rewards = [1.0, 0.0, 0.25, math.nan]
    weights = [1.0, 0.0, 0.25, 0.0]  # what can not be scored is not right
    s = signals(rewards)
    plain, level = (make_guide("verified", kappa=0.7, level=level, source=source)(s) for level in (False, True))
    for i, weight in enumerate(weights):
        for t in range(4):
            rare, on = -float(getattr(s, logps)[i, t]), bool(s.mask[i, t])
            assert float(plain[i, t]) == pytest.approx(0.7 * weight * rare * on, abs=1e-6)
            assert float(level[i, t]) == pytest.approx(
                0.7 * weight * (rare - float(getattr(s, entropies)[i, t])) * on, abs=1e-6
            )


def test_what_is_wrong_is_said_in_a_sentence():
    s = signals([1.0, 0.0])
    with pytest.raises(UserError, match=r"needs Signals.rewards, which is None \(given: .*ref_logps"):
        make_guide("verified")(replace(s, rewards=None))
    with pytest.raises(UserError, match=r"needs Signals.ref_entropies"):
        make_guide("verified", level=True)(replace(s, ref_entropies=None))
    with pytest.raises(ValueError, match=r"rewards has shape \(3,\), but there are 2 rows"):
        make_guide("verified")(replace(s, rewards=torch.ones(3)))
    for outside in (-1.0, 3.0):
        with pytest.raises(
            UserError, match=f"takes rewards between 0 and 1, .* one is {outside:.0f}: use a verifiable"
        ):
            make_guide("verified")(signals([1.0, outside]))
    with pytest.raises(UserError, match=r"kappa=1.5 must lie in \(0, 1\]"):
        make_guide("verified", kappa=1.5)
    with pytest.raises(UserError, match=r"kappa=-1 must .* any kappa above 0"):
        make_guide("verified", kappa=-1, source="policy")
    with pytest.raises(UserError, match=r"needs Signals.entropies, which is None"):
        make_guide("verified", level=True, source="policy")(replace(s, entropies=None))
    with pytest.raises(UserError, match=r"source='both' is unknown; choose one of reference, policy"):
        make_guide("verified", source="both")


@pytest.mark.parametrize("kappa", [0.5, 1.0])
def test_the_optimum_spreads_over_what_is_right_and_keeps_the_proportions_of_what_is_wrong(kappa):
    world, beta = random_world(), 0.3
    log_q = world.log_q(make_guide("verified", kappa=kappa))
    best, plain = solutions.sage(world, beta, log_q), solutions.reverse_kl(world, beta)
    right, wrong = world.valid, ~world.valid
    flattened = best[right] / world.ref[right] ** (1 - kappa)
    assert torch.allclose(flattened, flattened[:1].expand_as(flattened), rtol=1e-6)
    kept = best[wrong] / world.ref[wrong]
    assert torch.allclose(kept, kept[:1].expand_as(kept), rtol=1e-6)
    # pass@1, and the chance of the rarest right answer, are both above those of the plain anchor at the same β
    assert best[right].sum() > plain[right].sum()
    rarest = world.ref[right].argmin()
    assert best[right][rarest] > plain[right][rarest]
    # tempering everywhere by as much buys its rare answers with pass@1
    tempered = solutions.sage(world, beta, -kappa * world.ref_logps)
    assert tempered[right].sum() < best[right].sum()


def test_exact_credit_leads_there():
    world, beta = random_world(), 0.3
    log_q = world.log_q(make_guide("verified", kappa=1.0))
    end = world.probs(descent.train(world, [descent.Arm("k1-reward", log_q)], beta))[0]
    assert solutions.total_variation(end, solutions.sage(world, beta, log_q)) < 1e-6


def self_consistent(world, beta, kappa):
    """π ∝ π_ref^(1/(1 + κ))·e^((1 − λ)/(β(1 + κ))) on what is right, π_ref·e^(−λ/β) on what is wrong; λ by bisection."""
    low, high = -5.0, 5.0
    for _ in range(200):
        at = (low + high) / 2
        right = world.ref ** (1 / (1 + kappa)) * math.exp((1 - at) / (beta * (1 + kappa)))
        found = torch.where(world.valid, right, world.ref * math.exp(-at / beta))
        low, high = (at, high) if found.sum() > 1 else (low, at)
    return found


@pytest.mark.parametrize(("beta", "kappa"), but_few([(0.3, 0.8), (0.1, 2.5)], {0}))
def test_with_the_policys_own_surprisal_the_end_is_a_temperature_among_right_answers(beta, kappa):
    """Eq. 4 with the q of the end point itself gives that point again, and descent that makes q anew at every step gets there."""
    world, guide = random_world(), make_guide("verified", kappa=kappa, source="policy")
    end = self_consistent(world, beta, kappa)
    log_q = torch.zeros_like(world.ref_logps)
    log_q[:, 0] = torch.where(world.valid, -kappa * end.log(), 0.0)  # as a whole completion's: Eq. 4 sums it
    assert torch.allclose(solutions.sage(world, beta, log_q), end, atol=1e-9)

    logits = world.ref_logits.clone().requires_grad_()
    steps = torch.optim.Adam([logits], lr=0.2)
    for _ in range(400):
        steps.zero_grad()
        logps = world.logps(logits).sum(-1)
        with torch.no_grad():
            q = guide(world.signals(logits)).double().sum(-1)
            credit = world.reward + beta * (q + world.ref_logps.sum(-1) - logps)
        (-(logps.exp().detach() * (credit - (logps.exp() * credit).sum().detach()) * logps).sum()).backward()
        steps.step()
    reached = world.probs(logits.detach())
    assert solutions.total_variation(reached, end) < 1e-3
    plain = solutions.reverse_kl(world, beta)
    spread = [float(p[world.valid].max() / p[world.valid].min()) for p in (end, plain)]
    assert spread[0] == pytest.approx(spread[1] ** (1 / (1 + kappa)), rel=1e-6)
