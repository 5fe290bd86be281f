"""GGUF files: dequantised once into a cached folder of safetensors, then an ordinary model."""

import logging
import os
import re
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError, short
from sage_rlvr.models.fingerprints import of_weights
from sage_rlvr.models.folders import whole_folder

_log = logging.getLogger(__name__)


def is_gguf(source: str | Path) -> bool:
    return str(source).endswith(".gguf")


def gguf_folder(file: str | Path, dtype: Any = None) -> Path:
    """The folder of safetensors made from a .gguf file, made now if it is not there. Weights are in ``dtype`` (bfloat16).

    It lies in $HF_HOME/sage-rlvr/gguf, under the file's name, its content's fingerprint and the dtype; it is renamed into
    place when it is whole, so an interrupted conversion is never used.
    """
    import torch

    file = _checked(file)
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype), None)
    kind = kind if isinstance(kind, torch.dtype) else torch.bfloat16  # None and "auto"
    stem = re.sub(r"[^\w.-]", "_", file.stem)
    folder = _cache(file) / f"{stem}-{of_weights(file)}-{str(kind).removeprefix('torch.')}"
    if not folder.is_dir():
        _log.warning("dequantising %s into %s, once", file.name, folder)
        try:
            with whole_folder(folder) as partial:
                _model(file, kind).save_pretrained(partial)
                gguf_tokenizer(file).save_pretrained(partial)
        except UserError:
            if not folder.is_dir():  # unless another process was faster
                raise
    return folder


def gguf_tokenizer(file: str | Path) -> Any:
    from transformers import AutoTokenizer

    file = _checked(file)
    try:
        return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    except Exception as e:
        raise _unreadable(file, e) from e


def _model(file: Path, dtype: Any) -> Any:
    import transformers

    kw: dict[str, Any] = {"gguf_file": file.name, "dtype": dtype, "local_files_only": True}
    if hasattr(transformers, "GgufConfig"):  # before it, dequantising was the only way
        kw["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **kw)
    except Exception as e:
        raise _unreadable(file, e) from e
    # an ordinary model from here on: nothing of the file's blocks is left in it
    model.hf_quantizer = None
    for note in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, note):
            delattr(model.config, note)
    return model


def _unreadable(file: Path, e: Exception) -> UserError:
    if isinstance(e, ImportError) and "gguf" in str(e):
        return UserError(f"{file.name} needs the gguf package to be read: pip install gguf.")
    return UserError(
        f"{file} cannot be read as GGUF ({short(e)}): fetch it again, or take a file of an architecture that Transformers "
        f"converts."
    )


def _checked(file: str | Path) -> Path:
    file = Path(file).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"there is no file {file}: check the path.")
    with file.open("rb") as f:
        magic = f.read(4)
    if magic != b"GGUF":
        raise UserError(f"{file} is no GGUF file (it begins with {magic!r}): fetch it again.")
    return file


def _cache(file: Path) -> Path:
    """A folder in the Hub's own cache, or, where that cannot be written, one beside the file."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    cache = Path(home).expanduser() / "sage-rlvr" / "gguf"
    there = next(parent for parent in [cache, *cache.absolute().parents] if parent.exists())
    return cache if os.access(there, os.W_OK) else file.parent / ".sage-rlvr"
