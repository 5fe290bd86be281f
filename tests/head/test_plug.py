"""In TRL's place: the same log-probs, entropies and gradients through TRL's own machinery on a small Qwen2."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.trainer import utils

from sage_rlvr.head import Head, covers, in_place
from sage_rlvr.head.plug import not_covered
from sage_rlvr.models.scratch import scratch_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return scratch_model(tmp_path_factory.mktemp("scratch") / "model", "0123456789+-= abcdef", width=32, seed=1)


def model_of(folder, *, frozen_head, temperature=0.9, **config):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **config)
    torch.manual_seed(0)
    for p in model.parameters():  # far from uniform
        p.data.add_(0.2 * torch.randn_like(p))
    model.get_output_embeddings().weight.requires_grad_(not frozen_head)
    utils.add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))
    return model


def one_pass(model, head, bonus=0.0):
    """TRL's helper, unbound: log-probs and entropies of a padded batch, and all gradients of a loss on them."""
    torch.manual_seed(2)
    ids = torch.randint(3, model.config.vocab_size, (4, 12))
    attention = torch.ones_like(ids)
    attention[0, :3] = 0  # prompt padded on the left, completion on the right
    attention[2, 9:] = 0
    helper = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)
    trainer = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))
    with in_place(utils, head):
        logps, entropies, _ = helper(trainer, model, ids, attention, 7, batch_size=3, compute_entropy=True)
    model.zero_grad()
    weights = torch.randn(logps.shape)
    ((logps * weights).sum() + bonus * entropies.sum()).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return logps.detach(), entropies.detach(), gradients


@pytest.mark.parametrize("bonus", [0.0, 0.3])
@pytest.mark.parametrize("frozen_head", [True, False])
def test_parity_with_trl(folder, frozen_head, bonus):
    model = model_of(folder, frozen_head=frozen_head)
    theirs = one_pass(model, None, bonus)
    head = Head(utils._ChunkedLogProbFunction, entropy_grad=bonus != 0)
    ours = one_pass(model, head, bonus)
    assert not head.reasons
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours[1], theirs[1], atol=1e-5, rtol=1e-5)
    assert ours[2].keys() == theirs[2].keys()
    for name, gradient in ours[2].items():
        assert (gradient - theirs[2][name]).norm() <= 1e-5 * theirs[2][name].norm() + 1e-7, name


def test_a_bonus_without_entropy_grad_gives_no_entropy_gradient(folder):
    model = model_of(folder, frozen_head=True)
    head = Head(utils._ChunkedLogProbFunction)
    plain, bonus = one_pass(model, head)[2], one_pass(model, head, bonus=0.3)[2]
    assert all(torch.equal(plain[name], bonus[name]) for name in plain)


def test_theirs_is_back_after_the_pass_and_after_a_failure():
    theirs = utils._ChunkedLogProbFunction
    head = Head(theirs)
    with in_place(utils, head):
        assert utils._ChunkedLogProbFunction is head
    with pytest.raises(RuntimeError), in_place(utils, head):
        raise RuntimeError
    assert utils._ChunkedLogProbFunction is theirs


def test_the_signature_is_trl_1_16s():
    names = list(inspect.signature(utils._ChunkedLogProbFunction.forward).parameters)[1:]
    mine = list(inspect.signature(Head(None).apply).parameters)
    assert len(names) == len(mine)
    assert names[3:6] == ["targets", "temperature", "chunk_size"]
    assert names[6:] == ["final_logit_softcapping", "logit_scale", "outputs"]
    assert "_ChunkedLogProbFunction.apply(" in inspect.getsource(utils.add_fused_lm_head)


def test_what_is_not_covered_goes_to_trl_with_a_reason():
    weight, hidden = torch.randn(50, 8), torch.randn(3, 8)
    head = Head(utils._ChunkedLogProbFunction)
    out = head.apply(hidden, weight, None, torch.tensor([1, 2, 3]), 1.0, 64, None, 1.0, ("log_probs", "is_top1"))
    assert out[4] is not None
    assert head.reasons == {"is_top1 is asked for, and only log_probs and entropy are computed"}
    wanted = ("log_probs",)
    assert head.apply(hidden, weight, None, torch.tensor([1, 2, 3]), 1.0, 64, None, 1.0, wanted)[1:] == (None,) * 4


def test_covers(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert covers(model) is None
    assert "no output layer" in covers(torch.nn.Linear(2, 2))
    assert "quantised" in not_covered(torch.zeros(10, 1, dtype=torch.uint8))
    sharded = torch.nn.Parameter(torch.zeros(0))
    sharded.ds_id = 0
    assert "ZeRO-3" in not_covered(sharded)
