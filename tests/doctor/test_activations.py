"""What is counted without storage against what real passes of small models save, and what they cache as they generate."""

import copy

import pytest
import torch
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from sage_rlvr.doctor import activations
from sage_rlvr.doctor.activations import measure_pass, weigh
from sage_rlvr.doctor.architectures import architecture

from ..slow import but_few

ROWS, LENGTH = 3, 24
SMALL = {
    "hidden_size": 48, "intermediate_size": 160, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 50, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MIXED = {  # each with layers that differ, and the first two do not show how
    "deepseek_v3": {"first_k_dense_replace": 2, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 32, **LATENT},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8},
    "gpt_oss": {"head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {"head_dim": 16, "intermediate_size_mlp": 320, "num_local_experts": 4, "attention_chunk_size": 8,
                    "interleave_moe_layer_step": 3},
    "qwen3_next": {"head_dim": 16, "shared_expert_intermediate_size": 32, **EXPERTS, **LINEAR},
    "jamba": {"num_experts": 4, "mamba_d_state": 8, "mamba_dt_rank": 8, "attn_layer_period": 3, "attn_layer_offset": 2},
    "nemotron_h": {"head_dim": 16, "hybrid_override_pattern": "M-M*M-", "mamba_num_heads": 4, "mamba_head_dim": 16,
                   "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8},
}  # fmt: skip


def small(kind):
    return AutoConfig.for_model(kind, **(SMALL | MIXED[kind]))


def really(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32)


def saved_by(model, rows=ROWS, length=LENGTH):
    """Bytes that autograd keeps of a real pass, weights aside."""
    weights = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    saved, held = {}, []

    def keep(t):
        held.append(t)  # so that no address is given twice
        storage = t.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return t

    embedded = torch.randn(rows, length, model.config.hidden_size, requires_grad=True)
    mask = torch.ones(rows, length, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = model.model(inputs_embeds=embedded, attention_mask=mask, use_cache=False)
    assert out.last_hidden_state.requires_grad
    return sum(saved.values())


def cached_by(model):
    """Bytes of the cache when rows of LENGTH tokens have been generated; the last token is never put in."""
    prompts = torch.ones(ROWS, LENGTH - 4, dtype=torch.long)
    told = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    cache = model.generate(prompts, **told).past_key_values
    return sum(t.nbytes for layer in cache.layers for t in tree_leaves(vars(layer)) if isinstance(t, torch.Tensor))


@pytest.mark.parametrize("kind", but_few(MIXED, {0, 1, 4}))  # experts and a latent cache, windows, a linear state
def test_layers_of_every_kind_are_counted(kind):
    config = small(kind)
    model = really(config)
    assert weigh(config, torch.float32).count == sum(p.numel() for p in model.parameters())
    counted = measure_pass(config, ROWS, LENGTH, torch.float32)
    assert counted.saved == pytest.approx(saved_by(model), rel=0.03)
    assert counted.cache == pytest.approx(cached_by(model), rel=0.001)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_cache_in_mixed_precision(kind):
    """Rotated keys are float32 where the weights are, and values with them; without rotation both are bfloat16."""
    config = AutoConfig.for_model(kind, **SMALL)
    with torch.autocast("cpu", torch.bfloat16):
        cached = cached_by(really(config))
    assert measure_pass(config, ROWS, LENGTH, torch.float32, autocast=True).cache == cached


@pytest.mark.parametrize("kind", but_few(["gemma3_text", "deepseek_v3"], {0}))
def test_few_layers_tell_what_all_of_them_do(kind, monkeypatch):
    """Against a run in which no layer is like another: every one is real. Checkpointed, in mixed precision."""
    args = (small(kind), ROWS, LENGTH, torch.bfloat16, None, True, True)
    few = measure_pass(*args)
    monkeypatch.setattr(activations, "_kind", lambda layer: object())
    every = measure_pass.__wrapped__(*args)  # else the answer would be the one it has given
    assert (few.saved, few.no_grad, few.cache) == (every.saved, every.no_grad, every.cache)
    assert few.saved + few.backward == pytest.approx(every.saved + every.backward, rel=0.1)


@pytest.mark.slow
def test_what_goes_token_by_token_is_not_waited_for():
    measure_pass(small("qwen3_next"), 1, 256, torch.float32)  # in chunks
    with pytest.raises(TypeError, match="token by token"):
        measure_pass(small("jamba"), 1, 256, torch.float32)


def test_checkpointing_and_more_rows():
    config = architecture("HuggingFaceTB/SmolLM2-135M")
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 3, 72, 160
    config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.vocab_size = 6, 2, 12, 50
    counted = measure_pass(config, 4, 32, torch.float32)
    assert counted.saved == pytest.approx(saved_by(really(config), 4, 32), rel=0.1)
    less = measure_pass(config, 4, 32, torch.float32, checkpointing=True)
    assert less.saved < counted.saved / 3
    assert less.backward > counted.backward
    twice = measure_pass(config, 8, 32, torch.float32)
    assert twice.saved == pytest.approx(2 * counted.saved, rel=0.05)
