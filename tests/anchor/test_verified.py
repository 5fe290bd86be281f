"""The verified guide: its formula, its optimum in closed form and by enumeration, and what a real training run shows it."""

import math
from dataclasses import replace

import pytest
import torch

from sage_rlvr import Signals, UserError, make_guide
from sage_rlvr.lab import descent, solutions
from sage_rlvr.lab.world import random_world


def signals(rewards):
    g = torch.Generator().manual_seed(0)
    made = {f: -3 * torch.rand(len(rewards), 4, generator=g) for f in ("logps", "ref_logps")}
    mask = torch.arange(4)[None] < torch.randint(1, 5, (len(rewards), 1), generator=g)
    return Signals(
        **made, mask=mask, ref_entropies=torch.rand(len(rewards), 4, generator=g), rewards=torch.tensor(rewards)
    )


def test_formula():
    rewards = [1.0, 0.0, 0.25, math.nan, -1.0, 3.0]
    weights = [1.0, 0.0, 0.25, 0.0, 0.0, 1.0]  # what can not be scored is not right; [0, 1] holds
    s = signals(rewards)
    plain, level = make_guide("verified", kappa=0.7)(s), make_guide("verified", kappa=0.7, level=True)(s)
    for i, weight in enumerate(weights):
        for t in range(4):
            rare, on = -float(s.ref_logps[i, t]), bool(s.mask[i, t])
            assert float(plain[i, t]) == pytest.approx(0.7 * weight * rare * on, abs=1e-6)
            assert float(level[i, t]) == pytest.approx(
                0.7 * weight * (rare - float(s.ref_entropies[i, t])) * on, abs=1e-6
            )


def test_what_is_wrong_is_said_in_a_sentence():
    s = signals([1.0, 0.0])
    with pytest.raises(UserError, match=r"needs Signals.rewards, which is None \(given: .*ref_logps"):
        make_guide("verified")(replace(s, rewards=None))
    with pytest.raises(UserError, match=r"needs Signals.ref_entropies"):
        make_guide("verified", level=True)(replace(s, ref_entropies=None))
    with pytest.raises(ValueError, match=r"rewards has shape \(3,\), but there are 2 rows"):
        make_guide("verified")(replace(s, rewards=torch.ones(3)))
    with pytest.raises(UserError, match=r"kappa=1.5 must lie in \(0, 1\]"):
        make_guide("verified", kappa=1.5)


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
