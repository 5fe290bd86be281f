"""The taught guides in a training run: what they are shown, when the head learns, and what they refuse."""

import pytest
import torch
from peft import LoraConfig

from sage_rlvr import UserError
from sage_rlvr.train import SAGEConfig, SAGETrainer, hidden

from . import tiny

CUTS = {
    "one slice": {"per_device_train_batch_size": 8},
    "accumulated, exact credit": {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "anchor_estimator": "k1-reward",
    },
    "TRL makes a pass too": {"per_device_train_batch_size": 4, "steps_per_generation": 2, "num_iterations": 2, "max_steps": 8},
    "micro-batches": {"per_device_train_batch_size": 8, "tokens_per_microbatch": 30},
    "micro-batches, our head": {"per_device_train_batch_size": 8, "tokens_per_microbatch": 30, "fused_head": True},
    "groups drawn again": {"per_device_train_batch_size": 8, "dynamic_sampling": 2},
    "lora": {"per_device_train_batch_size": 8, "lora": True},
}  # fmt: skip


class Shown(SAGETrainer):
    """Keeps what the guide sees of each rollout batch, and what it answers."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches, self.evaluated = [], []

    def _log_q(self, inputs, logps, entropies, mask):
        weights = [p.detach().clone() for p in (self.guide._head or torch.nn.Module()).parameters()]
        model = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        log_q = super()._log_q(inputs, logps, entropies, mask)
        texts = [
            (p[on.bool()].tolist(), c[keep.bool()].tolist())
            for p, on, c, keep in zip(
                inputs["prompt_ids"], inputs["prompt_mask"], inputs["completion_ids"], inputs["completion_mask"]
            )
        ]
        kept = self.batches if self.model.training else self.evaluated
        kept.append((self._signals(inputs, logps, entropies, mask), log_q, weights, texts, model))
        return log_q


def run(folder, tmp_path, guide="value", lora=False, reward=tiny.hash_reward, **options):
    told = {"guide": guide, "max_steps": 3, "shuffle_dataset": False, "learning_rate": 1e-3} | options
    args = tiny.config(SAGEConfig, tmp_path, **told)
    peft = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights="gaussian") if lora else None
    cls = Shown if guide == "value" else SAGETrainer
    trainer = cls(folder, reward, args, tiny.dataset(), rollout_func=tiny.given_rollouts, peft_config=peft)
    trainer.train()
    return trainer


@torch.no_grad()
def after_each_token(trainer, texts, weights):
    """Row → (T + 1, d), one text at a time, without padding, from the model's own answer."""
    for name, p in trainer.model.named_parameters():
        p.copy_(weights[name])
    out = []
    for prompt, ids in texts:
        found = trainer.model(input_ids=torch.tensor([prompt + ids]), output_hidden_states=True)
        out.append(found.hidden_states[-1][0, len(prompt) - 1 :])
    return out


@pytest.mark.parametrize("cut", CUTS)
def test_the_head_sees_the_state_after_each_token_and_learns_after_it_spoke(folder, tmp_path, cut):
    trainer = run(folder, tmp_path, **CUTS[cut])
    assert len(trainer.batches) >= 2
    for number, (signals, log_q, head, texts, weights) in enumerate(trainer.batches):
        states = after_each_token(trainer, texts, weights)
        assert signals.hidden.shape[:2] == (8, log_q.shape[1] + 1)
        for row, (state, (_, ids)) in enumerate(zip(states, texts)):
            assert torch.allclose(signals.hidden[row, : len(ids) + 1].float(), state, atol=1e-4)
            if number:  # with the head as it was before this batch
                w, b = head
                value = torch.sigmoid(torch.nn.functional.normalize(state, dim=-1) @ w[0] + b)
                assert torch.allclose(log_q[row, : len(ids)], value.diff(), atol=1e-5)
    assert not trainer.batches[0][1].any(), "nothing was learned yet"
    assert trainer.batches[1][1].any()
    logged = [e for e in trainer.state.log_history if "sage/value_loss" in e]
    assert logged
    assert logged[0]["sage/value_loss"] == pytest.approx(0.6931, abs=1e-3)
    assert all("sage_hidden" not in part for part in trainer._buffered_inputs)


