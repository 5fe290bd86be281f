"""LoRA under autocast without a round trip of its inputs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn


def keep_inputs(model: nn.Module) -> None:
    """PEFT casts each layer's input to the adapter's float32, and autocast casts it back for the product, a copy that waits for
    the backward, one for each layer where q, k and v, gate and up could share theirs. Under autocast the input now stays as
    it is: the same bits, fewer bytes moved and held. Not with dropout, whose draws may depend on the dtype."""
    for layer in model.modules():
        if isinstance(layer, LoraLayer) and all(isinstance(d, nn.Identity) for d in layer.lora_dropout.values()):
            layer._cast_input_dtype = partial(_cast, layer._cast_input_dtype)


def _cast(theirs: Callable[..., Any], x: Tensor | None, dtype: torch.dtype) -> Any:
    return x if x is not None and x.dtype == _autocast(x.device.type) else theirs(x, dtype)


def _autocast(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
