"""A guide that needs rewards is shown each row's own, wherever log q is made: with the rollouts, in the loss, in its parts."""

import math

import pytest
import torch

from sage_rlvr.train import SAGETrainer

from . import tiny

WAYS = {
    "exact credit": {"anchor_estimator": "k1-reward"},
    "in the loss": {"anchor_estimator": "k3"},
    "in the loss, not held, twice": {
        "anchor_estimator": "k3",
        "guide_hold": False,
        "num_iterations": 2,
        "max_steps": 4,
    },
    "in parts": {"anchor_estimator": "k3+", "tokens_per_microbatch": 40},
    "groups drawn again": {"anchor_estimator": "k1-reward", "dynamic_sampling": 2},
    "as strong as the reward": {
        "anchor_estimator": "k1-reward",
        "beta": 0.003,
        "guide_args": {"kappa": 83.0, "source": "policy"},
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_each_row_has_its_own_reward(folder, tmp_path, way):
    right, asked = {}, []

    class Spy(SAGETrainer):
        def _shape_rollouts(self, output):
            texts = self._tokenizer.batch_decode(output["completion_ids"], skip_special_tokens=True)
            right.update(zip(output["sage_rows"].tolist(), tiny.hash_reward(texts)))
            super()._shape_rollouts(output)

    options = {"guide": "verified", "guide_args": {"kappa": 1.0}, "per_device_train_batch_size": 8, **WAYS[way]}
    trainer = tiny.build(folder, tmp_path, Spy, **options)
    guide = trainer.guide

    def seen(signals):
        log_q = guide(signals)
        asked.append(len(log_q))
        expected = torch.tensor([right[row] for row in signals.rows.tolist()])
        assert torch.equal(signals.rewards.float(), expected)
        assert torch.equal(log_q.ne(0).any(1), (expected > 0) & (signals.mask.sum(1) > 0))
        return log_q

    seen.across_rows, seen.check_rewards, seen.settings = False, guide.check_rewards, guide.settings  # as the guide
    trainer.guide = seen
    trainer.train()
    assert asked
    assert (way == "in parts") == (max(asked) < 8)
    assert len(set(right.values())) == 2, "some are right and some are not"
    logged = [
        x
        for entry in trainer.state.log_history
        for name, x in entry.items()
        if name == "kl" or name.startswith("sage/q_")
    ]
    assert logged
    assert all(map(math.isfinite, logged)), "q may be e⁴⁰⁰: the log says so in a number"
