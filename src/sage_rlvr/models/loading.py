"""Loading: a causal LM from the Hub, a folder, a PEFT adapter or a GGUF file, and its tokenizer.

Code that comes with a model is never run unless asked, and what cannot be loaded is said in one sentence.
"""

import contextlib
import os
import re
import socket
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sage_rlvr.errors import UserError, causes, short
from sage_rlvr.files import read_json
from sage_rlvr.models.gguf import gguf_folder, gguf_tokenizer, is_gguf

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
_TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken", "tekken.json",
)  # fmt: skip
DEMO_BASE = "demo-base"  # ships with the package: a few hundred thousand weights, for a first run on a CPU
_PADS = ("<|pad|>", "<pad>", "[PAD]", "<|endoftext|>", "<|finetune_right_pad_id|>")


def load_model(
    name_or_path: str | Path,
    adapter: str | Path | None = None,
    dtype: Any = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
    revision: str | None = None,
    trainable_adapter: bool = False,
    **kw: Any,
) -> Any:
    """A causal LM. ``name_or_path`` is a Hub id, a folder of weights, a folder of a PEFT adapter, or a .gguf file.

    An adapter, by itself or named by ``adapter``, gives a PeftModel whose adapter is called "default", frozen unless
    ``trainable_adapter``. ``dtype`` is the stored one unless said (a GGUF file: bfloat16). ``revision`` is the model's.
    """
    source = resolved(name_or_path)
    if is_adapter(source):
        if adapter is not None:
            raise UserError(
                f"{name_or_path} is itself an adapter: give its base model beside adapter={str(adapter)!r}."
            )
        source, adapter = base_of(source), source
        if is_adapter(source):
            raise UserError(f"{adapter}: its base {source} is an adapter too; merge that one first (sage-rlvr merge).")
    if is_gguf(source):
        source = str(gguf_folder(source, dtype))
    kw |= {"dtype": dtype or "auto", "trust_remote_code": bool(trust_remote_code), "revision": revision}
    if attn_implementation:
        kw["attn_implementation"] = attn_implementation
    model = _load(source, kw)
    return model if adapter is None else _with_adapter(model, source, resolved(adapter), trainable_adapter)


def load_tokenizer(
    name_or_path: str | Path,
    chat_template: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> Any:
    """The tokenizer of anything load_model takes; ``chat_template`` is set only if it has none (a base model).

    It always has a pad token: its own, else one its vocabulary has for that, else EOS.
    """
    source = resolved(name_or_path)
    if is_adapter(source) and not _has(source, _TOKENIZERS):
        source = base_of(source)
    tokenizer = gguf_tokenizer(source) if is_gguf(source) else _tokenizer(source, bool(trust_remote_code), revision)
    if tokenizer.pad_token is None:
        vocabulary = tokenizer.get_vocab()
        pad = next((token for token in _PADS if token in vocabulary), tokenizer.eos_token)
        if pad is None:
            raise UserError(f"the tokenizer of {name_or_path} has neither a pad nor an EOS token: set one and save it.")
        tokenizer.pad_token = pad
    if chat_template and not tokenizer.chat_template:
        tokenizer.chat_template = chat_template
    return tokenizer


def resolved(name_or_path: str | Path) -> str:
    """A path made absolute, so that an adapter saved from it finds its base from anywhere; a Hub id as it is."""
    path = Path(name_or_path).expanduser()
    if path.exists():
        return str(path.resolve())
    name = str(name_or_path)
    if name == DEMO_BASE:
        return str(files("sage_rlvr").joinpath("studies", name))
    if path.suffix == ".gguf" or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name):
        raise UserError(f"there is no file or folder {name}, and it is no Hub id (owner/name): check the path.")
    return name


def is_adapter(source: str | Path) -> bool:
    return Path(source, "adapter_config.json").is_file()


def base_of(adapter: str | Path) -> str:
    """The base model an adapter folder names."""
    base = _json(Path(adapter, "adapter_config.json")).get("base_model_name_or_path")
    if not base:
        raise UserError(f"{adapter}: its adapter_config.json names no base model; give the base and adapter={adapter}.")
    try:
        return resolved(base)
    except UserError as e:
        raise UserError(f"{adapter}: its base model {base} is not there; give the base and adapter={adapter}.") from e


# ---- weights -----------------------------------------------------------------------------------------------------


