"""bf16 in every place at once: subtracted there, log-probs near −8 would move in steps of 0.03."""

import pytest
import torch

from sage_rlvr import anchor_penalty, anchor_reward
from sage_rlvr.anchor.penalty import IN_LOSS


def half(*shape, seed):
    return (-8 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed))).bfloat16()


@pytest.mark.parametrize("estimator", IN_LOSS)
def test_penalties_are_computed_in_float32(estimator):
    logps, ref, log_q, old = (half(4, 64, seed=i) for i in range(4))
    more = {"old_logps": old} if estimator == "k3+" else {}
    wide = {"old_logps": old.float()} if estimator == "k3+" else {}
    got = anchor_penalty(logps, ref, log_q, estimator, **more)
    assert got.dtype == torch.float32
    assert torch.equal(got, anchor_penalty(logps.float(), ref.float(), log_q.float(), estimator, **wide))


def test_the_bonus_is_summed_in_float32():
    logps, ref, log_q = (half(4, 64, seed=i) for i in range(3))
    exact = (ref.double() + log_q.double() - logps.double()).sum(-1)
    got = anchor_reward(logps, ref, log_q, torch.ones(4, 64))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=1e-4)
