"""The configuration: what it refuses, in one sentence; what it is by default; whether it is the exact case."""

import copy
import json
import os

import pytest
import torch
from trl import GRPOConfig
from trl.generation import vllm_generation

import sage_rlvr
from sage_rlvr import Advantage, Guide, UserError, register_advantage, register_guide
from sage_rlvr.train import SAGEConfig, SAGETrainer

from . import tiny
from .tiny import build


class Greedy(Guide):
    needs = frozenset({"hidden_states"})

    def log_q(self, s):
        return s.logps


class Moody(Advantage):
    needs = frozenset({"mood"})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"anchor_estimator": "k2"}, "guide='branch' with anchor_estimator='k2' does nothing"),
        ({"anchor_estimator": "k3+"}, "guide='branch' with anchor_estimator='k3\\+' does nothing"),
        ({"guide": "random", "anchor_estimator": "k2"}, "guide='random' with anchor_estimator='k2' does nothing"),
        ({"beta": 0.0}, "guide='branch' with beta=0: the guide shapes the anchor and there is none"),
        ({"beta": 0.0, "guide": "none", "anchor_estimator": "k1-reward"}, "'k1-reward' with beta=0 adds nothing"),
        ({"guide": "needy"}, "guide='needy' needs hidden_states, which a training run does not compute"),
        ({"use_bias_correction_kl": True}, "use_bias_correction_kl=True contradicts anchor_estimator='k3'"),
        (
            {"use_bias_correction_kl": False, "anchor_estimator": "k3+", "guide": "tempered"},
            "use_bias_correction_kl=False contradicts anchor_estimator='k3\\+'",
        ),
        ({"anchor_estimator": "kl"}, "anchor_estimator='kl' is unknown: perhaps you mean k"),
        ({"guide_args": {"rho": 1}}, "guide 'branch' has no argument 'rho'"),
        ({"guide_args": [1]}, "guide_args=\\[1\\] must be a dict"),
        ({"anchor_credit": "to_go"}, "anchor_credit='to_go' is for anchor_estimator='k1-reward'"),
        ({"guide": "none", "guide_args": {"ratio": 1}}, "guide_args is set but guide='none'"),
        ({"dynamic_sampling": -1}, "dynamic_sampling must be 0 or more, and is -1"),
        ({"coverage": 0.5}, "coverage is no .* any more: write advantage='coverage', advantage_args={'share': 0.5}."),
        ({"rarity": 1.0}, "rarity is no .* any more: write advantage='rarity', advantage_args={'share': 1.0}."),
        ({"rarity": 0.0}, "rarity is no setting of its own any more: leave it out."),
        ({"advantage": "rarity", "beta": 0.0, "guide": "none"}, "'rarity' asks the reference, and beta=0 has none"),
        ({"advantage": ["rarity", "beta"]}, "'rarity' pays above 1, where 'beta' ends"),
        ({"advantage": ["rarity", "coverage"]}, "'rarity' and 'coverage' are both about answers"),
        ({"advantage": "passk", "advantage_args": {"k": 5}}, "k=5 is above the group's 4 completions"),
        (
            {"advantage": "pkpo", "advantage_args": {"k": 3}, "num_generations_eval": 2},
            "num_generations_eval=2: .* k=3",
        ),
        ({"advantage": []}, "advantage=\\[\\] must be a name"),
        ({"advantage": 3}, "advantage=3 must be a name"),
        ({"advantage": "focal", "advantage_args": [1]}, "advantage_args=\\[1\\] must be a dict"),
        ({"advantage": ["rarity", "focal"], "advantage_args": {"focal": 0.5}}, "each has a dict of its own"),
        ({"advantage": ["rarity", "focal"], "advantage_args": {"gamma": {}}}, "'gamma' is none of rarity, focal"),
        ({"advantage": "group", "advantage_args": {"scale": "none"}}, "is not this run's scale_rewards='group'"),
        ({"advantage": "alike"}, "anchor_estimator='k3' is not: set anchor_estimator='k1-reward'"),
        (
            {"advantage": "alike", "anchor_estimator": "k1-reward", "advantage_args": {"beta": 0.3}},
            "'alike': beta=0.3 is not this run's beta=0.2",
        ),
        ({"advantage": "needy"}, "advantage='needy' needs mood, which a training run does not compute"),
        (
            {"advantage": "focal", "multi_objective_aggregation": "normalize_then_sum"},
            "advantage='focal' needs multi_objective_aggregation",
        ),
        ({"guide_center": "batch", "guide_hold": False}, "guide_center='batch' takes the mean over a rollout batch"),
        ({"guide": "branch-quantile", "guide_hold": False}, "guide='branch-quantile' looks at the whole rollout batch"),
        ({"loss_type": "dppo"}, "loss_type='dppo' is unknown: perhaps you mean .*dapo"),
        ({"dynamic_sampling": 1, "scale_rewards": "batch"}, "dynamic_sampling with scale_rewards='batch'"),
        ({"generation_kwargs": {"top_p": 0.9, "min_p": 0.1}}, "generation_kwargs sets min_p, top_p"),
        ({"stop_strings": ["x"], "generation_kwargs": {"stop_strings": "y"}}, "stop_strings is set twice"),
        ({"advantage": "median"}, "advantage='median' is unknown"),
        ({"vllm_kv_cache_gib": 2.0}, "vllm_kv_cache_gib is for use_vllm=True with vllm_mode='colocate'"),
        ({"vllm_kv_cache_gib": 0.0, "use_vllm": True}, "vllm_kv_cache_gib must be above 0, and is 0.0"),
        (
            {"use_vllm": True, "min_p": 0.01, "top_p": 0.9},
            "min_p=0.01, top_p=0.9 with vllm_importance_sampling_mode='sequence_mask'",
        ),
        (
            {"use_vllm": True, "top_k": 50, "vllm_importance_sampling_mode": "sequence_truncate"},
            "top_k=50 with vllm_imp",
        ),
    ],
)
def test_refused_in_one_sentence(tmp_path, options, sentence):
    register_guide("needy")(Greedy)
    register_advantage("needy")(Moody)
    with pytest.raises(UserError, match=sentence) as caught:
        tiny.config(SAGEConfig, tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'guide_strength'"):
        SAGEConfig(guide_strength=1)


def test_no_arguments_is_sage_as_published():
    args = SAGEConfig()
    assert (args.guide, args.anchor_estimator, args.beta, args.loss_type) == ("branch", "k3", 0.05, "grpo")
    assert args.use_bias_correction_kl is False
    assert args.make_guide().settings() == {
        "ratio": 0.3, "threshold": 1.2, "q_min": 0.6, "q_max": 1.4, "source": "policy",
    }  # fmt: skip
    theirs, changed = GRPOConfig(bf16=False), set()
    for name in theirs.to_dict():
        if getattr(args, name) != getattr(theirs, name) and name not in ("logging_dir", "run_name", "output_dir"):
            changed.add(name)
    assert changed == {"beta", "loss_type", "use_bias_correction_kl"}


def test_an_advantage_is_one_or_several(tmp_path):
    def made(**options):
        return tiny.config(SAGEConfig, tmp_path, **options)

    assert made().make_advantage().settings() == {"scale": "group"}
    assert made(scale_rewards="none").make_advantage().settings() == {"scale": "none"}
    one = made(advantage=["focal"], advantage_args={"gamma": 0.5})  # as a flag gives it
    assert (one.advantage, one.make_advantage().gamma) == ("focal", 0.5)
    assert made(advantage=["focal"], advantage_args={"focal": {"gamma": 0.5}}).make_advantage().gamma == 0.5
    both = made(advantage=("focal", "rarity"), advantage_args={"focal": {"gamma": 0.5}})
    assert both.make_advantage().settings() == {"rarity": {"share": 1.0}, "focal": {"gamma": 0.5}}
    mara = made(advantage=["alike", "group"], anchor_estimator="k1-reward", scale_rewards="none")
    assert mara.make_advantage().settings() == {"alike": {"beta": 0.2}, "group": {"scale": "none"}}
    assert [d.split(" ")[0] for d in mara.departures()] == ["loss_type='grpo'", "advantage=['alike',"]
    assert made(advantage="unlikely").wants_whole_batch() == "advantage='unlikely'"
    assert made(advantage="rarity").wants_whole_batch() is None
    copied = copy.deepcopy(both)
    assert copied.to_dict() == both.to_dict()
    assert json.loads(both.to_json_string())["advantage"] == ["focal", "rarity"]


def test_a_grpo_config_is_refused_and_none_is_made(folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="SAGETrainer takes a SAGEConfig, not GRPOConfig"):
        SAGETrainer(folder, tiny.hash_reward, tiny.config(GRPOConfig, tmp_path), tiny.dataset())
    monkeypatch.chdir(tmp_path)
    assert SAGETrainer(folder, tiny.hash_reward, train_dataset=tiny.dataset()).guide.name == "branch"
    assert sage_rlvr.SAGETrainer is SAGETrainer


def test_exactness_is_said(folder, tmp_path, capsys):
    exact = {"anchor_estimator": "k1-reward", "scale_rewards": "none", "loss_type": "dr_grpo", "min_p": 0.0}
    build(folder, tmp_path, **exact)
    assert "the exact case" in capsys.readouterr().out.replace("not the exact case", "")
    build(folder, tmp_path, **(exact | {"min_p": 0.01, "num_iterations": 2}))
    said = capsys.readouterr().out
    assert "not the exact case: num_iterations=2 (exact: 1); min_p=0.01 (exact: 0)" in said
    sampled = {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}
    assert tiny.config(SAGEConfig, tmp_path, **exact, **sampled).departures() == [
        "vllm_importance_sampling_mode='token_truncate' weighs what the sampler's numerics change (exact: none)"
    ]
    tiny.config(SAGEConfig, tmp_path, min_p=0.01, **sampled)  # which is how to sample with min_p
    token = tiny.config(SAGEConfig, tmp_path, guide="token", anchor_credit="to_go", **exact)
    assert token.departures() == [
        "anchor_credit='to_go' with guide 'token', which looks at later tokens (exact: 'sequence')"
    ]


@pytest.mark.parametrize(("said", "device", "ours"), [
    (None, "cuda", True), (None, "cpu", False), (True, "cpu", True), (False, "cuda", False),
])  # fmt: skip
def test_our_head_is_the_default_on_a_gpu(said, device, ours, folder, tmp_path, monkeypatch):
    trainer = tiny.build(folder, tmp_path, fused_head=said)
    monkeypatch.setattr(type(trainer.accelerator), "device", torch.device(device))
    assert (trainer._make_head() is not None) == ours


@pytest.mark.parametrize("gib", [None, 1.5])
def test_vllms_cache_is_as_large_as_asked(folder, tmp_path, monkeypatch, gib):
    """TRL's colocated engine, up to the call that starts vLLM, which is not installed here."""
    seen = []

    def engine(**arguments):
        seen.append(arguments)
        raise RuntimeError("as far as it goes")

    monkeypatch.setattr(os, "environ", os.environ.copy())  # TRL writes a process group's variables into it
    monkeypatch.setattr(vllm_generation, "LLM", engine, raising=False)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    with pytest.raises(RuntimeError, match="as far as it goes"):
        tiny.build(folder, tmp_path, given=False, use_vllm=True, vllm_mode="colocate", vllm_kv_cache_gib=gib)
    assert seen[0].get("kv_cache_memory_bytes") == (gib and 1610612736)
    assert vllm_generation.LLM is engine, "and nothing is left behind"
