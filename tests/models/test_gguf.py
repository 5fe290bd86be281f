"""GGUF files are written here by hand, block by block, so that nothing of the reader is in the expectation."""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from sage_rlvr.errors import UserError
from sage_rlvr.models import gguf_folder, load_model, load_tokenizer
from tests.models import tiny

TOKENS = ["<|endoftext|>", *"abcdefghijklmnopqrstuvwxyz0123456789", "ab", "cd"]
RENAMED = {  # ours → llama.cpp's
    "model.embed_tokens.": "token_embd.",
    "model.embedding_norm.": "token_embd_norm.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    ".input_layernorm.": ".attn_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
    ".operator_norm.": ".attn_norm.",
    ".self_attn.q_proj.": ".attn_q.",
    ".self_attn.k_proj.": ".attn_k.",
    ".self_attn.v_proj.": ".attn_v.",
    ".self_attn.o_proj.": ".attn_output.",
    ".self_attn.out_proj.": ".attn_output.",
    ".self_attn.q_layernorm.": ".attn_q_norm.",
    ".self_attn.k_layernorm.": ".attn_k_norm.",
    ".mlp.gate_proj.": ".ffn_gate.",
    ".mlp.up_proj.": ".ffn_up.",
    ".mlp.down_proj.": ".ffn_down.",
    ".feed_forward.w1.": ".ffn_gate.",
    ".feed_forward.w3.": ".ffn_up.",
    ".feed_forward.w2.": ".ffn_down.",
    ".conv.conv.": ".shortconv.conv.",
    ".conv.in_proj.": ".shortconv.in_proj.",
    ".conv.out_proj.": ".shortconv.out_proj.",
}


def _string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value):
    """(GGUF type, bytes)"""
    if isinstance(value, str):
        return 8, _string(value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    kinds, items = zip(*[_value(v) for v in value])
    return 9, struct.pack("<IQ", kinds[0], len(items)) + b"".join(items)


def _q8_0(weight):
    """Blocks of 32: a float16 scale and 32 int8; and the weight they stand for."""
    blocks = weight.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    q = np.rint(blocks / np.where(scale == 0, 1, scale).astype(np.float32)).astype(np.int8)
    raw = b"".join(s.tobytes() + row.tobytes() for s, row in zip(scale, q))
    return raw, (q * scale.astype(np.float32)).reshape(weight.shape)


def write_gguf(path, model, metadata):
    """Writes the model with its matrices in Q8_0 and puts the rounded weights into it: what reading must give."""
    table, data = b"", b""
    state = dict(model.named_parameters())
    for name, parameter in state.items():
        weight, kind, stored = parameter.detach().numpy(), 0, name
        for ours, theirs in RENAMED.items():
            stored = stored.replace(ours, theirs)
        if weight.ndim == 3:  # the convolution's middle dimension is 1 and is not written
            weight = weight[:, 0]
        if weight.ndim == 2 and weight.shape[1] % 32 == 0:
            kind = 8
            raw, rounded = _q8_0(weight)
            parameter.data = torch.from_numpy(rounded).reshape(parameter.shape)
        else:
            raw = weight.astype(np.float32).tobytes()
        dims = struct.pack(f"<{weight.ndim}Q", *reversed(weight.shape))
        table += _string(stored) + struct.pack("<I", weight.ndim) + dims + struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    keys = b"".join(_string(k) + struct.pack("<I", _value(v)[0]) + _value(v)[1] for k, v in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(state), len(metadata)) + keys + table
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return model.eval()


def _metadata(kind, config, **more):
    return {
        "general.architecture": kind,
        f"{kind}.context_length": config.max_position_embeddings,
        f"{kind}.embedding_length": config.hidden_size,
        f"{kind}.feed_forward_length": config.intermediate_size,
        f"{kind}.block_count": config.num_hidden_layers,
        f"{kind}.attention.head_count": config.num_attention_heads,
        f"{kind}.attention.head_count_kv": config.num_key_value_heads,
        f"{kind}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{kind}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] + [1] * (len(TOKENS) - 1),
        "tokenizer.ggml.merges": ["a b", "c d"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
    } | {f"{kind}.{k}": v for k, v in more.items()}


def _lfm2(path):
    """Transformers reads this architecture by itself."""
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
        block_auto_adjust_ff_dim=False,
        max_position_embeddings=128,
        norm_eps=1e-6,
        initializer_range=0.2,
    )
    more = {"attention.head_count_kv": [0, 2], "shortconv.l_cache": config.conv_L_cache}
    return write_gguf(path, Lfm2ForCausalLM(config), _metadata("lfm2", config, **more))


def _qwen2(path):
    """This one and most others go through the gguf package."""
    pytest.importorskip("gguf", reason="the extra gguf is not installed: pip install -e '.[gguf]'")
    model = tiny.model(hidden=32)
    model.resize_token_embeddings(len(TOKENS))
    return write_gguf(path, model, _metadata("qwen2", model.config))


def logits(model):
    ids = torch.arange(1, 21)[None]
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits.float()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "sage-rlvr" / "gguf"


@pytest.mark.parametrize("make", [_lfm2, _qwen2])
def test_the_weights_are_those_of_the_blocks(tmp_path, make):
    want = make(tmp_path / "m.gguf")
    model = load_model(tmp_path / "m.gguf", dtype="float32")
    torch.testing.assert_close(logits(model), logits(want), atol=1e-4, rtol=1e-4)
    assert type(model) is type(want)
    assert all(p.requires_grad for p in model.parameters())  # ordinary weights, which can be trained
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    assert tokenizer("abcx")["input_ids"] == [TOKENS.index(t) for t in ("ab", "c", "x")]
    assert tokenizer.eos_token == "<|endoftext|>"


def test_it_is_converted_once_per_content_and_dtype(tmp_path, home, monkeypatch):
    file = tmp_path / "m.gguf"
    _lfm2(file)
    first = gguf_folder(file, "float32")
    assert first.parent == home
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert gguf_folder(file, torch.float32) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert load_model(file).dtype == torch.bfloat16  # the default
    assert load_model(first).config._name_or_path == str(first)  # what TRL loads the reference from
    assert len(list(home.iterdir())) == 2
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)
    assert gguf_folder(file, "float32") != first


