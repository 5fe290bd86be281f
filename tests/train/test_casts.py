"""Without PEFT's round trip through float32: the same bits, and fewer copies of an input wait for the backward."""

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer

from sage_rlvr.train import SAGEConfig, SAGETrainer
from sage_rlvr.train.casts import keep_inputs

from . import tiny


def adapted(dropout: float = 0.0):
    torch.manual_seed(0)
    config = LoraConfig(
        r=4, lora_alpha=12, lora_dropout=dropout, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]
    )
    model = get_peft_model(tiny.model(spread=0.5).to(torch.bfloat16), config)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    assert {p.dtype for n, p in model.named_parameters() if "lora_" in n} == {torch.float32}
    return model


def update(model, autocast=True):
    """Logits, gradients, and the bytes that waited for the backward, each storage once."""
    kept = {}

    def keep(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    torch.manual_seed(1)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), hooks:
        logits = model(torch.arange(4, 16).view(2, 6)).logits
    logits.float().square().mean().backward()
    return logits, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, sum(kept.values())


def test_the_same_bits_and_less_kept():
    before, after = adapted(), adapted()
    keep_inputs(after)
    (logits, grads, many), (logits_after, grads_after, few) = update(before), update(after)
    assert grads
    assert torch.equal(logits, logits_after)
    assert all(torch.equal(g, grads_after[n]) for n, g in grads.items())
    one = 2 * 2 * 6 * 32  # bytes of an input: bf16, 2 rows of 6 tokens, width 32
    assert many - few == 2 * one  # q and v share theirs, in both layers


def test_without_autocast_the_input_is_still_cast():
    before, after = adapted(), adapted()
    keep_inputs(after)
    assert torch.equal(update(before, autocast=False)[0], update(after, autocast=False)[0])


def test_dropout_is_left_alone():
    before, after = adapted(0.5), adapted(0.5)
    keep_inputs(after)
    assert torch.equal(update(before)[0], update(after)[0])


def test_the_trainer_uses_it(folder, tmp_path):
    lora = LoraConfig(r=4, target_modules=["q_proj"])
    args = tiny.config(SAGEConfig, tmp_path)
    trainer = SAGETrainer(folder, tiny.hash_reward, args, tiny.dataset(), peft_config=lora)
    layers = [m for m in trainer.model.modules() if isinstance(m, LoraLayer)]
    assert layers
    assert all("_cast_input_dtype" in vars(m) for m in layers)
