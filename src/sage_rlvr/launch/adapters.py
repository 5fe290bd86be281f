"""The LoRA adapter of a run as its flags say; a name that is no layer of the model gets one sentence."""

import re
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D
from trl import ModelConfig, get_peft_config

from sage_rlvr.errors import UserError
from sage_rlvr.names import closest

LAYERS = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, Conv1D)  # what PEFT can adapt


def lora(model: Any, model_args: ModelConfig) -> Any:
    """PEFT's config, None without use_peft. TRL makes a single target a pattern for whole paths; a plain name is a name."""
    if not model_args.use_peft:
        return None
    targets: Any = model_args.lora_target_modules
    if isinstance(targets, str) and re.fullmatch(r"[\w.-]+", targets) and targets != "all-linear":
        model_args.lora_target_modules = targets = [targets]
    if targets and targets != "all-linear":
        _check_targets(model, targets)
    try:
        return get_peft_config(model_args)
    except ValueError as e:  # what PEFT refuses is a value that somebody wrote
        raise UserError(f"lora: {' '.join(str(e).split())}") from e


def _check_targets(model: Any, targets: str | list[str]) -> None:
    layers = [name for name, m in model.named_modules() if isinstance(m, LAYERS) or "Linear" in type(m).__name__]
    if isinstance(targets, str):  # a pattern of whole paths
        patterns = {targets: targets}
    else:
        patterns = {name: rf"(.*\.)?{re.escape(name)}" for name in targets}
    try:
        wrong = [target for target, p in patterns.items() if not any(re.fullmatch(p, name) for name in layers)]
    except re.error as e:
        raise UserError(
            f"lora_target_modules={targets!r} is no regular expression ({e}): write names, or fix it."
        ) from e
    if wrong:
        names = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
        near = closest(wrong[0], names)
        raise UserError(
            f"lora_target_modules={wrong[0]!r} is no layer of this model that LoRA can adapt: it has "
            f"{', '.join([*near, *(n for n in names if n not in near)])}."
        )
