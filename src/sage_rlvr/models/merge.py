"""Merging an adapter into its base, and exporting weights for other tools: one folder, whole or not at all."""

from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.models.folders import check_free, whole_folder
from sage_rlvr.models.loading import is_adapter, load_model, load_tokenizer, resolved


def merge_adapter(
    adapter: str | Path,
    out: str | Path,
    base: str | Path | None = None,
    dtype: Any = None,
    force: bool = False,
    trust_remote_code: bool = False,
) -> Path:
    """Writes base + adapter as full weights, with the tokenizer, to ``out``.

    ``base`` is the model the adapter names unless said; ``dtype`` the one the base is stored in. The adapter's own
    tokenizer (with its chat template) goes along where it has one, else the base's.
    """
    if base is None and not is_adapter(source := resolved(adapter)):
        raise UserError(f"{source} is no adapter: it has no adapter_config.json, so there is nothing to merge.")
    return _write(adapter, out, base, dtype, force, trust_remote_code)


def export_model(source: str | Path, out: str | Path, dtype: Any = "bfloat16", force: bool = False) -> Path:
    """Writes any model that load_model takes, adapters merged, as safetensors in ``dtype`` with tokenizer and generation
    config, and says how llama.cpp makes a GGUF file of it."""
    folder = _write(source, out, None, dtype, force, False)
    print(f"written: {folder}")
    print(f"GGUF is llama.cpp's: python convert_hf_to_gguf.py {folder} --outfile {folder.name}.gguf --outtype bf16")
    return folder


def _write(
    source: str | Path, out: str | Path, base: str | Path | None, dtype: Any, force: bool, trusted: bool
) -> Path:
    check_free(out, force)
    model = load_model(base or source, adapter=source if base else None, dtype=dtype, trust_remote_code=trusted)
    try:
        tokenizer = load_tokenizer(source, trust_remote_code=trusted)
    except UserError:
        if base is None:
            raise
        tokenizer = load_tokenizer(base, trust_remote_code=trusted)
    if hasattr(model, "merge_and_unload"):
        try:
            model = model.merge_and_unload(safe_merge=True)  # safe: NaN is refused, not merged
        except ValueError as e:
            raise UserError(f"{source} cannot be merged ({e}): take an earlier checkpoint of it.") from e
    with whole_folder(out, force) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    return Path(out)
