"""verl's own Clip-Cov and KL-Cov against ours, on one batch that is one micro-batch: the same tokens are chosen."""

from types import SimpleNamespace

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config.actor import PolicyLossConfig

from sage_rlvr.advantage import Tokens, make_advantage

DRAW = torch.Generator().manual_seed(0)
ROWS, COLUMNS = 12, 20
MASK = torch.arange(COLUMNS) < torch.randint(1, COLUMNS + 1, (ROWS, 1), generator=DRAW)
OLD = -4 * torch.rand(ROWS, COLUMNS, generator=DRAW, dtype=torch.float64)
ADVANTAGES = (2 * torch.randn(ROWS, 1, generator=DRAW, dtype=torch.float64)).expand(ROWS, COLUMNS)
SOME = 0.1 * torch.randn(ROWS, COLUMNS, generator=DRAW, dtype=torch.float64)  # how far the policy has moved
N = int(MASK.sum())


def verls_gradient(name, logps, old=OLD, **settings):
    """(N, T) of verl's loss, its mean over tokens, in each token's log-prob; times the tokens."""
    config = SimpleNamespace(
        policy_loss=PolicyLossConfig(loss_mode=name, **settings),
        clip_ratio=100.0, clip_ratio_low=1.0, clip_ratio_high=100.0, global_batch_info={},
    )  # fmt: skip
    x = logps.clone().requires_grad_(True)
    loss, _ = get_policy_loss_fn(name)(
        old_log_prob=old, log_prob=x, advantages=ADVANTAGES, response_mask=MASK.double(), config=config
    )
    return torch.autograd.grad(loss, x)[0] * N


def tokens(logps, seed=0):
    return Tokens(ADVANTAGES, logps, MASK, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("share", [0.002, 0.02, 0.2])
def test_kl_cov_holds_the_same_tokens_by_the_same_gradient(share):
    logps = OLD + SOME
    theirs = verls_gradient("kl_cov", logps, kl_cov_ratio=share, ppo_kl_coef=0.7)
    _, pull = make_advantage("kl_cov", share=share, coef=0.7).credit(tokens(logps))
    x = logps.clone().requires_grad_(True)
    ours = -ADVANTAGES * (x - OLD).exp() + pull * (x - OLD).abs()
    (gradient,) = torch.autograd.grad((ours * MASK).sum(), x)
    assert int((pull > 0).sum()) == max(1, int(share * N))
    torch.testing.assert_close(theirs, gradient, rtol=1e-9, atol=1e-9)


def test_clip_cov_chooses_among_the_same_tokens_as_many():
    bounds = {"low": 0.5, "high": 3.0}
    settings = {"clip_cov_lb": 0.5, "clip_cov_ub": 3.0}
    all_ours = make_advantage("clip_cov", share=1.0, **bounds).chosen(tokens(OLD))
    all_theirs = (verls_gradient("clip_cov", OLD, clip_cov_ratio=1.0, **settings) == 0) & MASK
    assert torch.equal(all_ours, all_theirs)
    share = 0.4 * int(all_ours.sum()) / N
    ours = make_advantage("clip_cov", share=share, **bounds).chosen(tokens(OLD, seed=3))
    torch.manual_seed(3)
    gradient = verls_gradient("clip_cov", OLD, clip_cov_ratio=share, **settings)
    theirs = (gradient == 0) & MASK
    assert int(ours.sum()) == int(theirs.sum()) == int(share * N) > 3
    assert not (ours & ~all_theirs).any()
    advantages, _ = make_advantage("clip_cov", share=share, **bounds).credit(tokens(OLD, seed=3))
    torch.testing.assert_close(advantages[~ours & ~theirs & MASK], -gradient[~ours & ~theirs & MASK])


def test_published_settings_are_verls():
    published, clip, kl = PolicyLossConfig(), make_advantage("clip_cov"), make_advantage("kl_cov")
    assert (clip.share, clip.low, clip.high) == (
        published.clip_cov_ratio,
        published.clip_cov_lb,
        published.clip_cov_ub,
    )
    # verl's defaults of KL-Cov are .0002 and .1; the publication's are .002 for 7B, .0002 for 32B, and 1
    assert (kl.share, kl.coef) == (10 * published.kl_cov_ratio, 10 * published.ppo_kl_coef)


def test_before_the_first_update_verl_pushes_by_the_sign_of_rounding():
    """Why ours leaves the first update out: the sign of what two passes over one model differ by, times the coefficient."""
    plain = -ADVANTAGES * MASK
    same = verls_gradient("kl_cov", OLD, kl_cov_ratio=0.2, ppo_kl_coef=1.0)
    torch.testing.assert_close(same, plain)
    rounding = 1e-12 * torch.randn(OLD.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rounded = verls_gradient("kl_cov", OLD + rounding, kl_cov_ratio=0.2, ppo_kl_coef=1.0) - plain
    pushed = rounded.abs() > 0.5
    assert int(pushed.sum()) == int(0.2 * N)
    torch.testing.assert_close(rounded[pushed], rounding.sign()[pushed], rtol=1e-6, atol=1e-6)
