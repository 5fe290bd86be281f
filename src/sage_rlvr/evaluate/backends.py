"""Which backend draws the samples, and what is checked before it starts."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.sampling import Ask, Backend, Sampling
from sage_rlvr.files import read_json
from sage_rlvr.models import base_of, check_vocabulary, gguf_folder, is_adapter, load_model, load_tokenizer
from sage_rlvr.models.fingerprints import digest, of_files, of_weights
from sage_rlvr.models.loading import resolved
from sage_rlvr.store.settings import INPUTS, WEIGHTS
from sage_rlvr.tasks import PromptFormat

BACKENDS = ("auto", "vllm", "transformers")


def choose(backend: str) -> str:
    """ "vllm" or "transformers"; ``auto`` takes vLLM where it is installed and there is a GPU for it."""
    import torch

    if backend not in BACKENDS:
        raise UserError(f"backend={backend!r} is not one of {', '.join(BACKENDS)}.")
    installed, gpu = find_spec("vllm") is not None, torch.cuda.is_available()
    if backend == "auto":
        return "vllm" if installed and gpu else "transformers"
    if backend == "vllm" and not installed:
        raise UserError(
            "backend 'vllm' is not installed: pip install 'sage-rlvr[vllm]', or use --backend transformers."
        )
    if backend == "vllm" and not gpu and not _built_for_cpu():
        raise UserError(
            "backend 'vllm' needs a GPU and none is visible: use --backend transformers, check the driver, or install "
            "vLLM's CPU build."
        )
    return backend


def _built_for_cpu() -> bool:
    """vLLM's own word on it: its CPU build runs where it is asked for, and is never chosen for anybody."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def sources(model: str, adapter: str | None) -> tuple[str, str | None]:
    """(base model, adapter or None), resolved; ``model`` may itself be an adapter's folder or a GGUF file."""
    base = resolved(model)
    if is_adapter(base):
        if adapter is not None:
            raise UserError(f"{model} is itself an adapter: give its base as --model beside --adapter {adapter}.")
        return base_of(base), base
    if adapter is None:
        return base, None
    found = resolved(adapter)
    if Path(found).is_dir() and not is_adapter(found):
        raise UserError(f"{adapter} is no adapter: it has no adapter_config.json; give a folder saved by PEFT.")
    return base, found


def fingerprints(base: str, adapter: str | None, tokenizer: Any, fmt: PromptFormat) -> dict[str, Any]:
    """Fields of the store's settings: what the files of the weights look like, and all else that decides a sample. What is on
    the Hub has as many of them as lie in its cache."""
    named = {"model": base, "adapter": adapter}
    weights = {WEIGHTS[name]: said for name, source in named.items() if source and (said := of_weights(source))}
    told = {"chat template": digest(tokenizer.chat_template), "prompt format": digest(fmt.told())}
    return weights | {INPUTS: of_files(base, adapter, tokenizer_place(base, adapter)) | told}


def tokenizer_place(base: str, adapter: str | None) -> str:
    """The adapter's tokenizer where it was saved with one (it may carry a chat template), else the base's."""
    own = adapter is not None and any(Path(adapter, f).is_file() for f in ("tokenizer.json", "tokenizer.model"))
    return adapter if own and adapter else base


def tokenizer_of(base: str, adapter: str | None, trust_remote_code: bool) -> Any:
    return load_tokenizer(tokenizer_place(base, adapter), trust_remote_code=trust_remote_code)


def check_context(base: str, asks: list[Ask], max_tokens: int) -> int:
    """Tokens of the longest prompt; refuses what the model's positions do not reach."""
    longest = max(asks, key=lambda a: len(a.prompt))
    length, config = len(longest.prompt), Path(base, "config.json")
    said = read_json(config) if config.is_file() else {}  # on the Hub or GGUF: the backend's own check
    room = (said.get("text_config") or said).get("max_position_embeddings")
    if room and length + max_tokens > room:
        mend = f"set --max_tokens to {room - length} or less" if length < room else "take a model with a longer one"
        raise UserError(
            f"the longest prompt ({longest.problem} of {longest.task}, {length:,} tokens) and max_tokens={max_tokens:,} exceed "
            f"the model's context of {room:,}: {mend}."
        )
    return length


