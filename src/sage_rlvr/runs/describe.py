"""What a run is, in a few lines: printed at its start (anchor, loss, reference, model, data, steps, folder), and in the card of
the model that it leaves."""

import logging
import textwrap
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from torch import nn
from transformers import TrainerCallback

WIDTH = 80
GROUP = {"group": "group (r − mean)/std", "batch": "group (r − mean)/std of the batch", "none": "group r − mean"}
GRADIENT = {
    "k3": "k3 in the loss, as published: a forward-KL pull toward the anchor, prefix by prefix",
    "k2": "k2 in the loss: a reverse-KL pull, token by token",
    "k3+": "k3+ in the loss (bias-corrected): a reverse-KL pull, token by token",
    "forward": "forward-KL surrogate in the loss, the gradient of k3",
    "forward-value": "autodiff of the forward-KL value in the loss: the gradient of neither KL",
    "k1-reward": "k1 in the reward, as derived",
}


class Banner(TrainerCallback):
    """Printed by the first process when training starts. Silent where warnings are: TRANSFORMERS_VERBOSITY=error, or
    ``log_level="error"``."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and args.get_process_log_level() <= logging.WARNING:
            print(*lines(self.trainer), sep="\n", flush=True)


def lines(trainer: Any) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False)
    parts = about(trainer) | {"output": trainer.args.output_dir}
    if done := trainer.state.global_step:
        parts["steps"] += f"; goes on after step {done}"
    return [line for name, text in parts.items() for line in wrapper.wrap(f"{name + ':':<11}{text}")]


def card(trainer: Any) -> str:
    """A section of the model card."""
    args, parts = trainer.args, about(trainer)
    parts["estimator"] = GRADIENT[args.anchor_estimator]
    if args.anchor_estimator == "k1-reward":
        departures = args.departures()
        parts["exact gradient of the objective"] = "no, " + "; ".join(departures) if departures else "yes"
    if args.keep_from is not None:
        how = {"forward": "forward KL", "js": "Jensen–Shannon divergence"}[args.keep_divergence]
        parts["kept"] = (
            f"{how} on right answers of the model before RL, drawn beforehand (`{Path(args.keep_from).name}`, at most "
            f"{args.keep_per_problem} per problem), weight {args.keep_coef}; arXiv 2509.07430"
        )
    return "\n## The run (sage-rlvr)\n\n" + "".join(f"- {name.capitalize()}: {text}\n" for name, text in parts.items())


def about(trainer: Any) -> dict[str, str]:
    args = trainer.args
    return {
        "anchor": anchor(args, trainer.guide),
        "loss": f"{args.loss_type}, advantage {_advantage(args)}",
        "reference": reference(trainer),
        "model": _model(trainer),
        "data": _data(trainer),
        "steps": _steps(trainer),
    }


def anchor(args: Any, guide: Any) -> str:
    """As in "branch guide (ratio 0.3) on π_ref, k3, β 0.05"."""
    if args.beta == 0:
        return "none (β 0)"
    shape = "π_ref" if guide is None else f"{args.guide} guide{_arguments(guide.settings())} on π_ref"
    credit = f" ({args.anchor_credit})" if args.anchor_estimator == "k1-reward" else ""
    centred = ", log q centred over the batch" if args.guide_center == "batch" else ""
    return f"{shape}, {args.anchor_estimator}{credit}, β {args.beta:g}{centred}"


def reference(trainer: Any) -> str:
    """Where π_ref lives."""
    args = trainer.args
    if args.beta == 0:
        return "none"
    if trainer.ref_model is not None:
        text = f"a frozen copy of the model, {_size(trainer.ref_model)}"
    elif is_peft_model(trainer.model) and "ref" in trainer.model.peft_config:
        text = "the base with a frozen copy of the adapter it was given"
    else:
        text = "the base with the adapter off (no extra memory)"
    if args.anchor_reset:
        text += f"; becomes the policy every {args.anchor_reset} steps"
    if args.sync_ref_model:
        text += f"; moves toward the policy every {args.ref_model_sync_steps} steps"
    return text


def _advantage(args: Any) -> str:
    """Its parts with their settings; GRPO's own last where none of them makes the advantages."""
    others = [part for part in args.make_advantage().parts if part.name != "group"]
    names = [f"{part.name}{_arguments(part.settings())}" for part in others]
    if all(part.stage != "advantage" for part in others):
        names.append(GROUP[args.scale_rewards])
    return " + ".join(names)


def _arguments(settings: dict[str, Any]) -> str:
    listed = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
    return f" ({listed})" if listed else ""


def _size(model: nn.Module) -> str:
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _model(trainer: Any) -> str:
    model = trainer.accelerator.unwrap_model(trainer.model)
    parameters = list(model.parameters())
    whole = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    name = str(getattr(model.config, "_name_or_path", "")) or type(model).__name__
    share = f"adapter, {_count(trained)} of {_count(whole)}" if is_peft_model(model) else f"all {_count(trained)}"
    return f"{name}; {share} parameters trained"


def _count(number: int) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)


def _data(trainer: Any) -> str:
    data = trainer.train_dataset
    rows = f"{len(data)} prompts" if hasattr(data, "__len__") else "a stream of prompts"
    return f"{trainer.data_name}, {rows}" if trainer.data_name else rows


def _steps(trainer: Any) -> str:
    args = trainer.args
    per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    prompts = per_step / args.num_generations
    groups = f"{prompts:g} prompt{'s' * (prompts != 1)} × {args.num_generations}"
    text = (
        f"{trainer.state.max_steps} × {per_step} rollouts ({groups}), at most {args.max_completion_length} tokens each"
    )
    updates = args.steps_per_generation * trainer.num_iterations / args.gradient_accumulation_steps
    if updates != 1:
        text += f"; {updates:g} steps per rollout batch"
    return text
