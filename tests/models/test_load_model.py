import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import Qwen2ForCausalLM, dynamic_module_utils

from sage_rlvr.errors import UserError
from sage_rlvr.models import check_vocabulary, load_model, load_tokenizer
from tests import forked
from tests.models import tiny

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture
def base(tmp_path):
    return tiny.save_base(tmp_path / "base")


def one_sentence(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text[-1] in ".?"
    return text


def test_a_folder_gives_its_model_in_the_dtype_asked_for(base):
    assert torch.equal(tiny.logits(load_model(base)), tiny.logits(tiny.model()))
    assert load_model(base).dtype == torch.float32
    assert load_model(str(base), dtype="bfloat16").dtype == torch.bfloat16
    assert load_model(base, attn_implementation="eager").config._attn_implementation == "eager"


@pytest.mark.parametrize("by_itself", [True, False])
@pytest.mark.parametrize("trainable", [True, False])
def test_an_adapter_gives_base_and_adapter(tmp_path, base, by_itself, trainable):
    folder = tiny.save_adapter(tmp_path / "adapter", base)
    want = PeftModel.from_pretrained(Qwen2ForCausalLM.from_pretrained(base), folder)
    names = {"name_or_path": folder} if by_itself else {"name_or_path": base, "adapter": folder}
    model = load_model(**names, trainable_adapter=trainable)
    assert isinstance(model, PeftModel)
    assert list(model.peft_config) == ["default"]
    assert torch.equal(tiny.logits(model), tiny.logits(want))
    assert not torch.allclose(tiny.logits(model), tiny.logits(tiny.model()), atol=1e-2)
    asked = {name for name, p in model.named_parameters() if p.requires_grad}
    assert asked == ({n for n, _ in model.named_parameters() if "lora_" in n} if trainable else set())


def test_a_relative_base_is_found_from_another_folder(tmp_path, base, monkeypatch):
    from peft import LoraConfig, get_peft_model

    monkeypatch.chdir(tmp_path)
    adapted = get_peft_model(load_model("base"), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    adapted.save_pretrained(tmp_path / "adapter")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert isinstance(load_model(tmp_path / "adapter"), PeftModel)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"hidden": 64}, "down_proj is 128 wide there and 64 in the adapter"),
        ({"layers": 1}, "that model has no layer model.layers.1."),
        ({"layers": 3}, "it has nothing for base_model.model.model.layers.2."),
    ],
)
def test_an_adapter_for_another_model_is_refused(tmp_path, base, shape, said):
    folder = tiny.save_adapter(tmp_path / "adapter", base)
    other = tiny.save_base(tmp_path / "other", **shape)
    with pytest.raises(UserError) as error:
        load_model(other, adapter=folder)
    text = one_sentence(error)
    assert said in text
    assert str(folder) in text
    assert str(other) in text
    assert "give the base model it was trained on" in text


def test_what_is_no_model_is_said_in_one_sentence(tmp_path, base):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"is no model: it has no config\.json; give a folder saved with"):
        load_model(empty)
    (empty / "checkpoint-7").mkdir()
    with pytest.raises(UserError, match=r"did you mean .*checkpoint-7\?"):
        load_model(empty)
    with pytest.raises(UserError, match=r"is no adapter: it has no adapter_config\.json"):
        load_model(base, adapter=empty)
    for path in ("./nothing/here", "a/b/c", "missing.gguf", "~/nothing at all"):
        with pytest.raises(UserError, match="there is no file or folder"):
            load_model(path)
    weights = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(UserError) as error:
        load_model(base)
    assert "could not be loaded" in one_sentence(error)
    (base / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has a config\.json but no weights"):
        load_model(base)
    (base / "config.json").write_text('{"model_type": ')
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        load_model(base)


UP = "model.layers.1.mlp.up_proj.weight"


def without(weights):
    del weights[UP]


def cut(weights):
    weights[UP] = weights[UP][:3].clone()


@pytest.mark.parametrize(
    ("change", "said"), [(without, f"has no weights for {UP}"), (cut, "other shapes than its config")]
)
def test_a_tensor_that_is_missing_or_cut_is_refused(base, change, said):
    """transformers fills the first with noise and goes on; the model would be trained, or evaluated."""
    weights = load_file(base / "model.safetensors")
    change(weights)
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError) as error:
        load_model(base)
    assert said in one_sentence(error)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_json_that_is_100_000_deep_is_said(base, name):
    (base / name).write_text("[" * 100_000)
    with pytest.raises(UserError) as error:
        (load_tokenizer if name.startswith("tokenizer") else load_model)(base)
    assert "nested too deep" in one_sentence(error)


def test_a_pad_id_beyond_the_embedding_is_said(base):
    model, words = load_model(base), load_tokenizer(base)
    check_vocabulary(model, words)
    words.add_special_tokens({"pad_token": "<another pad>"})  # and the embedding was not resized
    with pytest.raises(UserError) as error:
        check_vocabulary(model, words)
    assert f"the pad token of {base} has id {len(words) - 1} and the model's embedding has" in one_sentence(error)
    config = json.loads((base / "config.json").read_text()) | {"pad_token_id": 10**6}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"pad_token_id in its config\.json lies beyond its vocabulary"):
        load_model(base)