class Engines:
    """Holds the latest backend: evaluations one after the other of adapters on one base share an engine, whose start takes
    about a minute. To be closed."""

    def __init__(self) -> None:
        self.latest: Backend | None = None

    def take(self) -> Backend | None:
        """The latest backend, for ``make_backend`` to use or to close."""
        latest, self.latest = self.latest, None
        return latest

    def close(self) -> None:
        if latest := self.take():
            latest.close()


def make_backend(
    kind: str, base: str, adapter: str | None, tokenizer: Any, how: Sampling, longest: int, latest: Backend | None = None,
    **engine: Any,
) -> Backend:  # fmt: skip
    """Loads the model. ``engine``: settings of EvalArguments; each backend reads its own. ``latest``: a backend to use if
    it will do, and to close if not."""
    make = _vllm if kind == "vllm" else _transformers
    return make(base, adapter, tokenizer, how, longest, latest, **engine)


def _transformers(
    base: str, adapter: str | None, tokenizer: Any, how: Sampling, longest: int, latest: Backend | None,
    batch_size: int | None = None, dtype: str = "auto", trust_remote_code: bool = False, **_: Any,
) -> Backend:  # fmt: skip
    import torch

    from sage_rlvr.evaluate.transformers_backend import TransformersBackend

    if latest is not None:
        latest.close()
    cuda = torch.cuda.is_available()
    precision = ("auto" if cuda else "float32") if dtype == "auto" else dtype
    model = load_model(base, adapter, dtype=precision, trust_remote_code=trust_remote_code)
    check_vocabulary(model, tokenizer)
    model = model.to("cuda") if cuda else model
    return TransformersBackend(model, tokenizer, how, batch_size or (128 if cuda else 64), longest)


def _vllm(
    base: str, adapter: str | None, tokenizer: Any, how: Sampling, longest: int, latest: Backend | None, dtype: str = "auto",
    gpu_memory_utilization: float = 0.9, trust_remote_code: bool = False, kv_cache_gib: float | None = None,
    engines_per_gpu: int = 1, **_: Any,
) -> Backend:  # fmt: skip
    from peft import PeftConfig
    from transformers import GenerationConfig

    from sage_rlvr.evaluate.transformers_backend import eos_ids
    from sage_rlvr.evaluate.vllm_backend import CACHE, EngineSettings, VllmBackend, check_files, visible_gpus

    folder = str(gguf_folder(base, None if dtype == "auto" else dtype)) if base.endswith(".gguf") else base
    check_files(folder, adapter, trust_remote_code)
    try:
        own: Any = GenerationConfig.from_pretrained(folder)
    except OSError:  # a model need not have one
        own = None
    rank = PeftConfig.from_pretrained(adapter).r if adapter else 0
    settings = EngineSettings(
        model=folder,
        how=how,
        eos=tuple(eos_ids(own, tokenizer)),
        context=longest + how.max_tokens,
        adapter=adapter,
        adapter_rank=rank,
        dtype=dtype,
        gpu_memory_utilization=gpu_memory_utilization / engines_per_gpu,
        trust_remote_code=trust_remote_code,
        more=((CACHE, int(kv_cache_gib * 2**30)),) if kv_cache_gib else (),
    )
    gpus = [gpu for gpu in visible_gpus() or ["cpu"] for _ in range(engines_per_gpu)]
    if latest is not None:
        if isinstance(latest, VllmBackend) and latest.takes(settings, gpus):
            return latest
        latest.close()
    return VllmBackend(settings, gpus)
