"""Dropout in the policy: found wherever a model keeps it, really off when asked, said when it is on."""

from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from sage_rlvr.train import SAGETrainer
from sage_rlvr.train.callbacks import OnPolicy
from sage_rlvr.train.dropout import active_dropout, disable_dropout

from . import tiny

SIZES = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("model", "rates"),
    [
        (
            lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=2, attention_dropout=0.4)),
            "attention_dropout=0.4",
        ),
        (
            lambda: GPT2LMHeadModel(
                GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2, embd_pdrop=0.0, resid_pdrop=0.3)
            ),
            "dropout=0.1, dropout=0.3",
        ),
    ],
)
def test_off_is_off(model, rates):
    """In training mode the same logits twice, and those of evaluation."""
    torch.manual_seed(0)
    model, ids = model(), torch.arange(12).view(1, 12)
    assert active_dropout(model) == rates
    noisy = [model.train()(ids).logits for _ in range(2)]
    assert not torch.equal(*noisy)
    disable_dropout(model)
    assert active_dropout(model) is None
    assert torch.equal(model.train()(ids).logits, model.eval()(ids).logits)


def test_a_switch_is_no_rate():
    """Some models have a flag with such a name."""
    model = torch.nn.Linear(2, 2)
    model.token_dropout = True
    assert active_dropout(model) is None
    disable_dropout(model)
    assert model.token_dropout is True


def thinned(folder, rate):
    """The tiny model with attention dropout, saved."""
    model = tiny.model()
    model.config.attention_dropout = rate
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def test_a_run_says_that_dropout_is_on_and_is_still_without(tmp_path, capsys):
    """On policy the first update's KL to the starting model is 0, unless the policy's log-probs are a thinned network's."""
    found, model = {}, thinned(tmp_path / "model", 0.3)
    for disable in (False, True):
        trainer = tiny.build(model, tmp_path / str(disable), max_steps=1, guide="none", disable_dropout=disable)
        trainer.train()
        found[disable] = trainer.state.log_history[0]["kl_ref"]
        assert ("the policy has attention_dropout=0.3" in capsys.readouterr().out) is not disable
    assert found[True] == pytest.approx(0.0, abs=1e-6)
    assert found[False] > 1e-3


@pytest.mark.parametrize(
    ("guide", "disable", "said"), [("none", False, True), ("none", True, False), ("branch", False, False)]
)
def test_a_policy_that_is_not_the_sampler_is_noticed(tmp_path, capsys, guide, disable, said):
    """Real sampling, and a policy thinned so much that its own tokens surprise it. With a guide the mean may be negative."""
    options = {"max_steps": 2, "guide": guide, "disable_dropout": disable, "per_device_train_batch_size": 32}
    trainer = tiny.build(thinned(tmp_path / "model", 0.8), tmp_path / "out", given=False, **options)
    trainer.train()
    assert capsys.readouterr().out.count("come from another policy") == said
    logs = [entry for entry in trainer.state.log_history if "kl_ref" in entry]
    if disable:
        assert logs[0]["sage/pseudo_kl"] == pytest.approx(0, abs=1e-5)
    else:
        assert logs[0]["kl_ref"] > 0.05


def test_it_is_said_once_where_it_is_sure_and_only_on_policy(folder, tmp_path, capsys):
    callback, state = OnPolicy(), SimpleNamespace(is_world_process_zero=True, global_step=3)
    for kl, mean in [(0.04, -0.01), (0.3, 0.2), (0.3, -0.1), (0.4, -0.2)]:
        callback.on_log(None, state, None, logs={"kl_ref": kl, "sage/pseudo_kl": mean})
    callback.on_log(None, state, None, logs={"eval_loss": 1.0})
    said = capsys.readouterr().out
    assert said.count("come from another policy") == 1
    assert "kl_ref is 0.3 and the mean of log π − log π_ref -0.1" in said
    for more, watched in ({}, True), ({"num_iterations": 2}, False), ({"steps_per_generation": 2}, False):
        trainer = tiny.build(folder, tmp_path, guide="none", **more)
        assert any(isinstance(c, OnPolicy) for c in trainer.callback_handler.callbacks) is watched


def test_an_adapters_dropout_is_found_too(folder, tmp_path, capsys):
    peft = LoraConfig(r=2, lora_dropout=0.2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    for disable in (False, True):
        args = tiny.config(tiny.SAGEConfig, tmp_path, disable_dropout=disable)
        trainer = SAGETrainer(
            folder, tiny.hash_reward, args, tiny.dataset(), peft_config=peft, rollout_func=tiny.given_rollouts
        )
        assert (active_dropout(trainer.model) is None) is disable
        assert ("dropout=0.2" in capsys.readouterr().out) is not disable
