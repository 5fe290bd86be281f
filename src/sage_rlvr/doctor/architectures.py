"""The shape of a model: from its folder, its GGUF file, the Hub's cache, the Hub, or, offline, what is known here."""

from pathlib import Path
from typing import Any

from sage_rlvr.doctor.machine import hub_check
from sage_rlvr.errors import UserError
from sage_rlvr.models import base_of, is_adapter
from sage_rlvr.models.gguf import is_gguf
from sage_rlvr.models.loading import resolved

_QWEN_7B: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN_3B = _QWEN_7B | {
    "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
    "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
_QWEN_1_5B = _QWEN_3B | {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
}  # fmt: skip
_QWEN_0_5B = _QWEN_3B | {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
}  # fmt: skip
_SMOLLM_135M: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
KNOWN = {
    "Qwen/Qwen2.5-Math-7B": _QWEN_7B,
    "Qwen/Qwen2.5-Math-7B-Instruct": _QWEN_7B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _QWEN_7B,
    "Qwen/Qwen2.5-3B-Instruct": _QWEN_3B,
    "Qwen/Qwen2.5-Math-1.5B": _QWEN_1_5B,
    "Qwen/Qwen2.5-Math-1.5B-Instruct": _QWEN_1_5B,
    "Qwen/Qwen2.5-Coder-1.5B": _QWEN_1_5B,
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": _QWEN_1_5B,
    "Qwen/Qwen2.5-1.5B-Instruct": _QWEN_1_5B,
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN_0_5B,
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": _QWEN_0_5B,
    "HuggingFaceTB/SmolLM2-135M": _SMOLLM_135M,
    "HuggingFaceTB/SmolLM2-135M-Instruct": _SMOLLM_135M,
}


def architecture(name_or_path: str, trust_remote_code: bool = False) -> Any:
    """The Transformers config of anything load_model takes; an adapter's is its base's. Weights are not read."""
    from transformers import AutoConfig

    source = resolved(name_or_path)
    if is_adapter(source):
        source = base_of(source)
    more: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if is_gguf(source):
        file = Path(source)
        return _read(file.name, lambda: AutoConfig.from_pretrained(file.parent, gguf_file=file.name, **more))
    if Path(source).is_dir():
        if not Path(source, "config.json").is_file():
            raise UserError(f"{source} is no model: it has no config.json; give a folder saved with save_pretrained.")
        return _read(source, lambda: AutoConfig.from_pretrained(source, **more))
    return _of_the_hub(source, more)


def _read(name: str, read: Any) -> Any:
    try:
        return read()
    except Exception as e:  # the libraries below fail in many types
        reason = " ".join(str(e).split())[:160].rstrip(" .:")
        raise UserError(
            f"the architecture of {name} cannot be read ({reason}): check that it is a whole causal LM."
        ) from e


def _of_the_hub(name: str, more: dict[str, Any]) -> Any:
    """The cache's own file first; the table spares a wait where there is no network."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, local_files_only=True, **more)
    except Exception:
        if name in KNOWN:
            return AutoConfig.for_model(**KNOWN[name], dtype="bfloat16")
    hub = hub_check()
    if hub.ok is None and "proxy" not in hub.found:
        raise UserError(
            f"the architecture of {name} is not known here and the Hub is out of reach: go online, give --model_name_or_path "
            f"the folder of a copy (its config.json is enough for a plan), or take one of {', '.join(KNOWN)}."
        )
    return _read(name, lambda: AutoConfig.from_pretrained(name, **more))
