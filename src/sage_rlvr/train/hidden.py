"""The policy's last hidden states, seen while a pass computes log-probs: no pass of their own.

Neither TRL's fused head nor ours calls the output layer, so there is no input of it to look at. The backbone is called: a hook
there sees what it answers, under LoRA, DDP and FSDP too, and whichever engine sampled. Held are (B, T + 1, D) in the model's own
precision, of this process' rows, until the guide has learned from them: 256 rows of 1,024 tokens, D = 1,536, bf16: 0.8 GiB.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor

from sage_rlvr.anchor import Signals
from sage_rlvr.errors import UserError


def backbone(model: Any) -> Any:
    """What answers ``last_hidden_state`` inside a causal language model, as TRL's fused head finds it."""
    inner = model.get_base_model() if is_peft_model(model) else model
    body = getattr(inner, "base_model", inner)
    if body is inner:
        raise UserError(
            f"a guide that needs hidden states looks at what the output layer reads, and {type(inner).__name__} names no part "
            "that answers it: choose another guide."
        )
    return body


class Watch:
    """Of a trainer whose guide needs hidden states; for any other it does nothing."""

    def __init__(self, model: Any, needs: frozenset[str]):
        self.wanted = "hidden" in needs
        self.passes: list[Any] = []  # (n, width, D) of each
        if self.wanted:
            backbone(model)  # or a sentence, before anything is sampled

    @contextmanager
    def over(self, model: Any, output: dict[str, Any], straight: bool) -> Iterator[None]:
        """The passes in the block leave ``output["sage_hidden"]``. Of ``straight`` rows ``packing`` picks the columns; else the
        prompt ends in the same one for all."""
        if not self.wanted:
            yield
            return
        columns = output["completion_ids"].shape[1] + 1

        def record(_module: Any, _args: Any, out: Any) -> None:
            whole = out.last_hidden_state.detach()
            self.passes.append(whole if straight else whole[:, -columns:].clone())  # a view would hold the prompts too

        hook = backbone(model).register_forward_hook(record)
        try:
            yield
            output["sage_hidden"] = torch.cat(self.passes)
        finally:
            hook.remove()
            self.passes = []

    def drain(self) -> list[Tensor]:
        """What was recorded since the last call; nothing where no pass is watched."""
        recorded, self.passes = self.passes, []
        return recorded


def learn(trainer: Any, signals: Signals) -> None:
    """A guide that learns does, once for each rollout batch of training; the numbers it answers with go to the log."""
    if trainer.model.training and getattr(trainer.guide, "learns", False):
        learnt = trainer.guide.learn(signals, trainer.accelerator.gather)
        trainer.log_values({f"sage/{name}": value for name, value in learnt.items()})
