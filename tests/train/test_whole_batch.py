"""A guide that looks across rows sees the whole rollout batch, however it is cut: log q against NumPy over full logits."""

import numpy as np
import pytest
import torch

from sage_rlvr.train import SAGETrainer

from . import tiny

RATIO, QUANTILE = 0.4, 0.6
# 8 rows each, of the same prompts
CUTS = {
    "one slice": {"per_device_train_batch_size": 8},
    "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "eight slices": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
    "two updates a batch": {"per_device_train_batch_size": 4, "steps_per_generation": 2},
    "used twice": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_iterations": 2},
    "micro-batches": {"per_device_train_batch_size": 8, "tokens_per_microbatch": 30},
    "in the reward": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "anchor_estimator": "k1-reward"},
}  # fmt: skip


class Spy(SAGETrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.used, self.texts = {}, {}

    def held_log_q(self, inputs, *rest):
        log_q = super().held_log_q(inputs, *rest)
        if self._step < self.args.steps_per_generation * self.num_iterations or not self.model.training:
            for row, q, prompt, ids, on in zip(
                inputs["sage_rows"].tolist(), log_q, inputs["prompt_ids"], inputs["completion_ids"], inputs["completion_mask"]
            ):  # fmt: skip
                self.used[row] = q[on.bool()].tolist()
                self.texts[row] = prompt[prompt != 0].tolist(), ids[on.bool()].tolist()
        return log_q


def run(folder, tmp_path, **options):
    told = {"guide": "branch-quantile", "guide_args": {"ratio": RATIO, "quantile": QUANTILE}, "max_steps": 2}
    trainer = tiny.build(folder, tmp_path, Spy, **(told | {"shuffle_dataset": False} | options))
    trainer.train()
    return trainer


@torch.no_grad()
def entropies(texts, temperature=0.9):
    """Row → (T,), one text at a time through all logits, in float64."""
    model, out = tiny.model().double().eval(), {}
    for row, (prompt, ids) in texts.items():
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / temperature
        out[row] = torch.special.entr(logits.softmax(-1)).sum(-1).numpy()
    return out


def assert_gated(trainer):
    h = entropies(trainer.texts)
    tau = np.quantile(np.concatenate([*h.values()]), QUANTILE)
    for row, used in trainer.used.items():
        want = np.log(np.clip(1 + RATIO * np.maximum(0, h[row] - tau), 0.6, 1.4))
        assert np.allclose(used, want, atol=1e-5), row
    own = [np.quantile(h[row], QUANTILE) for row in h]
    assert max(abs(t - tau) for t in own) > 0.05, "a slice's own quantile would be another"


@pytest.mark.parametrize("cut", CUTS)
def test_the_gate_is_the_whole_rollout_batchs(folder, tmp_path, cut):
    trainer = run(folder, tmp_path, **CUTS[cut])
    assert set(trainer.used) == set(range(8))
    assert_gated(trainer)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "guide='branch-quantile' looks at whole rollout batches"),
        ({"guide": "branch", "guide_args": {}, "guide_center": "batch"}, "guide_center='batch' looks at"),
        ({"guide": "branch", "guide_args": {}}, None),
        ({"steps_per_generation": 2}, None),  # TRL makes the pass itself
    ],
)
def test_the_extra_pass_is_said_once(folder, tmp_path, capsys, options, why):
    run(folder, tmp_path, max_steps=3, **options)
    said = capsys.readouterr().out
    assert said.count("one more forward pass") == (why is not None)
    assert why is None or f"sage: {why}" in said


def test_an_evaluation_is_a_batch_of_its_own(folder, tmp_path):
    trainer = run(folder, tmp_path, learning_rate=0.0, per_device_eval_batch_size=8)
    trainer.used, trainer.texts = {}, {}
    trainer.evaluate(tiny.dataset(8))
    assert len(trainer.used) == 8
    assert_gated(trainer)