def test_broken_adapters_are_said_in_one_sentence(tmp_path, base):
    folder = tiny.save_adapter(tmp_path / "adapter", base)
    with pytest.raises(UserError, match="is itself an adapter"):
        load_model(folder, adapter=folder)
    weights = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(weights[:100])
    with pytest.raises(UserError, match=r"adapter_model\.safetensors cannot be read"):
        load_model(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no adapter_model\.safetensors"):
        load_model(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(tmp_path / "gone")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"its base model .*gone is not there; give the base and adapter="):
        load_model(folder)


@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_a_hub_model_out_of_reach_says_the_way_out(load, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as error:
        load("nobody-here/no-such-model")
    assert "is not in the local cache and the Hub is out of reach: go online" in one_sentence(error)


def test_a_mistyped_folder_out_of_reach_is_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError) as error:
        load_model("runs/nothere")
    assert "there is no model runs/nothere in runs, and the Hub is out of reach" in one_sentence(error)


CODE = """
from pathlib import Path
Path({marker!r}).touch()
from transformers import Qwen2Config, Qwen2ForCausalLM, PreTrainedTokenizerFast
class Config(Qwen2Config):
    model_type = {kind!r}
class Model(Qwen2ForCausalLM):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def with_code(tmp_path, base):
    """A model whose own Python file leaves a marker when it is run; kind is its model_type."""

    def make(kind):
        marker = tmp_path / "was_run"
        (base / "own_code.py").write_text(CODE.format(marker=str(marker), kind=kind))
        (base / "custom_generate").mkdir()
        (base / "custom_generate" / "generate.py").write_text(CODE.format(marker=str(marker), kind=kind))
        for name, own in {
            "config.json": {"AutoConfig": "own_code.Config", "AutoModelForCausalLM": "own_code.Model"},
            "tokenizer_config.json": {"AutoTokenizer": [None, "own_code.Tokenizer"]},
        }.items():
            content = json.loads((base / name).read_text())
            content |= {"auto_map": own} | ({"model_type": kind} if name == "config.json" else {})
            if name == "tokenizer_config.json":
                content["tokenizer_class"] = "Tokenizer"
            (base / name).write_text(json.dumps(content))
        return marker

    return make


@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_code_that_comes_with_a_model_is_not_run(with_code, base, load):
    marker = with_code("not_in_transformers")
    with pytest.raises(UserError) as error:
        load(base)
    text = one_sentence(error)
    assert "ships its own Python code" in text
    assert "trust_remote_code=True" in text
    assert not marker.exists()


def test_a_known_architecture_is_loaded_without_the_code_beside_it(with_code, base):
    marker = with_code("qwen2")
    assert type(load_model(base)) is Qwen2ForCausalLM
    assert not marker.exists()


def load_with_its_code(base, modules):
    """In a process of its own: the code stays imported. transformers copies it there first."""
    dynamic_module_utils.HF_MODULES_CACHE = str(modules)
    load_model(base, trust_remote_code=True)
    assert any(path.name == "own_code.py" for path in modules.rglob("*.py"))


def test_code_is_run_when_asked(with_code, base, tmp_path):
    """The other side of the two tests above: the marker would have shown."""
    marker = with_code("not_in_transformers")
    (base / "custom_generate" / "generate.py").unlink()
    done = forked.run(load_with_its_code, base, tmp_path / "modules")
    assert done.returncode == 0, done.stderr
    assert marker.exists()


def test_a_base_tokenizer_gets_the_template_and_another_keeps_its_own(tmp_path, base):
    assert load_tokenizer(base).chat_template is None
    given = load_tokenizer(base, chat_template=TEMPLATE)
    assert given.chat_template == TEMPLATE
    given.save_pretrained(tmp_path / "own")
    assert load_tokenizer(tmp_path / "own", chat_template="another").chat_template == TEMPLATE


def test_there_is_always_a_pad_token(tmp_path):
    tiny.tokenizer(pad=False).save_pretrained(tmp_path / "no_pad")
    assert load_tokenizer(tmp_path / "no_pad").pad_token == "<pad>"  # in the vocabulary, though not declared
    plain = tiny.tokenizer(pad=False)
    text = plain.backend_tokenizer.to_str().replace("<pad>", "<zero>")
    plain.save_pretrained(tmp_path / "eos")
    (tmp_path / "eos" / "tokenizer.json").write_text(text)
    assert load_tokenizer(tmp_path / "eos").pad_token == "<eos>"


def test_an_adapters_tokenizer_is_its_own_or_its_bases(tmp_path, base):
    folder = tiny.save_adapter(tmp_path / "adapter", base)
    assert load_tokenizer(folder).get_vocab() == tiny.tokenizer().get_vocab()
    own = tiny.tokenizer()
    own.chat_template = TEMPLATE
    own.save_pretrained(folder)
    assert load_tokenizer(folder).chat_template == TEMPLATE


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    tiny.model().save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match=r"has no tokenizer \(tokenizer\.json\)"):
        load_tokenizer(tmp_path / "bare")
