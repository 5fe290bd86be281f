"""What a training pass keeps, counted by running one layer and two on tensors that have a shape but no storage.

No formula for any architecture: the model's own code runs, with LoRA, checkpointing and autocast as the run will have them,
under PyTorch's FakeTensorMode, and every storage that is born and dies is counted. Layers are alike, so two counts give all.
"""

import contextlib
import copy
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Weights:
    """Bytes and counts of a model's parameters, those of an adapter included."""

    frozen: int  # bytes
    trainable: int  # bytes
    count: int  # parameters, all
    trainable_count: int


@dataclass(frozen=True)
class Pass:
    """Bytes of one forward and backward pass through the backbone, beyond weights and gradients."""

    saved: float  # alive when the forward pass ends
    backward: float  # on top of that at its worst, one layer's recomputation included
    no_grad: float  # at its worst, where nothing is kept


def weigh(config: Any, dtype: torch.dtype, lora: Any = None, trusted: bool = False) -> Weights:
    model = _model(config, dtype, lora, trusted)
    sizes = [(p.numel(), p.numel() * p.element_size(), p.requires_grad) for p in model.parameters()]
    return Weights(
        frozen=sum(b for _, b, trains in sizes if not trains),
        trainable=sum(b for _, b, trains in sizes if trains),
        count=sum(n for n, _, _ in sizes),
        trainable_count=sum(n for n, _, trains in sizes if trains),
    )


def measure_pass(
    config: Any,
    rows: int,
    length: int,
    dtype: torch.dtype,
    lora: Any = None,
    checkpointing: bool = False,
    autocast: bool = False,
    trusted: bool = False,
) -> Pass:
    """One micro-batch of (rows, length) tokens."""
    args = (rows, length, dtype, lora, checkpointing, autocast, trusted)
    one, two = (_run(shortened(config, n), *args) for n in (1, 2))
    layers = layers_of(config)
    a_layer = max(0.0, two.saved - one.saved)
    return Pass(one.saved + (layers - 1) * a_layer, max(one.backward, two.backward), max(one.no_grad, two.no_grad))


def layers_of(config: Any) -> int:
    return config.get_text_config().num_hidden_layers


def shortened(config: Any, layers: int) -> Any:
    config = copy.deepcopy(config)
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    return config


# ---- running on nothing --------------------------------------------------------------------------------------------


class _Live(TorchDispatchMode):
    """Counts the bytes of storages that are alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
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
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.see(leaf)
        return out


def _model(config: Any, dtype: torch.dtype, lora: Any, trusted: bool) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype, trust_remote_code=trusted)
        if lora is not None:
            from peft import get_peft_model

            from sage_rlvr.train.casts import keep_inputs

            model = get_peft_model(model, copy.deepcopy(lora), low_cpu_mem_usage=True)
            keep_inputs(model)  # as the trainer does
    return model


def _fake(model: Any) -> None:
    """Meta tensors become fake CPU ones, tied ones still tied: autocast does not know the meta device."""
    made: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        for box in (module._parameters, module._buffers):
            for name, old in box.items():
                if old is None:
                    continue
                if old not in made:
                    empty = torch.empty(old.shape, dtype=old.dtype)
                    is_weight = isinstance(old, torch.nn.Parameter)
                    made[old] = torch.nn.Parameter(empty, old.requires_grad) if is_weight else empty
                box[name] = made[old]


def _run(
    config: Any,
    rows: int,
    length: int,
    dtype: torch.dtype,
    lora: Any,
    checkpointing: bool,
    autocast: bool,
    trusted: bool,
) -> Pass:
    model = _model(config, dtype, lora, trusted)
    with FakeTensorMode():
        _fake(model)
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train()
        backbone = (model.get_base_model() if lora is not None else model).base_model
        width = config.get_text_config().hidden_size
        embedded = torch.empty(rows, length, width, dtype=dtype, requires_grad=True)
        mask = torch.ones(rows, length, dtype=torch.long)
        inputs: dict[str, Any] = {"inputs_embeds": embedded, "attention_mask": mask, "use_cache": False}
        casting = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
        with _counting(model) as live, casting, torch.no_grad():
            backbone(**inputs)
        no_grad = live.peak
        with _counting(model) as live:
            with casting:
                hidden = backbone(**inputs).last_hidden_state
            saved = live.now
            torch.autograd.grad(hidden, embedded, torch.zeros_like(hidden))
        return Pass(saved, live.peak - saved, no_grad)


@contextlib.contextmanager
def _counting(model: Any) -> Any:
    """From zero: weights are not counted."""
    with _Live() as live:
        for tensor in [*model.parameters(), *model.buffers()]:
            live.see(tensor)
        live.now = live.peak = 0
        yield live
