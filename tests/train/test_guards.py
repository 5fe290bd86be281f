"""Guards: what is not finite stops a run, what is masked or cannot be scored does not."""

import pytest
import torch

from sage_rlvr.errors import Diverged
from sage_rlvr.train import SAGETrainer

from . import tiny
from .tiny import build


def test_nan_stops_the_run_and_names_step_tensor_and_checkpoint(folder, tmp_path):
    class Poisoned(SAGETrainer):
        def training_step(self, *args):
            if self.state.global_step == 2:
                with torch.no_grad():
                    self.model.model.norm.weight[0] = float("nan")
            return super().training_step(*args)

    trainer = build(folder, tmp_path, Poisoned, max_steps=4, save_strategy="steps", save_steps=1)
    with pytest.raises(Diverged) as caught:
        trainer.train()
    said = str(caught.value)
    assert "log-probs became nan at step 2 (row 0, token 0)" in said
    assert f"resume from {tmp_path}/checkpoint-2" in said


def test_an_infinite_advantage_stops_it_too(folder, tmp_path):
    def wild(completions, **kwargs):  # finite, until it is float32
        return [1e308 if i == 0 else 0.0 for i in range(len(completions))]

    with pytest.raises(FloatingPointError, match=r"at step 0.*no checkpoint was saved yet"):
        build(folder, tmp_path, reward=wild, scale_rewards="none").train()


def test_an_all_masked_batch_does_not(folder, tmp_path):
    def endless(prompts, trainer):
        out = tiny.given_rollouts(prompts, trainer)
        out["completion_ids"] = [[5] * 16 for _ in prompts]
        out["logprobs"] = [[0.0] * 16 for _ in prompts]
        return out

    for estimator in ("k3", "k1-reward"):
        options = {"mask_truncated_completions": True, "anchor_estimator": estimator}
        trainer = build(folder, tmp_path, given=endless, **options)
        trainer.train()
        assert [h["loss"] for h in trainer.state.log_history if "loss" in h] == [0.0, 0.0]


def test_unscorable_rows_get_no_bonus(folder, tmp_path):
    """A None reward is neither 0 nor part of the group's mean, and k1's bonus does not move the row either."""
    seen = []

    class Spy(SAGETrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.append(output["advantages"])
            return output

    def partly(completions, **kwargs):
        return [None if i % 4 == 1 else float(i % 2) for i in range(len(completions))]

    build(folder, tmp_path, Spy, reward=partly, anchor_estimator="k1-reward", scale_rewards="none").train()
    for advantages in seen:
        assert advantages[1] == 0
        assert abs(float(advantages.sum())) < 1e-5, "centred over the rows that count"
