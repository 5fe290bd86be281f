"""The sampler's weights: what TRL would send, and a base that stays as it was."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from trl.generation.vllm_generation import VLLMGeneration

from sage_rlvr.train.config import SAGEConfig
from sage_rlvr.train.generation import can_merge_beside, merged_beside
from sage_rlvr.train.trainer import SAGETrainer

from . import tiny


def adapted(dtype=torch.float32, **options):
    model = get_peft_model(
        tiny.model().to(dtype), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **options)
    )
    torch.manual_seed(1)
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data = 0.05 * torch.randn_like(p, dtype=torch.float32)
    return model


def trl_of(model):
    """TRL's own way over the same model, without an engine."""
    dist = SimpleNamespace(gather_params=lambda params: nullcontext(), is_fsdp=False)
    return SimpleNamespace(
        model=model, _dist=dist, _fix_param_name_to_vllm=partial(VLLMGeneration._fix_param_name_to_vllm, None)
    )


def base_of(model):
    return {name: p.data.clone() for name, p in model.named_parameters() if "lora_" not in name}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sampler_gets_what_trl_would_send(dtype):
    generation = trl_of(adapted(dtype))
    ours = {name: w.clone() for name, w in merged_beside(generation)}
    theirs = {name: w.clone() for name, w in VLLMGeneration._iter_named_params(generation)}
    assert list(ours) == list(theirs) == [name for name, _ in tiny.model().named_parameters()]
    for name in ours:
        assert ours[name].dtype == dtype
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)
    assert any((ours[name] != p.to(dtype)).any() for name, p in tiny.model().named_parameters())


def test_the_base_stays_as_it_was_where_trl_lets_it_wander():
    model = adapted(torch.bfloat16)
    before, generation = base_of(model), trl_of(model)
    for way, moved in ((merged_beside, False), (VLLMGeneration._iter_named_params, True)):
        for _ in range(10):
            list(way(generation))
        assert any((now != before[name]).any() for name, now in base_of(model).items()) == moved


def test_what_is_more_than_w_plus_ba_is_left_to_trl():
    assert can_merge_beside(adapted())
    assert not can_merge_beside(adapted(use_dora=True))
    assert not can_merge_beside(tiny.model()), "no adapter: nothing is merged"


class Engine(VLLMGeneration):
    """TRL's, up to the engine itself, which sets this process's random numbers as vLLM's does."""

    def _init_vllm(self):
        torch.manual_seed(0)


def test_a_trainer_with_an_adapter_merges_beside_and_keeps_its_own_seed(tmp_path, monkeypatch):
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", Engine)
    monkeypatch.setattr("trl.generation.vllm_generation.is_vllm_available", lambda: True)
    monkeypatch.setattr(SAGETrainer, "_brief_engine", lambda trainer: None)  # tested with the engine, in tests_vllm
    drawn = set()
    for seed in (1, 2):
        args = tiny.config(SAGEConfig, tmp_path, use_vllm=True, vllm_mode="colocate", seed=seed)
        lora = LoraConfig(r=4, target_modules="all-linear")
        trainer = SAGETrainer(tiny.folder(tmp_path / "m"), tiny.hash_reward, args, tiny.dataset(), peft_config=lora)
        assert trainer.vllm_generation._iter_named_params.func is merged_beside
        drawn.add(float(torch.rand(())))
    assert len(drawn) == 2, "two seeds, two streams of rollouts"
