"""Trainer steps on rollouts that are given, not sampled: everything of a step but generation, timed.

A random model of any size, rollouts whose lengths spread as a reasoning model's do (log-normal, some cut at the limit), and a
trainer that gets the same ones at every step. What is timed is one optimizer step without the time spent on handing them out.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback

from sage_rlvr.launch.sft import PROJECTIONS

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """A Qwen2's sizes."""

    vocab: int
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int


QWEN_0_5B = Shape(151_936, 896, 4864, 24, 14, 2)
QWEN_1_5B = Shape(151_936, 1536, 8960, 28, 12, 2)


@dataclass(frozen=True)
class Rollouts:
    prompts: list[list[int]]
    completions: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.prompts)) + sum(map(len, self.completions))

    @property
    def padded(self) -> int:
        """As one batch, padded to its longest prompt and completion."""
        return len(self.prompts) * (max(map(len, self.prompts)) + max(map(len, self.completions)))


def draw_rollouts(rows: int, longest: int, vocab: int, group: int = 8, seed: int = 0, spread: float = 0.7) -> Rollouts:
    """Prompts alike in a group; completions log-normal around a third of ``longest``, cut there; the last token ends them."""
    rng = random.Random(seed)
    word = lambda: rng.randrange(3, vocab)  # noqa: E731  (0 to 2 are <pad>, <eos>, <unk>)
    prompts, completions = [], []
    for row in range(rows):
        if row % group == 0:
            length = max(4, min(longest // 4, round(rng.lognormvariate(0, 0.4) * longest / 10)))
            prompt = [word() for _ in range(length)]
        length = max(2, min(longest, round(rng.lognormvariate(0, spread) * longest / 3)))
        prompts.append(prompt)
        completions.append([word() for _ in range(length - 1)] + [1])
    return Rollouts(prompts, completions)


def random_model(shape: Shape, device: str, seed: int = 0) -> Any:
    """bf16 on CUDA, float32 elsewhere."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=shape.vocab, hidden_size=shape.width, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, max_position_embeddings=32_768,
        tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(torch.bfloat16 if device == "cuda" else torch.float32)


class Replay:
    """A trainer of class ``trainer`` with config class ``config``; ``run`` makes so many steps and says what one takes."""

    def __init__(self, trainer: Any, config: Any, shape: Shape, rollouts: Rollouts, device: str, **options: Any):
        from datasets import Dataset
        from peft import LoraConfig

        from sage_rlvr.models.scratch import character_tokenizer

        self.device, self.rollouts = device, rollouts
        before = _allocated(device)
        self.folder = tempfile.TemporaryDirectory()
        settings = {
            "output_dir": self.folder.name, "num_generations": 8, "max_completion_length": max(map(len, rollouts.completions)),
            "max_steps": 1, "logging_steps": 10**6, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
            "bf16": device == "cuda", "use_cpu": device == "cpu", "beta": 0.05, "loss_type": "grpo", "learning_rate": 1e-6,
            "lr_scheduler_type": "constant", "logging_strategy": "no",
        }  # fmt: skip
        self.watch = Watch(device)
        self.trainer = trainer(
            random_model(shape, device),
            _reward,
            config(**(settings | options)),
            Dataset.from_dict({"prompt": ["1"] * len(rollouts.prompts)}),
            processing_class=character_tokenizer("0123456789"),
            rollout_func=self._given,
            peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=list(PROJECTIONS)),
            callbacks=[self.watch],
        )
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        model.get_input_embeddings().register_forward_hook(self.watch.passed)
        self.own = _allocated(device) - before

    def _given(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        before = self.watch.now()
        completions = self.rollouts.completions
        logprobs = [[0.0] * len(ids) for ids in completions]
        self.watch.outside += self.watch.now() - before
        return {"prompt_ids": self.rollouts.prompts, "completion_ids": completions, "logprobs": logprobs}

    def run(self, updates: int, warm: int = 1) -> dict[str, Any]:
        """Median and quartiles of a step, its forward passes and padded tokens, and the peak with this trainer alone."""
        watch, self.trainer.args.max_steps = self.watch, warm + updates
        watch.start(warm)
        with _silent():
            self.trainer.train()
        spent = sorted(watch.spent)
        out = {
            "ms": statistics.median(spent), "ms_q25": spent[len(spent) // 4], "ms_q75": spent[(3 * len(spent)) // 4],
            "updates": len(spent), "spent_ms": spent,
            "forward_passes": watch.passes / len(spent), "padded_tokens": watch.tokens / len(spent),
            "real_tokens": self.rollouts.tokens,
        }  # fmt: skip
        if self.device == "cuda":
            out["peak_gib"] = (watch.peak - watch.held + self.own) / GIB
        return out


def _reward(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(i % 3 == 0) for i in range(len(completions))]


def _allocated(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0


class Watch(TrainerCallback):
    """The clock of a step: its time without the rollouts', passes through the model, memory."""

    def __init__(self, device: str):
        self.device = device
        self.start(0)

    def start(self, warm: int) -> None:
        self.warm, self.passes, self.tokens, self.peak, self.held = warm, 0, 0, 0, 0
        self.spent: list[float] = []  # ms
        self.outside = 0.0  # seconds of this step that are not counted

    def now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def passed(self, module: Any, args: Any, output: torch.Tensor) -> None:
        if self.warm <= 0:
            self.passes, self.tokens = self.passes + 1, self.tokens + output.shape[0] * output.shape[1]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.outside, self.began = 0.0, self.now()
        if self.device == "cuda" and self.warm <= 0:
            torch.cuda.reset_peak_memory_stats()
            self.held = torch.cuda.memory_allocated()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        took = self.now() - self.began - self.outside
        if self.warm <= 0:
            self.spent.append(1e3 * took)
            if self.device == "cuda":
                self.peak = max(self.peak, torch.cuda.max_memory_allocated())
        self.warm -= 1


@contextmanager
def _silent() -> Iterator[None]:
    """Without the lines a trainer prints as it goes: the table is what is asked for."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
