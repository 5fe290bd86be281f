import json

import pytest
import torch
from safetensors import safe_open

from sage_rlvr.errors import UserError
from sage_rlvr.models import export_model, load_model, load_tokenizer, merge_adapter
from tests.models import tiny

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture
def adapter(tmp_path):
    folder = tiny.save_adapter(tmp_path / "adapter", tiny.save_base(tmp_path / "base"))
    own = tiny.tokenizer()
    own.chat_template = TEMPLATE
    own.save_pretrained(folder)
    return folder


def names(folder):
    return {p.name for p in folder.iterdir()}


def test_merged_weights_answer_as_the_adapter_does(adapter, tmp_path):
    out = merge_adapter(adapter, tmp_path / "merged")
    assert out == tmp_path / "merged"
    assert "adapter_config.json" not in names(out)
    torch.testing.assert_close(tiny.logits(load_model(out)), tiny.logits(load_model(adapter)), atol=1e-5, rtol=0)
    base = tiny.logits(load_model(tmp_path / "base"))
    assert (tiny.logits(load_model(out)) - base).abs().max() > 0.1
    assert load_tokenizer(out).chat_template == TEMPLATE


def test_the_base_can_be_another_copy(adapter, tmp_path):
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(UserError, match="is not there; give the base"):
        merge_adapter(adapter, tmp_path / "merged")
    out = merge_adapter(adapter, tmp_path / "merged", base=tmp_path / "moved", dtype="bfloat16")
    assert load_model(out).dtype == torch.bfloat16


def test_a_full_folder_is_not_overwritten_unless_forced(adapter, tmp_path):
    out = tmp_path / "merged"
    out.mkdir()
    merge_adapter(adapter, out)  # an empty one is no loss
    (out / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="is not empty: name another folder, or say force"):
        merge_adapter(adapter, out)
    assert (out / "mine.txt").exists()
    merge_adapter(adapter, out, force=True)
    assert "mine.txt" not in names(out)
    assert names(tmp_path) == {"adapter", "base", "merged"}


def test_a_failed_merge_leaves_nothing(adapter, tmp_path, monkeypatch):
    def fail(*args, **kw):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", fail)
    with pytest.raises(OSError, match="No space"):
        merge_adapter(adapter, tmp_path / "merged")
    assert names(tmp_path) == {"adapter", "base"}


def test_nan_in_the_adapter_is_refused(adapter, tmp_path):
    from safetensors.torch import load_file, save_file

    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    next(w for k, w in weights.items() if "lora_B" in k).fill_(float("nan"))
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match="cannot be merged"):
        merge_adapter(adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_what_is_no_adapter_cannot_be_merged(adapter, tmp_path):
    with pytest.raises(UserError, match="there is nothing to merge"):
        merge_adapter(tmp_path / "base", tmp_path / "merged")


@pytest.mark.parametrize("source", ["adapter", "base"])
def test_export_is_safetensors_in_the_dtype_with_everything_beside_it(adapter, tmp_path, source, capsys):
    out = export_model(tmp_path / source, tmp_path / "out", dtype="float16")
    with safe_open(out / "model.safetensors", framework="pt") as saved:
        assert {saved.get_tensor(k).dtype for k in saved.keys()} == {torch.float16}  # noqa: SIM118
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= names(out)
    assert json.loads((out / "config.json").read_text())["dtype"] == "float16"
    want = tiny.logits(load_model(tmp_path / source, dtype="float32"))
    torch.testing.assert_close(tiny.logits(load_model(out, dtype="float32")), want, atol=2e-2, rtol=0)
    assert f"convert_hf_to_gguf.py {out}" in capsys.readouterr().out


def test_a_temperature_without_sampling_does_not_stop_the_save(adapter, tmp_path):
    """Older models on the Hub have it, and Transformers loads but does not save it."""
    file = tmp_path / "base" / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"temperature": 0.7}))
    out = export_model(tmp_path / "base", tmp_path / "out")
    saved = json.loads((out / "generation_config.json").read_text())
    assert (saved["temperature"], saved["do_sample"]) == (0.7, True)
