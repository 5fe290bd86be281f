"""Memory of a forward and a backward pass, measured on tensors that have a shape but no storage (PyTorch's FakeTensorMode).

No formula for any architecture: the model's own code runs, with LoRA, checkpointing and autocast as the run will have them, and
every storage that is made and freed is counted. One layer of each kind runs, then two: the difference is what each layer adds.
"""

import contextlib
import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

P = ParamSpec("P")
T = TypeVar("T")

_FAKE = FakeTensorMode()  # one for all: tensors of two do not mix

# Of a forward pass, at most, and more for each token: a scan token by token (Jamba: 76) would take minutes to count.
OPERATIONS, PER_TOKEN = 10_000, 20


@dataclass(frozen=True)
class Weights:
    """Bytes and counts of a model's parameters, those of an adapter included."""

    frozen: int  # bytes
    trainable: int  # bytes
    count: int  # parameters, all
    trainable_count: int


@dataclass(frozen=True)
class Pass:
    """Bytes of one micro-batch's passes through the backbone, beyond weights and gradients."""

    saved: float  # alive when the forward pass ends
    backward: float  # on top of that at its worst, one layer's recomputation included
    no_grad: float  # at its worst, where nothing is kept
    cache: float  # what generation has cached when its rows are as long


def _once(measure: Callable[P, T]) -> Callable[P, T]:
    """The same arguments are asked once: what would help is looked for in many runs that differ in little."""
    known: dict[str, T] = {}

    @wraps(measure)
    def ask(*args: P.args, **kwargs: P.kwargs) -> T:
        question = repr((args, kwargs))
        if question not in known:
            known[question] = measure(*args, **kwargs)
        return known[question]

    return ask


def weigh(config: Any, dtype: torch.dtype, lora: Any = None, trusted: bool = False) -> Weights:
    model = _model(config, dtype, lora, trusted)
    weights = list(model.parameters())
    trained, frozen = [w for w in weights if w.requires_grad], [w for w in weights if not w.requires_grad]
    counts = (sum(w.numel() for w in kind) for kind in (weights, trained))
    return Weights(sum(w.nbytes for w in frozen), sum(w.nbytes for w in trained), *counts)


@_once
def measure_pass(
    config: Any, rows: int, length: int, dtype: torch.dtype, lora: Any = None,
    checkpointing: bool = False, autocast: bool = False, trusted: bool = False,
) -> Pass:  # fmt: skip
    """One micro-batch of (rows, length) tokens."""
    model = _model(config, dtype, lora, trusted)
    backbone, layers = _backbone(model.get_base_model() if lora is not None else model)
    width, kinds = config.get_text_config().hidden_size, dict[Any, list[int]]()
    for i, layer in enumerate(layers):
        kinds.setdefault(_kind(layer), []).append(i)
    with _FAKE:
        (model.gradient_checkpointing_enable if checkpointing else model.gradient_checkpointing_disable)()
        inputs = {
            "inputs_embeds": torch.empty(rows, length, width, dtype=dtype, requires_grad=True),
            "attention_mask": torch.ones(rows, length, dtype=torch.long),
        }

        def run(real: set[int]) -> Pass:
            with _only(layers, real):
                return _run(model, backbone, inputs, autocast, lora is not None)

        each = {alike[0] for alike in kinds.values()}
        first = run(each)
        more = [(len(alike) - 1, run({*each, alike[1]})) for alike in kinds.values() if len(alike) > 1]
    runs = [first, *(second for _, second in more)]
    return Pass(
        saved=first.saved + sum(n * max(0.0, second.saved - first.saved) for n, second in more),
        backward=max(p.backward for p in runs),
        no_grad=max(p.no_grad for p in runs),
        cache=first.cache + sum(n * (second.cache - first.cache) for n, second in more),
    )


# ---- kinds of layers -----------------------------------------------------------------------------------------------


def _backbone(model: Any) -> tuple[Any, torch.nn.ModuleList]:
    """The module that runs the decoder's layers, and they."""
    for module in model.get_decoder().modules():
        if lists := [child for child in module.children() if isinstance(child, torch.nn.ModuleList)]:
            return module, max(lists, key=len)
    raise TypeError(f"{type(model).__name__} has no list of layers")


