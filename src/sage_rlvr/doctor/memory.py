"""Peak memory of a run: what is alive in each of its phases; the largest phase is the peak."""

from dataclasses import dataclass

from sage_rlvr.doctor.activations import Pass, Weights, measure_pass, weigh
from sage_rlvr.doctor.demand import Demand
from sage_rlvr.head import tiles

MIB = 2**20
RESIDENT = 600 * MIB  # Python, torch and TRL after a training step on a CPU (measured with the CPU constraints)
CUDA_CONTEXT = 500 * MIB  # driver, kernels and cuBLAS workspaces, outside PyTorch's allocator
HEAD_TOKENS, HEAD_COLUMNS = 4096, 32768  # the tile of logits that TRL's fused head holds at a time
CPU_TILES = 4  # its torch version keeps a few copies of the tile, the Triton kernel none
SAMPLING_COPIES = 4  # of a row's logits in float32: scaled, sorted and summed for top-p and min-p, softmax


@dataclass(frozen=True)
class Part:
    name: str
    bytes: float
    about: str = ""


@dataclass(frozen=True)
class Memory:
    """Phase → what is alive in it."""

    phases: dict[str, list[Part]]
    weights: Weights

    @property
    def peak(self) -> float:
        return max(total(parts) for parts in self.phases.values())

    @property
    def worst(self) -> str:
        return max(self.phases, key=lambda name: total(self.phases[name]))


def total(parts: list[Part]) -> float:
    return sum(p.bytes for p in parts)


def memory_of(demand: Demand, cuda: bool, gpu_memory: float = 0.0) -> Memory:
    """``gpu_memory`` is what vLLM's share is a share of."""
    checkpointing, trusted = demand.args.gradient_checkpointing, demand.args.trust_remote_code
    weights = weigh(demand.config, demand.dtype, demand.lora, trusted)
    passes = measure_pass(
        demand.config, demand.micro_batch, demand.length, demand.dtype, demand.lora, checkpointing, demand.autocast, trusted,
    )  # fmt: skip
    always = _always(demand, weights, cuda)
    vllm = [_vllm(demand, weights, gpu_memory)] if demand.vllm else []
    awake = [] if demand.args.vllm_enable_sleep_mode else vllm
    gradients = Part("gradients", weights.trainable, _count(weights.trainable_count))
    about = f"{demand.micro_batch} × {demand.length} tokens" + (", checkpointed" if checkpointing else "")
    activations = Part("activations", passes.saved, about)
    head = Part("log-prob head", head_bytes(demand, cuda, backward=True), "a tile of logits at a time")
    layer = Part("one layer, backward", passes.backward)
    first = [gradients] if demand.accumulation > 1 else []
    phases = {
        "backward pass, at its start": [*always, *awake, *first, activations, _larger(head, layer)],
        "backward pass, at its end": [*always, *awake, gradients, layer],
        "optimizer step": [*always, *awake, gradients, *_optimizer_copies(demand, weights, cuda)],
        "reference and scoring passes": [*always, *awake, _larger(Part("one layer, forward", passes.no_grad),
                                         Part("log-prob head", head_bytes(demand, cuda, backward=False)))],
        "generation": [*always, *(vllm or generation(demand, passes))],
    }  # fmt: skip
    return Memory({name: [p for p in parts if p.bytes] for name, parts in phases.items()}, weights)


def _vllm(demand: Demand, weights: Weights, gpu_memory: float) -> Part:
    if demand.vllm_cache is None:
        return Part("vLLM", demand.vllm * gpu_memory, f"{demand.vllm:.0%} of the GPU")  # type: ignore[operator]
    own = weights.count * demand.dtype.itemsize
    return Part("vLLM", own + demand.vllm_cache, f"its weights and {demand.vllm_cache / 2**30:g} GiB of KV cache")


