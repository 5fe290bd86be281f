"""The shape of a model: from its folder, its GGUF file, the Hub's cache, the Hub, or, offline, what is known here."""

from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError, short
from sage_rlvr.models import base_of, is_adapter
from sage_rlvr.models.gguf import is_gguf
from sage_rlvr.models.loading import hub_in_reach, resolved

FIELDS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "vocab_size", "tie_word_embeddings",
)  # fmt: skip
_SHAPES = {  # of the models that recipes, studies and docs name
    ("qwen2", 3584, 18944, 28, 28, 4, 152064, False):
        "Qwen/Qwen2.5-Math-7B Qwen/Qwen2.5-Math-7B-Instruct deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    ("qwen2", 2048, 11008, 36, 16, 2, 151936, True): "Qwen/Qwen2.5-3B-Instruct",
    ("qwen2", 1536, 8960, 28, 12, 2, 151936, True):
        "Qwen/Qwen2.5-Math-1.5B Qwen/Qwen2.5-Math-1.5B-Instruct Qwen/Qwen2.5-Coder-1.5B Qwen/Qwen2.5-Coder-1.5B-Instruct "
        "Qwen/Qwen2.5-1.5B-Instruct",
    ("qwen2", 896, 4864, 24, 14, 2, 151936, True): "Qwen/Qwen2.5-0.5B-Instruct Qwen/Qwen2.5-Coder-0.5B-Instruct",
    ("llama", 576, 1536, 30, 9, 3, 49152, True): "HuggingFaceTB/SmolLM2-135M HuggingFaceTB/SmolLM2-135M-Instruct",
}  # fmt: skip
KNOWN = {name: shape for shape, names in _SHAPES.items() for name in names.split()}


def architecture(name_or_path: str, trust_remote_code: bool = False) -> Any:
    """The Transformers config of anything load_model takes; an adapter's is its base's. Weights are not read."""
    from transformers import AutoConfig

    source = resolved(name_or_path)
    if is_adapter(source):
        source = base_of(source)
    path = Path(source)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if is_gguf(source):
        source, options["gguf_file"] = str(path.parent), path.name
    elif path.is_dir() and not (path / "config.json").is_file():
        raise UserError(f"{source} is no model: it has no config.json; give a folder saved with save_pretrained.")
    elif not path.is_dir():
        try:  # the cache's own file first; the table spares a wait where there is no network
            return AutoConfig.from_pretrained(source, local_files_only=True, **options)
        except Exception as e:
            if source in KNOWN:
                return AutoConfig.for_model(**dict(zip(FIELDS, KNOWN[source])), dtype="bfloat16")
            if not hub_in_reach():
                raise UserError(
                    f"the architecture of {source} is not known here and the Hub is out of reach: go online, give --model the "
                    f"folder of a copy (its config.json is enough for a plan), or take one of {', '.join(KNOWN)}."
                ) from e
    try:
        return AutoConfig.from_pretrained(source, **options)
    except Exception as e:  # the libraries below fail in many types
        raise UserError(
            f"the architecture of {path} cannot be read ({short(e)}): check that it is a whole causal LM."
        ) from e