def _kind(layer: torch.nn.Module) -> Any:
    """Equal for layers that run the same code on the same shapes; a layer's own number is no difference."""

    def matters(name: str, value: Any) -> bool:
        return value is None or isinstance(value, bool | str) or (isinstance(value, int) and "layer" not in name)

    return tuple(
        (
            name,
            type(module),
            frozenset((k, v) for k, v in vars(module).items() if matters(k, v)),
            frozenset((k, p.shape, p.requires_grad) for k, p in module._parameters.items() if p is not None),
        )
        for name, module in layer.named_modules()
    )


@contextlib.contextmanager
def _only(layers: torch.nn.ModuleList, real: set[int]) -> Any:
    """All but these layers hand on what they are given, in the form in which the first, a real one, returns it."""
    form: list[int | None] = []  # entries of the tuple, where it is one

    def note(module: Any, args: Any, out: Any) -> None:
        form[:] = [len(out) if isinstance(out, tuple) else None]

    def hand_on(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        (entries,) = form
        return hidden_states if entries is None else (hidden_states, *[None] * (entries - 1))

    hook = layers[0].register_forward_hook(note)
    others = [layer for i, layer in enumerate(layers) if i not in real]
    for layer in others:
        layer.forward = hand_on
    try:
        yield
    finally:
        hook.remove()
        for layer in others:
            del layer.forward


# ---- running on nothing --------------------------------------------------------------------------------------------


class _Live(TorchDispatchMode):
    """Counts the bytes of storages that are alive, and their peak."""

    def __init__(self, operations: float = float("inf")) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._left = operations
        self._alive: dict[int, weakref.ref] = {}

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def gone(_: Any) -> None:
            self.now -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._left -= 1
        if self._left < 0:
            raise TypeError("its layers run token by token, which takes too long to count")
        out = _called(func, args, kwargs or {})
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.see(leaf)
        return out


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    """Without storage PyTorch's grouped product, that of experts, knows bfloat16 alone; shapes are the same in any dtype."""
    if func is not torch.ops.aten._grouped_mm.default or args[0].dtype == torch.bfloat16:
        return func(*args, **kwargs)
    narrow = tree_map_only(torch.Tensor, lambda t: t.bfloat16() if t.is_floating_point() else t, (args, kwargs))
    return func(*narrow[0], **narrow[1]).to(args[0].dtype)


@_once
def _model(config: Any, dtype: torch.dtype, lora: Any, trusted: bool) -> Any:
    """On fake CPU tensors: autocast does not know the meta device, on which alone PEFT makes an adapter without storage."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype, trust_remote_code=trusted)
        if lora is not None:
            from peft import get_peft_model

            from sage_rlvr.train.casts import keep_inputs

            model = get_peft_model(model, copy.deepcopy(lora), low_cpu_mem_usage=True)
            keep_inputs(model)  # as the trainer does
    made: dict[Any, torch.Tensor | None] = {None: None}  # tied ones stay tied
    with _FAKE:
        for module in model.modules():
            for box in (module._parameters, module._buffers):
                for name, old in box.items():
                    if old not in made:
                        empty = torch.empty(old.shape, dtype=old.dtype)
                        is_weight = isinstance(old, torch.nn.Parameter)
                        made[old] = torch.nn.Parameter(empty, old.requires_grad) if is_weight else empty
                    box[name] = made[old]
    return model


def _run(model: Any, backbone: Any, inputs: dict[str, Any], autocast: bool, lora: bool) -> Pass:
    casting = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    model.eval()
    # accelerate's autocast wraps the outermost forward; under PEFT, generate calls the model inside it
    most = OPERATIONS + PER_TOKEN * inputs["inputs_embeds"].shape[1]
    with _Live(most), torch.no_grad(), contextlib.nullcontext() if lora else casting:
        cached = backbone(**inputs, use_cache=True).past_key_values
    held = [t for t in tree_leaves([vars(layer) for layer in cached.layers]) if isinstance(t, torch.Tensor)]
    model.train()
    with _counting(model) as live, casting, torch.no_grad():
        backbone(**inputs, use_cache=False)
    no_grad = live.peak
    with _counting(model) as live:
        with casting:
            hidden = backbone(**inputs, use_cache=False).last_hidden_state
        saved = live.now
        torch.autograd.grad(hidden, inputs["inputs_embeds"], torch.zeros_like(hidden))
    return Pass(saved, live.peak - saved, no_grad, sum(t.nbytes for t in held))


@contextlib.contextmanager
def _counting(model: Any) -> Any:
    """From zero: weights are not counted."""
    with _Live() as live:
        for tensor in [*model.parameters(), *model.buffers()]:
            live.see(tensor)
        live.now = live.peak = 0
        yield live
