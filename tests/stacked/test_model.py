"""The stack's passes against transformers' own Qwen2, each run with weights of its own."""

from functools import partial

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from sage_rlvr.errors import UserError
from sage_rlvr.stacked.model import Prompts, Shape, Stack, compiled_layer
from sage_rlvr.stacked.train import scored

RUNS, GROUP, LONGEST, VOCAB = 3, 4, 6, 19
END, PAD = 1, 0


def small(seed, tied=True, scale=0.5):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=tied, initializer_range=scale,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name or "bias" in name:  # transformers starts them at 1 and 0
                p.add_(0.3 * torch.randn_like(p))
    return model


def stacked(models, **more):
    stack = Stack.of(models[0], len(models), **more)
    for r, model in enumerate(models):
        for name, p in model.named_parameters():
            stack.weights[name][r] = p.detach()
    return stack


def padded_prompts(runs=RUNS, lengths=(5, 9, 2)):
    g = torch.Generator().manual_seed(5)
    ids = torch.randint(2, VOCAB, (runs, len(lengths), max(lengths)), generator=g)
    seen = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    seen = seen.expand(runs, -1, -1)
    return Prompts(ids.where(seen, PAD), seen)


def theirs(model, prompts, ids, run):
    """logits (P, G, T + 1, V) of one run by transformers, each completion a row with its own prompt."""
    left = prompts.ids[run][:, None].expand(-1, ids.shape[2], -1)
    seen = prompts.seen[run][:, None].expand(-1, ids.shape[2], -1)
    whole = torch.cat([left, ids[run]], -1).flatten(0, 1)
    mask = torch.cat([seen, torch.ones_like(ids[run], dtype=torch.bool)], -1).flatten(0, 1).long()
    logits = model(input_ids=whole, attention_mask=mask).logits[:, -ids.shape[-1] - 1 :]
    return logits.view(*ids.shape[1:3], -1, VOCAB)


@pytest.mark.parametrize("tied", [True, False])
def test_log_probs_and_gradients_are_transformers(tied):
    models = [small(seed, tied) for seed in range(RUNS)]
    stack, prompts = stacked(models), padded_prompts()
    ids = torch.randint(2, VOCAB, (RUNS, 3, GROUP, LONGEST), generator=torch.Generator().manual_seed(6))
    stack.trained()
    logps, entropies, _ = scored(stack, prompts, ids)
    weigh = torch.randn(logps.shape, generator=torch.Generator().manual_seed(7))
    (weigh * logps).sum().backward()
    for r, model in enumerate(models):
        expected = theirs(model, prompts, ids, r)[..., :-1, :].log_softmax(-1)
        chosen = expected.gather(-1, ids[r][..., None])[..., 0]
        assert torch.allclose(logps[r], chosen, atol=2e-5)
        assert torch.allclose(entropies[r], -(expected.exp() * expected).sum(-1), atol=2e-5)
        (weigh[r] * chosen).sum().backward()
        for name, p in model.named_parameters():
            assert torch.allclose(stack.weights[name].grad[r], p.grad, atol=1e-3 * p.grad.abs().max() + 1e-6), name


def test_a_sample_is_where_the_draw_falls_in_transformers_distribution():
    """Token by token: the first whose cumulated probability lies above the draw, and nothing but padding after the end."""
    models = [small(seed) for seed in range(RUNS)]
    stack, prompts = stacked(models), padded_prompts()
    drawn = torch.rand(RUNS, 3, GROUP, LONGEST, generator=torch.Generator().manual_seed(8))
    ids = stack.sample(prompts, drawn, END, PAD)
    ended = 0
    for r, model in enumerate(models):
        below = theirs(model, prompts, ids, r)[..., :-1, :].double().softmax(-1).cumsum(-1)
        going = torch.ones(3, GROUP, dtype=torch.bool)
        for t in range(LONGEST):
            token = ids[r, :, :, t]
            upper = below[:, :, t].gather(-1, token[..., None])[..., 0]
            lower = torch.where(token > 0, below[:, :, t].gather(-1, (token - 1).clamp(min=0)[..., None])[..., 0], 0.0)
            point = drawn[r, :, :, t]
            assert ((lower - 1e-4 <= point) & (point <= upper + 1e-4))[going].all()
            assert (token[~going] == PAD).all()
            going &= token != END
        ended += int((~going).sum())
    assert 0 < ended < RUNS * 3 * GROUP, "some ended, some did not"


def test_products_in_bf16_are_near_and_weights_stay_float32():
    """Rounding to 8 bits: near, not equal."""
    models, prompts = [small(seed, scale=0.1) for seed in range(RUNS)], padded_prompts()
    ids = torch.randint(2, VOCAB, (RUNS, 3, GROUP, LONGEST), generator=torch.Generator().manual_seed(6))
    plain, rounded = stacked(models), stacked(models, dtype=torch.bfloat16)
    rounded.trained()
    exact, found = (scored(stack, prompts, ids)[0] for stack in (plain, rounded))
    assert 0 < (found - exact).abs().max() < 0.02
    found.sum().backward()
    assert all(w.grad.dtype == w.dtype == torch.float32 for w in rounded.weights.values())


@torch.no_grad()  # its gradients are a GPU's: benchmarks/gpu/stacked_speed.py compares them
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_sees_what_the_products_see():
    models, prompts = [small(seed) for seed in range(RUNS)], padded_prompts()
    ids = torch.randint(2, VOCAB, (RUNS, 3, GROUP, LONGEST), generator=torch.Generator().manual_seed(6))
    plain, flex = (scored(stacked(models, **more), prompts, ids) for more in ({}, {"flex": True}))
    for a, b in zip(plain, flex, strict=True):
        assert torch.allclose(a, b, atol=1e-5 * a.abs().max())


@pytest.mark.slow
def test_compiled_layers_give_the_same(monkeypatch):
    """Traced and differentiated as for a GPU; its kernels are a GPU's, and compiling those of a CPU takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    compiled_layer.cache_clear()
    models = [small(seed) for seed in range(RUNS)]
    plain, compiled, prompts = stacked(models), stacked(models, compiled=True), padded_prompts()
    drawn = torch.rand(RUNS, 3, GROUP, LONGEST, generator=torch.Generator().manual_seed(8))
    ids = plain.sample(prompts, drawn, END, PAD)
    assert (compiled.sample(prompts, drawn, END, PAD) == ids).all()
    found = []
    for stack in (plain, compiled):
        stack.trained()
        logps = scored(stack, prompts, ids)[0]
        logps.square().sum().backward()
        found.append([logps.detach(), *(w.grad for w in stack.weights.values())])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5 * a.abs().max())
    compiled_layer.cache_clear()


def test_what_else_is_in_the_stack_changes_no_sample():
    models = [small(seed) for seed in range(RUNS)]
    prompts = padded_prompts()
    drawn = torch.rand(RUNS, 3, GROUP, LONGEST, generator=torch.Generator().manual_seed(9))
    together = stacked(models).sample(prompts, drawn, END, PAD)
    alone = stacked(models[1:2]).sample(Prompts(prompts.ids[1:2], prompts.seen[1:2]), drawn[1:2], END, PAD)
    assert (together[1:2] == alone).all()


def test_weights_go_back_into_a_model():
    models = [small(seed) for seed in range(2)]
    other = small(9)
    stacked(models).put(1, other)
    for mine, back in zip(models[1].state_dict().values(), other.state_dict().values()):
        assert (mine == back).all()


def test_another_architecture_is_one_sentence():
    from transformers import LlamaConfig

    with pytest.raises(UserError, match="leave --engine out"):
        Shape.of(LlamaConfig())