def _always(demand: Demand, weights: Weights, cuda: bool) -> list[Part]:
    """From the second step on."""
    dtype = str(demand.dtype).removeprefix("torch.")
    plain = weights.frozen if demand.lora is not None else weights.trainable
    packed = plain if demand.quantised is None else weights.count * demand.quantised
    base = Part("CUDA context", CUDA_CONTEXT) if cuda else Part("Python, torch, TRL", RESIDENT)
    loaded = weights.count - (weights.trainable_count if demand.lora is not None else 0)
    parts = [base, Part("weights", packed, f"{_count(loaded)} in {dtype}")]
    if demand.lora is not None:
        copies = 2 if demand.adapter_copy else 1
        parts.append(Part("LoRA adapter", weights.trainable * copies, _count(weights.trainable_count)))
    elif demand.reference:
        parts.append(Part("reference model", plain, "a full copy: every weight is trained and β is not 0"))
    parts.append(Part("optimizer", optimizer_bytes(demand, weights), demand.optim))
    return parts


def optimizer_bytes(demand: Demand, weights: Weights) -> float:
    if "8bit" in demand.optim:
        return weights.trainable_count * 4 * demand.state_share
    return weights.trainable * demand.state_share


def _optimizer_copies(demand: Demand, weights: Weights, cuda: bool) -> list[Part]:
    """adamw_torch updates all weights at once on a GPU, over temporaries of their size; the fused one does not."""
    grouped = cuda and demand.optim in ("adamw_torch", "sgd", "rmsprop", "adagrad")
    return [Part("optimizer's temporaries", weights.trainable)] if grouped else []


def head_bytes(demand: Demand, cuda: bool, backward: bool) -> float:
    """Of the log-prob head on one micro-batch; the GPU's scores completions only."""
    text, ours = demand.config.get_text_config(), cuda if demand.fused_head is None else demand.fused_head
    tokens = demand.micro_batch * (demand.completion if cuda else demand.length - 1)
    size = 2 if demand.autocast else demand.dtype.itemsize
    learns = demand.dtype.itemsize if demand.lora is None else None
    if ours:
        return _our_head(tokens, text.vocab_size, text.hidden_size, size, learns, backward)
    return _their_head(tokens, text.vocab_size, text.hidden_size, size, learns, backward, cuda)


def _our_head(n: int, vocab: int, width: int, size: int, learns: int | None, backward: bool) -> float:
    """By ``head/tiles.py``: a tile, and with gradients a float32 vector per token; the exponentials where the head learns, and
    the gradient of its weight, of ``learns`` bytes each."""
    if not backward:
        cut = tiles.reading_tiles(n, vocab)
        return cut.tokens * cut.vocab * 4
    cut = tiles.frozen_tiles(n, vocab, width, size, tiles.MULTIPROCESSORS)
    if learns is None:
        return cut.tokens * cut.vocab * (4 + size) + n * width * 4
    plane, weight = n * vocab * size, vocab * width * learns
    if plane <= tiles.KEPT:
        return plane + cut.tokens * cut.vocab * 4 + n * width * (4 + size) + weight
    square = tiles.square_tiles(n, vocab)
    return square.tokens * square.vocab * (4 + size) + (n + square.vocab) * width * 4 + weight


def _their_head(n: int, vocab: int, width: int, size: int, learns: int | None, backward: bool, cuda: bool) -> float:
    """TRL projects 4,096 positions on 32,768 tokens at a time and recomputes the tile in the backward pass."""
    rows, columns = min(n, HEAD_TOKENS), min(vocab, HEAD_COLUMNS)
    tile = rows * HEAD_COLUMNS * size if cuda else rows * columns * 4 * CPU_TILES  # untouched pages cost a CPU nothing
    hidden = n * width * (4 + size) if backward else 0  # its gradient is summed in float32
    weight = vocab * width * 4 if backward and learns is not None else 0
    return tile + columns * width * size + hidden + weight


def generation(demand: Demand, passes: Pass) -> list[Part]:
    """Transformers' generate: a cache that grows to its full length, the prompts' own pass, and the logits of one token."""
    prompts = passes.no_grad * demand.rollout_rows * demand.prompt / (demand.micro_batch * demand.length)
    logits = demand.rollout_rows * demand.config.get_text_config().vocab_size * 4 * (1 + SAMPLING_COPIES)
    cache = passes.cache * demand.rollout_rows / demand.micro_batch
    return [Part("KV cache", cache, f"{demand.rollout_rows} rows of {demand.length} tokens"),
            Part("prompts or logits", max(prompts, logits))]  # fmt: skip


def _larger(*parts: Part) -> Part:
    return max(parts, key=lambda p: p.bytes)


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"
