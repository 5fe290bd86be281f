"""anchor_reset: the reference is the policy of the latest reset, bit for bit, and that of the start before the first."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Qwen2ForCausalLM, TrainerCallback
from trl.trainer import grpo_trainer
from trl.trainer.utils import use_adapter

from sage_rlvr import UserError
from sage_rlvr.runs import manifest
from sage_rlvr.runs.checkpoint import last_complete, load_state
from sage_rlvr.train import SAGEConfig, SAGETrainer
from sage_rlvr.train.reset import METRIC, reference_file

from ..slow import but_few
from . import tiny

LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]}
WAYS = ["full", "lora", "given lora"]


@pytest.fixture(scope="module")
def adapter(folder, tmp_path_factory):
    """One that was trained before, as by SFT."""
    place = tmp_path_factory.mktemp("adapter")
    model = get_peft_model(Qwen2ForCausalLM.from_pretrained(folder), LoraConfig(**LORA))
    draw = torch.Generator().manual_seed(3)
    for p in model.parameters():
        if p.requires_grad:
            p.data = torch.randn(p.shape, generator=draw) * 0.1
    model.save_pretrained(place)
    return place


def weights(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}


class Watched(SAGETrainer):
    """Of each rollout batch the reference's log-probs, and those of every policy the run has had, by the same pass."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.policies, self.batches, self.used = [weights(self)], [], []

    def _roll_out(self, inputs):
        before = weights(self)
        out = super()._roll_out(inputs)
        assert all(torch.equal(before[n], w) for n, w in weights(self).items()), "the policy is itself again"
        self.batches.append((out["ref_per_token_logps"], [self.logps_of(policy, out) for policy in self.policies]))
        return out

    def logps_of(self, policy, out):
        """(B, T), with a policy's weights put into the model by hand."""
        now = weights(self)
        ids, mask = (torch.cat([out[f"prompt_{k}"], out[f"completion_{k}"]], 1) for k in ("ids", "mask"))
        self.model.load_state_dict(policy, strict=False)
        with torch.no_grad():
            size = self.args.per_device_train_batch_size
            logps = self._get_per_token_logps_and_entropies(
                self.model, ids, mask, out["completion_ids"].shape[1], batch_size=size
            )[0]
        self.model.load_state_dict(now, strict=False)
        return logps

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.used.append(inputs["ref_per_token_logps"])
        return super().compute_loss(model, inputs, *args, **kwargs)


class Keep(TrainerCallback):
    trainer: Watched

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.policies.append(weights(self.trainer))