def _load(source: str, kw: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    if Path(source).is_dir():
        check_folder(Path(source), kw["trust_remote_code"])
    elif not hub_in_reach():
        kw |= {"local_files_only": True, "adapter_kwargs": {"local_files_only": True}}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **kw)
    except Exception as e:  # the libraries below fail in many types
        raise _explained(source, e) from e
    if missing := sorted(info["missing_keys"]):  # they hold noise now, and the library only warns
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{source} has no weights for {missing[0]}{more}: it is not whole, so make it again.")
    try:
        model.generation_config.validate(strict=True)
    except ValueError:  # a temperature without do_sample, as older models have: every save would fail
        model.generation_config.do_sample = True
    return model


def check_folder(folder: Path, trusted: bool) -> None:
    from transformers import CONFIG_MAPPING

    if not (folder / "config.json").is_file():
        inside = sorted(folder.glob("checkpoint-*"), key=lambda p: p.stat().st_mtime)
        fix = f"did you mean {inside[-1]}?" if inside else "give a folder saved with save_pretrained."
        raise UserError(f"{folder} is no model: it has no config.json; {fix}")
    config = _json(folder / "config.json")
    if not trusted and "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING:
        raise _ships_code(str(folder))
    if not _has(folder, _WEIGHTS):
        raise UserError(
            f"{folder} has a config.json but no weights (model.safetensors): the save or the download was interrupted, "
            f"so make it again."
        )


def _ships_code(source: str) -> UserError:
    return UserError(
        f"{source} ships its own Python code (auto_map in its config), which is not run: read it, then pass "
        f"trust_remote_code=True."
    )


def _explained(source: str, e: Exception) -> UserError | Exception:
    """The library's error as one sentence; one that nobody can fix is handed back as it is."""
    from huggingface_hub import errors as hub

    def led_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes(e))

    text, bad = str(e), (OSError, ValueError, KeyError, hub.StrictDataclassError)
    if isinstance(e, ValueError) and "trust_remote_code" in text:
        return _ships_code(source)
    if led_by(hub.GatedRepoError) or "gated repo" in text:
        return UserError(f"{source} is gated on the Hub: accept its terms there and run 'hf auth login'.")
    if led_by(hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled):
        if Path(source).parent.is_dir() and Path(source).parent != Path():
            return UserError(
                f"there is no model {source} in {Path(source).parent}, and the Hub is out of reach: check the name."
            )
        return UserError(
            f"{source} is not in the local cache and the Hub is out of reach: go online (unset HF_HUB_OFFLINE), or give "
            f"the folder of a copy."
        )
    if led_by(hub.RepositoryNotFoundError, hub.RevisionNotFoundError):
        return UserError(f"the Hub has no model {source} that you may read: check its name and revision.")
    if isinstance(e, RuntimeError) and "ignore_mismatched_sizes" in text:
        return UserError(f"{source}: its weights have other shapes than its config.json says; make it again.")
    if isinstance(e, RecursionError) and "JSON" in text:
        return UserError(f"{source}: one of its JSON files is nested too deep to be read; make it again.")
    if isinstance(e, AssertionError) and "Padding_idx" in text:
        return UserError(
            f"{source}: pad_token_id in its config.json lies beyond its vocabulary; set it to a token it has."
        )
    if isinstance(e, bad) or type(e).__name__ == "SafetensorError":
        return UserError(f"{source} could not be loaded ({short(e)}): check that it is a whole causal LM.")
    return e


def check_vocabulary(model: Any, tokenizer: Any) -> None:
    """The tokens that a batch is made with have a row in the embedding: an id beyond it is an IndexError in the first step,
    and on a GPU the end of the process."""
    embedding = model.get_input_embeddings()
    rows = getattr(embedding, "num_embeddings", None) or embedding.weight.shape[0]
    for kind in ("pad", "eos", "bos"):
        number = getattr(tokenizer, f"{kind}_token_id", None)
        if number is not None and number >= rows:
            raise UserError(
                f"the {kind} token of {tokenizer.name_or_path or 'the tokenizer'} has id {number} and the model's embedding has "
                f"{rows} rows: choose a {kind} token that the model has (tokenizer_config.json), or resize the embedding."
            )


# ---- adapters ----------------------------------------------------------------------------------------------------