def test_an_evaluation_teaches_it_nothing(folder, tmp_path):
    trainer = run(folder, tmp_path, per_device_train_batch_size=8, per_device_eval_batch_size=8)
    before = [p.detach().clone() for p in trainer.guide._head.parameters()]
    trainer.evaluate(tiny.dataset(8))
    assert trainer.evaluated
    assert trainer.evaluated[0][1].any(), "q is shaped there all the same"
    for a, b in zip(before, trainer.guide._head.parameters()):
        assert torch.equal(a, b)


def test_centred_it_pays_nothing_on_average(folder, tmp_path):
    trainer = run(folder, tmp_path, per_device_train_batch_size=8, guide_center="batch", guide_args={"rate": 0.3})
    part = trainer._buffered_inputs[0]
    assert part["sage_log_q"].any()
    assert float(part["sage_log_q"].sum()) == pytest.approx(0, abs=1e-5)
    assert abs(float(trainer.batches[-1][1].sum())) > 1e-3, "what was taken off"


@pytest.mark.parametrize("options", [
    {"per_device_train_batch_size": 8}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    {"per_device_train_batch_size": 8, "anchor_estimator": "k1-reward", "tokens_per_microbatch": 40},
])  # fmt: skip
def test_the_group_guide_sees_whole_groups_and_beta(folder, tmp_path, options):
    """Of the batch that is left in the buffer, from its texts: Σ_t log q_t = (s/β)·r·(1 − the others' rate)."""
    trainer = run(folder, tmp_path, guide="group", guide_args={"strength": 0.5}, max_steps=2, **options)
    found, texts = {}, {}
    for part in trainer._buffered_inputs:  # TRL deals the rows out in an order of its own
        told = trainer._tokenizer.batch_decode(part["completion_ids"], skip_special_tokens=True)
        for row, log_q, text in zip(part["sage_rows"].tolist(), part["sage_log_q"], told):
            found[row], texts[row] = float(log_q.sum()), text
    right = torch.tensor(tiny.hash_reward([texts[row] for row in range(8)])).view(-1, 4)
    expected = 0.5 / 0.2 * right * (1 - (right.sum(1, keepdim=True) - right) / 3)
    assert [found[row] for row in range(8)] == pytest.approx(expected.flatten().tolist(), abs=1e-5)
    assert len({round(x, 4) for x in found.values()}) > 1


REFUSED = [
    ({"guide": "group", "guide_hold": False}, "looks at the whole rollout batch"),
    ({"guide": "value", "guide_hold": False}, "looks at the whole rollout batch"),
    ({"guide": "group", "guide_center": "batch"}, "would charge for length; leave guide_center at 'none'"),
    ({"guide": "group", "beta": 0.0}, "guide='group' with beta=0"),
    ({"guide": "value", "guide_args": {"width": 2.5}}, "width=2.5, passes=4"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_what_cannot_work_is_refused(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        tiny.config(SAGEConfig, tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_a_reward_that_is_no_share_of_right_stops_the_run_with_a_sentence(folder, tmp_path):
    with pytest.raises(
        UserError, match="guide 'group' takes rewards between 0 and 1, how much of it is right, and one is -2"
    ):
        run(folder, tmp_path, guide="group", reward=lambda completions, **kwargs: [-2.0 for _ in completions])


def test_a_model_without_a_backbone_is_refused():
    class Bare(torch.nn.Module):
        pass

    with pytest.raises(UserError, match="Bare names no part that answers it"):
        hidden.Watch(Bare(), frozenset({"hidden"}))
    hidden.Watch(Bare(), frozenset())


def test_the_exact_case_says_that_the_solve_rate_is_an_estimate(tmp_path):
    exact = {"anchor_estimator": "k1-reward", "scale_rewards": "none", "loss_type": "dr_grpo"}
    assert tiny.config(SAGEConfig, tmp_path, guide="value", **exact).departures() == []
    said = tiny.config(SAGEConfig, tmp_path, guide="group", **exact).departures()
    assert said == ["guide 'group' knows the solve rate from num_generations=4 completions"]