def build(way, folder, adapter, out, **options):
    model = folder
    if way == "given lora":
        model = PeftModel.from_pretrained(Qwen2ForCausalLM.from_pretrained(folder), adapter, is_trainable=True)
    args = tiny.config(SAGEConfig, out, **({"max_steps": 5, "learning_rate": 1e-3} | options))
    peft = LoraConfig(**LORA) if way == "lora" else None
    more = {"rollout_func": tiny.given_rollouts, "peft_config": peft, "processing_class": tiny.tokenizer()}
    trainer = Watched(model, tiny.hash_reward, args, tiny.dataset(), **more)
    keep = Keep()
    keep.trainer = trainer
    trainer.add_callback(keep)
    return trainer


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize("way", WAYS)
def test_the_reference_is_the_policy_of_the_latest_reset(way, folder, adapter, tmp_path):
    trainer = build(way, folder, adapter, tmp_path, anchor_reset=2)
    trainer.train()
    assert len(trainer.batches) == 5
    for step, (ref, policies) in enumerate(trainer.batches):
        same = [torch.equal(ref, logps) for logps in policies]
        assert same == [at == step // 2 * 2 for at in range(step + 1)], f"the reference after step {step}"
    kl = logged(trainer, "kl_ref")
    assert [value == 0 for value in kl] == [True, False, True, False, True]  # exactly 0: k3 of the same log-probs
    assert min(value for value in kl if value) > 1e-6
    assert logged(trainer, METRIC) == [0, 1, 1, 2, 2]
    trainer.create_model_card()
    assert "becomes the policy every 2 steps" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("way", ["full", "lora"])
def test_rollouts_in_use_keep_the_reference_they_came_with(way, folder, adapter, tmp_path):
    options = {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 5, "gradient_accumulation_steps": 1}
    trainer = build(way, folder, adapter, tmp_path, anchor_reset=1, logging_steps=5, **options)
    trainer.train()
    assert logged(trainer, METRIC) == [5], "the number so far, not its mean over the steps of a log"
    first, second = trainer.batches[:2]
    assert torch.equal(first[0], first[1][0])
    assert [torch.equal(second[0], logps) for logps in second[1]] == [False] * 4 + [True]
    assert len(trainer.used) == 5
    assert torch.equal(trainer.used[0], trainer.used[2]), "four updates of one rollout batch, three resets between them"
    assert torch.equal(trainer.used[1], trainer.used[3])


def test_without_it_trl_makes_the_reference(folder, adapter, tmp_path):
    trainer = build("lora", folder, adapter, tmp_path, max_steps=2)
    assert trainer._anchor_reset not in trainer.callback_handler.callbacks
    assert trainer._anchor_reset.adapter is None
    trainer.train()
    assert grpo_trainer.use_adapter is use_adapter
    assert not logged(trainer, METRIC)
    assert logged(trainer, "kl_ref")[1] > 0
    assert all(torch.equal(ref, policies[0]) for ref, policies in trainer.batches)
    assert "becomes the policy" not in (trainer.create_model_card() or (tmp_path / "README.md").read_text())


def test_the_policy_is_itself_again_where_the_reference_pass_fails(folder, adapter, tmp_path):
    trainer = build("lora", folder, adapter, tmp_path, anchor_reset=2)
    trainer._anchor_reset.reset()
    at_reset = weights(trainer)
    for p in trainer.model.parameters():
        if p.requires_grad:
            p.data += 1
    moved = weights(trainer)

    def fails():
        with trainer._anchor_reset.adapter(trainer.model, None):
            assert all(torch.equal(at_reset[n], w) for n, w in weights(trainer).items())
            raise MemoryError

    with pytest.raises(MemoryError):
        fails()
    assert all(torch.equal(moved[n], w) for n, w in weights(trainer).items())


# ---- what is saved -------------------------------------------------------------------------------------------------


SAVES = {"save_strategy": "steps", "save_steps": 1}


@pytest.mark.parametrize("way", but_few(WAYS, fast=[0]))
def test_going_on_across_a_reset_is_the_run_in_one_piece(way, folder, adapter, tmp_path):
    """From before, at and after a reset: weights, optimizer, reference and what is logged, bit for bit."""
    options = {"anchor_reset": 2, "max_steps": 5, **SAVES}
    whole = build(way, folder, adapter, tmp_path / "whole", **options)
    whole.train()
    for step in (1, 2, 3):
        out = tmp_path / f"cut-{step}"
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", out / f"checkpoint-{step}")
        assert reference_file(out / f"checkpoint-{step}", 0).is_file() == (step >= 2)
        again = build(way, folder, adapter, out, **options)
        again.train(resume_from_checkpoint=True)
        assert again.batches, "it has gone on"
        assert all(torch.equal(weights(whole)[n], w) for n, w in weights(again).items())
        assert [torch.equal(a[0], b[0]) for a, b in zip(whole.batches[step:], again.batches, strict=True)] == [True] * (
            5 - step
        )
        for name in ("loss", "kl_ref", METRIC, "grad_norm"):
            assert logged(again, name) == logged(whole, name)


@pytest.mark.parametrize("way", ["lora", "given lora"])
def test_one_adapter_is_saved_and_it_is_the_policys(way, folder, adapter, tmp_path):
    trainer = build(way, folder, adapter, tmp_path, anchor_reset=2, max_steps=3)
    trainer.train()
    trainer.save_model()
    assert [p.parent for p in tmp_path.rglob("adapter_model*")] == [tmp_path]
    saved = PeftModel.from_pretrained(Qwen2ForCausalLM.from_pretrained(folder), tmp_path)
    got = {n: p for n, p in saved.named_parameters() if "lora_" in n}
    assert got.keys() == weights(trainer).keys()
    assert all(torch.equal(got[n], w) for n, w in weights(trainer).items())
    assert ("ref" in trainer.model.peft_config) == (way == "given lora"), "TRL's own copy is still there for TRL"


def test_a_checkpoint_without_its_reference_is_refused(folder, adapter, tmp_path):
    options = {"anchor_reset": 1, "max_steps": 2, **SAVES}
    build("lora", folder, adapter, tmp_path, **options).train()
    newest = tmp_path / "checkpoint-2"
    assert "sage_reference_0.pt" in json.loads((newest / "manifest.json").read_text())["files"]
    assert load_state(newest, 0)["anchor_reset"] == [1, 2]
    resume = {"resume_from_checkpoint": str(newest)}
    for every in (0, 3):
        with pytest.raises(UserError, match=f"was written with anchor_reset=1 and this run has {every}: set it back"):
            build("lora", folder, adapter, tmp_path, max_steps=4, anchor_reset=every).train(**resume)
    reference_file(newest, 0).unlink()
    assert last_complete(tmp_path) == str(tmp_path / "checkpoint-1"), "the list notices"
    manifest.finish(newest)  # as if it had never been there
    with pytest.raises(UserError, match=r"has no sage_reference_0\.pt, the reference of its latest anchor reset"):
        build("lora", folder, adapter, tmp_path, max_steps=4, anchor_reset=1).train(**resume)
    torch.save({"x": torch.zeros(1)}, reference_file(newest, 0))
    manifest.finish(newest)
    with pytest.raises(UserError, match="holds the reference of another model or adapter"):
        build("lora", folder, adapter, tmp_path, max_steps=4, anchor_reset=1).train(**resume)


# ---- what is refused and said --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"anchor_reset": -1}, "anchor_reset must be 0 or more, and is -1"),
        ({"anchor_reset": 2.0}, "anchor_reset must be a whole number, and is 2.0"),
        ({"anchor_reset": True}, "anchor_reset must be a whole number, and is True"),
        ({"anchor_reset": None}, "anchor_reset must be a whole number, and is None"),
        ({"anchor_reset": 2, "beta": 0.0, "guide": "none"}, "anchor_reset=2 with beta=0: there is no reference"),
        ({"anchor_reset": 2, "sync_ref_model": True}, "anchor_reset=2 and sync_ref_model=True both move the reference"),
    ],
)
def test_refused_in_one_sentence(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        tiny.config(SAGEConfig, tmp_path, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["DeepSpeed", "FSDP1"])
def test_weights_that_are_partitioned_otherwise_are_refused(folder, adapter, tmp_path, monkeypatch, name):
    flag = "is_deepspeed_enabled" if name == "DeepSpeed" else "is_fsdp_enabled"
    init = tiny.SAGETrainer._make_head  # the last step before the reset is built; nothing here is really partitioned

    def pretend(self):
        setattr(self, flag, True)
        return init(self)

    monkeypatch.setattr(SAGETrainer, "_make_head", pretend)
    with pytest.raises(UserError, match=f"anchor_reset=2 is not made for {name}"):
        build("full", folder, adapter, tmp_path, anchor_reset=2)


def test_a_reset_ends_the_exact_case(tmp_path):
    exact = {"anchor_estimator": "k1-reward", "scale_rewards": "none", "loss_type": "dr_grpo"}
    assert not tiny.config(SAGEConfig, tmp_path, **exact).departures()
    found = tiny.config(SAGEConfig, tmp_path, anchor_reset=50, **exact).departures()
    assert len(found) == 1
    assert found[0].startswith("anchor_reset=50 (exact from one reset to the next")