def _with_adapter(model: Any, base: str, adapter: str, trainable: bool) -> Any:
    from peft import PeftModel, get_peft_model_state_dict

    if Path(adapter).is_dir():
        if not is_adapter(adapter):
            raise UserError(f"{adapter} is no adapter: it has no adapter_config.json; give a folder saved by PEFT.")
        if not _has(adapter, ("adapter_model.safetensors", "adapter_model.bin")):
            raise UserError(f"{adapter} has no adapter_model.safetensors: its save was interrupted, so make it again.")
        check_shapes(model, base, Path(adapter))
    try:
        peft_model = PeftModel.from_pretrained(model, adapter, adapter_name="default", is_trainable=trainable)
    except (ValueError, RuntimeError, OSError) as e:
        if not Path(adapter).is_dir() and isinstance(e, OSError | ValueError):
            raise _explained(adapter, e) from e
        raise UserError(f"adapter {adapter} does not fit {base} ({short(e)}): {_OTHER_BASE}") from e
    # PEFT only warns of a layer the adapter has nothing for
    want = {k for k in get_peft_model_state_dict(peft_model, save_embedding_layers=False) if ".lora_" in k}
    saved = _saved_shapes(Path(adapter))
    if saved and (missing := sorted(want - saved.keys())):
        raise UserError(f"adapter {adapter} does not fit {base}: it has nothing for {missing[0]}; {_OTHER_BASE}")
    return peft_model


_OTHER_BASE = "give the base model it was trained on."


def check_shapes(model: Any, base: str, adapter: Path) -> None:
    """Each LoRA pair against the layer it is for: A is (r, in), B is (out, r)."""
    modules = dict(model.named_modules())
    for key, shape in _saved_shapes(adapter).items():
        match = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", key)
        if not match:
            continue
        layer, side = match.groups()
        if layer not in modules:
            raise UserError(f"adapter {adapter} does not fit {base}: that model has no layer {layer}; {_OTHER_BASE}")
        weight = getattr(modules[layer], "weight", None)
        if weight is None or weight.ndim != 2 or not hasattr(modules[layer], "in_features"):
            continue  # embeddings and convolutions: PEFT's own check
        has, wants = (shape[1], modules[layer].in_features) if side == "A" else (shape[0], modules[layer].out_features)
        if has != wants:
            raise UserError(
                f"adapter {adapter} does not fit {base}: {layer} is {wants} wide there and {has} in the adapter; {_OTHER_BASE}"
            )


def _saved_shapes(adapter: Path) -> dict[str, list[int]]:
    """Names and shapes in an adapter's safetensors file; empty where there is none to read."""
    from safetensors import SafetensorError, safe_open

    file = adapter / "adapter_model.safetensors"
    if not file.is_file():
        return {}
    try:
        with safe_open(file, framework="pt") as saved:
            return {key: saved.get_slice(key).get_shape() for key in saved.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as e:
        raise UserError(f"{file} cannot be read ({short(e)}): its save was interrupted, so make it again.") from e


# ---- tokenizers, and what the above share ------------------------------------------------------------------------


def _tokenizer(source: str, trusted: bool, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    offline = {}
    if Path(source).is_dir():
        if not _has(source, _TOKENIZERS):  # transformers would make an empty one from config.json
            raise UserError(f"{source} has no tokenizer (tokenizer.json): save it there with the model's.")
        config = Path(source, "tokenizer_config.json")
        if not trusted and config.is_file() and "auto_map" in _json(config):
            raise _ships_code(source)
    elif not hub_in_reach():
        offline = {"local_files_only": True}
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=trusted, revision=revision, **offline)
    except Exception as e:
        raise _explained(source, e) from e


def _has(folder: str | Path, patterns: tuple[str, ...]) -> bool:
    return any(next(Path(folder).glob(pattern), None) for pattern in patterns)


def _json(path: Path) -> dict[str, Any]:
    content = read_json(path, "its save was interrupted, so make it again")
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not an object: make it again.")
    return content


# ---- the Hub -----------------------------------------------------------------------------------------------------


def hub_offline() -> str | None:
    """The variable that says so, if one does."""
    flags = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((f for f in flags if os.environ.get(f, "").lower() in ("1", "true", "yes", "on")), None)


def hub_proxy() -> bool:
    return any(os.environ.get(p) for p in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))


def hub_endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def hub_in_reach(seconds: float = 10.0) -> bool:
    """False if it takes no connection: the client would go on trying for a minute. A proxy is not tried, and believed.

    In a thread, because a resolver may take longer than any timeout that can be given to it.
    """
    if hub_offline() or hub_proxy():
        return not hub_offline()
    host, answers = urlsplit(hub_endpoint()), []

    def knock() -> None:
        with contextlib.suppress(OSError, ValueError):
            socket.create_connection((host.hostname or "", host.port or 443), timeout=seconds).close()
            answers.append(True)

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers)
