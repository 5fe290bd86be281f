"""A model known by the content of its files: by all that decides what it writes, wherever it lies and whenever it was saved."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sage_rlvr.files import read_json

WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
TOKENIZER = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "*.tiktoken", "tekken.json",
    "added_tokens.json", "special_tokens_map.json",
)  # fmt: skip
BLOCK, BLOCKS = 1 << 16, 64  # of a file of weights: all of a small one, 4 MiB of a large one
# what a save changes and no token depends on; the chat template is known by its text, wherever it stands
NOISE = (
    "transformers_version", "_name_or_path", "name_or_path", "base_model_name_or_path", "inference_mode", "chat_template",
)  # fmt: skip


def digest(content: Any) -> str:
    """Of bytes, or of anything that JSON can say, in whatever order it says it."""
    data = content if isinstance(content, bytes) else json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def of_weights(source: str | Path) -> str | None:
    """Of names, sizes and blocks spread over each file, both ends included: a second, where a whole hash takes minutes. It
    stays the same where the files are copied or touched. None where they are not here, or not yet all of them."""
    place = Path(source) if Path(source).is_file() else folder_of(source)
    if place is None or not _whole(place):
        return None
    # a GGUF file may be renamed
    files = {"": place} if place.is_file() else {f.name: f for f in _found(place, WEIGHTS)}
    if not files:
        return None
    hashed = hashlib.sha256()
    for name, file in files.items():
        size = file.stat().st_size
        hashed.update(f"{name} {size}\n".encode())
        with file.open("rb") as f:
            for i in range(BLOCKS):
                f.seek(max(0, size - BLOCK) * i // (BLOCKS - 1))
                hashed.update(f.read(BLOCK))
    return hashed.hexdigest()[:16]


def of_files(base: str | Path, adapter: str | Path | None, tokenizer: str | Path) -> dict[str, str]:
    """What else decides a sample → a digest of it, for what is here. ``tokenizer``: where it is loaded from."""
    out = {}
    if (model := folder_of(base)) is not None:
        config = _plain(model / "config.json")
        # of the generation config we take where to stop, and no more: sampling is the evaluation's own
        ends = _plain(model / "generation_config.json").get("eos_token_id")
        out = {"config.json": digest(config), "generation_config.json": digest(ends)}
        if "auto_map" in config:
            out["code"] = _of(_found(model, ("*.py",)))
    if (words := folder_of(tokenizer)) is not None:
        out["tokenizer"] = digest([_of(_found(words, TOKENIZER)), _plain(words / "tokenizer_config.json")])
    if adapter is not None and (layers := folder_of(adapter)) is not None:
        out["adapter_config.json"] = digest(_plain(layers / "adapter_config.json"))
    return out


def of_model(source: str | Path) -> list[Any]:
    """Of what a forward pass depends on, of a model or an adapter; its name, where the files are not here."""
    folder = folder_of(source)
    configs = [] if folder is None else [_plain(folder / name) for name in ("config.json", "adapter_config.json")]
    return [of_weights(source) or str(source), configs]


def of_words(source: str | Path) -> list[Any]:
    """Of a tokenizer and of the chat template in its files, wherever it stands there; its name, where they are not here."""
    if (folder := folder_of(source)) is None:
        return [of_weights(source) or str(source)]
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    return [_of(_found(folder, (*TOKENIZER, "*.jinja", "chat_template.json"))), config]


def folder_of(source: str | Path) -> Path | None:
    """The folder itself, or where the Hub's client keeps its copy; None for a file, and for what is not here yet."""
    if Path(source).is_dir():
        return Path(source)
    if Path(source).exists() or str(source).count("/") > 1:
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = [try_to_load_from_cache(str(source), name) for name in ("config.json", "adapter_config.json")]
    return next((Path(file).parent for file in cached if isinstance(file, str)), None)


def _whole(place: Path) -> bool:
    """Every file that an index names is there: a download may be under way."""
    indices = [read_json(index) for index in place.glob("*.index.json")] if place.is_dir() else []
    return all((place / name).is_file() for index in indices for name in set(index.get("weight_map", {}).values()))


def _found(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({f for pattern in patterns for f in folder.glob(pattern) if f.is_file()})


def _of(files: list[Path]) -> str:
    return digest([(f.name, digest(f.read_bytes())) for f in files])


def _plain(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.is_file() else {}
    return {k: v for k, v in content.items() if k not in NOISE} if isinstance(content, dict) else {"": content}