KILLED = """
import os, signal, sys
from transformers import PreTrainedTokenizerBase
from sage_rlvr.models import gguf_folder
PreTrainedTokenizerBase.save_pretrained = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
gguf_folder(sys.argv[1], "float32")
"""


@pytest.mark.slow
def test_an_interrupted_conversion_is_never_used(tmp_path, home):
    file = tmp_path / "m.gguf"
    want = _lfm2(file)
    env = os.environ | {"HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], env=env, check=False, timeout=1200)
    assert done.returncode == -9
    (left,) = home.iterdir()
    assert left.name.startswith(".")  # weights written, tokenizer not
    torch.testing.assert_close(logits(load_model(file, dtype="float32")), logits(want), atol=1e-4, rtol=1e-4)
    assert not left.exists()


def test_what_cannot_be_read_is_said(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    _lfm2(file)
    whole = file.read_bytes()
    file.write_bytes(whole[:200])
    with pytest.raises(UserError, match="cannot be read as GGUF"):
        load_model(file)
    file.write_bytes(b"<html>")
    with pytest.raises(UserError, match="is no GGUF file"):
        load_model(file)
    file.unlink()
    with pytest.raises(UserError, match="there is no file or folder"):
        load_model(file)


def test_without_the_gguf_package_the_mend_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.modeling_gguf_pytorch_utils.is_gguf_available", lambda: False)
    config = tiny.model().config
    write_gguf(tmp_path / "m.gguf", tiny.model(), _metadata("qwen2", config))
    with pytest.raises(UserError, match=r"needs the gguf package to be read: pip install gguf\."):
        load_model(tmp_path / "m.gguf")


def test_a_cache_that_cannot_be_written_gives_way_to_the_files_folder(tmp_path, monkeypatch):
    _lfm2(tmp_path / "m.gguf")
    access = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: mode != os.W_OK and access(p, mode))
    assert gguf_folder(tmp_path / "m.gguf").parent == tmp_path / ".sage-rlvr"
