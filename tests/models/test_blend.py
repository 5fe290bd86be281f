"""Weights between a base and what was trained from it: the line itself, for an adapter and for full weights."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from sage_rlvr.errors import UserError
from sage_rlvr.models import blend, load_model, load_tokenizer, merge_adapter
from tests.models import tiny


@pytest.fixture
def base(tmp_path):
    return tiny.save_base(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path, base):
    return tiny.save_adapter(tmp_path / "adapter", base)


def weights(folder):
    return {name: w.clone() for name, w in load_model(folder, dtype="float32").state_dict().items()}


def on_the_line(start, end, share):
    return {name: w + share * (end[name] - w) for name, w in start.items()}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 1.2])
def test_an_adapter_merged_after_it_is_blended_lies_on_the_line(base, adapter, tmp_path, share):
    whole = weights(merge_adapter(adapter, tmp_path / "whole"))
    out = blend(adapter, tmp_path / "part", share)
    found = weights(merge_adapter(out, tmp_path / "merged"))
    for name, w in on_the_line(weights(base), whole, share).items():
        torch.testing.assert_close(found[name], w, atol=1e-5, rtol=0)
    assert any((found[name] - w).abs().max() > 0.01 for name, w in whole.items()) == (share != 1.0)


def test_full_weights_lie_on_the_line_in_their_own_dtype(base, tmp_path):
    trained = tiny.save_base(tmp_path / "trained", seed=5)
    found = weights(blend(trained, tmp_path / "out", 0.25, base))
    for name, w in on_the_line(weights(base), weights(trained), 0.25).items():
        torch.testing.assert_close(found[name], w, atol=1e-6, rtol=0)
    load_model(trained, dtype="bfloat16").save_pretrained(trained)
    assert load_model(blend(trained, tmp_path / "half", 0.25, base)).dtype == torch.bfloat16
    assert load_tokenizer(tmp_path / "half").get_vocab() == load_tokenizer(base).get_vocab()


def test_the_base_of_full_weights_is_read_from_their_run(base, tmp_path):
    trained = tiny.save_base(tmp_path / "trained", seed=5)
    with pytest.raises(UserError, match="does not say what they were trained from: name it with --base"):
        blend(trained, tmp_path / "out", 0.5)
    with pytest.raises(UserError, match="there is no folder runs/nothing: name what was trained"):
        blend("runs/nothing", tmp_path / "out", 0.5)
    (trained / "run.json").write_text(json.dumps({"settings": {"model_name_or_path": str(base)}}))
    said = json.loads((blend(trained, tmp_path / "out", 0.5) / "blend.json").read_text())
    assert (said["base"], said["weight"]) == (str(base), 0.5)
    (trained / "run.json").write_text(json.dumps({"settings": {"model_name_or_path": str(base), "sft": {"a": 1}}}))
    with pytest.raises(UserError, match="name it with --base"):
        blend(trained, tmp_path / "other", 0.5)


def test_weights_of_another_shape_are_refused(base, tmp_path):
    other = tiny.save_base(tmp_path / "other", hidden=64)
    with pytest.raises(UserError, match=r"was not trained from .*differs in shape; name its --base"):
        blend(other, tmp_path / "out", 0.5, base)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused(adapter, tmp_path, share):
    with pytest.raises(UserError, match="0 is the base, 1 the trained model"):
        blend(adapter, tmp_path / "out", share)


def test_what_is_not_lora_alone_or_did_not_begin_as_its_base_is_refused(base, adapter, tmp_path):
    """There the line through B is another than the one through the weights."""
    config = adapter / "adapter_config.json"
    own = json.loads(config.read_text())
    config.write_text(json.dumps(own | {"init_lora_weights": "pissa"}))
    with pytest.raises(UserError, match="did not begin as its base"):
        blend(adapter, tmp_path / "out", 0.5)
    config.write_text(json.dumps(own))
    kept = load_file(adapter / "adapter_model.safetensors")
    more = {"base_model.model.lm_head.weight": torch.ones(2, 2)}
    save_file(kept | more, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="holds more than LoRA's A and B"):
        blend(adapter, tmp_path / "out", 0.5)
    save_file(kept, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    (adapter / "run.json").write_text(json.dumps({"settings": {"model_name_or_path": str(adapter)}}))
    with pytest.raises(UserError, match="was trained from another adapter"):
        blend(adapter, tmp_path / "out", 0.5)
    dora = get_peft_model(load_model(base), LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    dora.save_pretrained(tmp_path / "dora")
    with pytest.raises(UserError, match="holds more than LoRA's A and B"):
        blend(tmp_path / "dora", tmp_path / "out", 0.5)
    with pytest.raises(UserError, match="names its base itself: leave --base out"):
        blend(adapter, tmp_path / "out", 0.5, base)


def test_a_folder_with_something_in_it_is_not_overwritten_unless_forced(adapter, tmp_path):
    out = tmp_path / "out"
    blend(adapter, out, 0.5)
    with pytest.raises(UserError, match="is not empty"):
        blend(adapter, out, 0.7)
    blend(adapter, out, 0.7, force=True)
    assert json.loads((out / "blend.json").read_text())["weight"] == 0.7
