"""A penalty of ours weighs what TRL's own would, under every loss type, with a policy far from its reference."""

import pytest
import torch
from trl import GRPOTrainer

from sage_rlvr.head import in_place
from sage_rlvr.train import SAGEConfig

from . import tiny
from .test_parity import full_logits, options, penalty_term

LOSSES = ["grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]


@pytest.mark.parametrize("loss", LOSSES)
def test_our_normaliser_is_trls(folder, tmp_path, loss):
    """TRL's loss with its k3 less TRL's loss without is β times our mean of k3: value and gradient."""
    found = []

    class Both(tiny.SAGETrainer):
        def _compute_loss(self, model, inputs):
            theirs = GRPOTrainer._compute_loss(self, model, inputs)
            with in_place(self, 0.0, "beta"):
                bare = GRPOTrainer._compute_loss(self, model, inputs)
            logp, _ = full_logits(self.model, inputs, self.temperature)
            k3 = penalty_term("k3", logp, inputs["ref_per_token_logps"], 0.0, None)
            ours = self.args.beta * self._aggregate(k3, inputs["completion_mask"], inputs)
            weight = self.model.lm_head.weight
            grads = [torch.autograd.grad(x, weight, retain_graph=True)[0] for x in (theirs - bare, ours)]
            found.append((float((theirs - bare).detach()), float(ours.detach()), *grads))
            return theirs

    args = tiny.config(SAGEConfig, tmp_path, **options(loss, (2, 4, 2), guide="none", max_steps=2))
    trainer = Both(folder, tiny.hash_reward, args, tiny.dataset(), rollout_func=tiny.given_rollouts)
    for p in trainer.ref_model.parameters():
        p.data.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    trainer.train()
    assert len(found) == 4
    for theirs, ours, their_grad, our_grad in found:
        assert theirs > 1e-3, "the penalty is there to be seen"
        assert ours == pytest.approx(theirs, rel=1e-3)
        assert float((our_grad - their_grad).norm() / their_grad.norm()) < 1e-3


def test_noise_is_drawn_once_a_rollout_batch_though_the_guide_is_not_held(folder, tmp_path):
    """ε = 1 and a constant σ: log q is the noise alone. Not held, it is made anew at every iteration, from the same address."""
    seen = {}

    class Spy(tiny.SAGETrainer):
        def held_log_q(self, inputs, *rest):
            out = super().held_log_q(inputs, *rest)
            batch, part = divmod(self._step, 8)  # 4 slices, 2 iterations
            seen.setdefault((batch, part % 4), []).append(out)
            return out

    shared = options("grpo", (2, 4, 2), guide="random", guide_args={"epsilon": 1.0, "sigma": 0.15}, guide_hold=False)
    args = tiny.config(SAGEConfig, tmp_path, **(shared | {"max_steps": 8}))
    Spy(folder, tiny.hash_reward, args, tiny.dataset(), rollout_func=tiny.given_rollouts).train()
    assert sorted(seen) == [(batch, part) for batch in range(2) for part in range(4)]
    for first, again in seen.values():
        assert first is not again
        assert (first != 0).any()
        assert torch.equal(first, again)
    for part in range(4):
        one, other = (seen[batch, part][0] for batch in range(2))
        width = min(one.shape[1], other.shape[1])
        assert not torch.equal(one[:, :width], other[:, :width]), "another rollout batch has noise of its own"
