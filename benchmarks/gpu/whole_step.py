"""The whole training step with vLLM colocated, by phase: SAGETrainer beside TRL's GRPOTrainer, each in a process of its own; and
SAGETrainer with ``rollout_ahead``, the step alone, since its phases overlap.

    python benchmarks/gpu/whole_step.py --their_micro 8 --out results/gpu/whole_step.json    # on one GPU
    python benchmarks/gpu/whole_step.py --tiny --out whole_step_tiny.json                    # a smoke test: CPU, no vLLM

Qwen2.5-1.5B's sizes with random weights in bf16, LoRA r = 8, 8 prompts × 8 rollouts of up to 1,024 tokens, β = 0.05, k3, loss
"grpo", no checkpointing, vLLM's importance-sampling correction on, as TRL has it; the same seed, prompts and reward.
Random weights draw nearly uniformly and would never end, so one token id in 307 is an EOS in generation_config.json, which vLLM
and TRL both read: lengths are geometric, mean about 300, cut at 1,024. A token's text ends in a digit, and the reward is the math
verifier's on a gold of 3: a quarter of the completions are right, so that gradients are not zero.

A phase's time is its own, without the phases inside it, the GPU synchronised at both ends; they add up to the step. Medians of
the steps after two warm ones; ``per_1k``: per 1,000 completion tokens, since draws differ. ``vllm_gib`` is what torch held beyond
the trainer's model before the first step, ``peak_gib`` is without it. A trainer that fails leaves the end of its log.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from replay import GIB, QWEN_1_5B, Shape, Watch, random_model
from trl import GRPOConfig, GRPOTrainer

from sage_rlvr.launch.sft import PROJECTIONS
from sage_rlvr.models.scratch import SPECIAL, character_tokenizer
from sage_rlvr.provenance import made_with
from sage_rlvr.tasks import task_reward
from sage_rlvr.train import SAGEConfig, SAGETrainer

GROUP, WARM = 8, 2


@dataclass(frozen=True)
class Sizes:
    shape: Shape
    rows: int
    longest: int  # tokens of a completion
    prompts: tuple[int, int]  # shortest and longest prompt


FULL = Sizes(QWEN_1_5B, 64, 1024, (50, 200))
TINY = Sizes(Shape(300, 16, 32, 1, 2, 2), 16, 24, (5, 20))


def save_model(folder: Path, sizes: Sizes, device: str) -> None:
    """Weights, tokenizer and a generation config with many EOS: vLLM loads from a folder."""
    vocab, first = sizes.shape.vocab, len(SPECIAL) + 10
    words: Any = [*"0123456789", *(f" w{i} {i % 4}" for i in range(first, vocab))]  # a token a word, as with characters
    character_tokenizer(words).save_pretrained(folder)
    model = random_model(sizes.shape, device)
    model.generation_config.eos_token_id = [1, *range(first, vocab, round(0.3 * sizes.longest))]
    model.save_pretrained(folder)


class Phases(Watch):
    """The step's time by phase, each without those inside it; what no phase claims is the rest."""

    whole = False  # the step alone is timed

    def start(self, warm: int) -> None:
        super().start(warm)
        self.steps: list[dict[str, float]] = []
        self.step: dict[str, float] = defaultdict(float)
        self.inside, self.since = ["rest"], 0.0

    def turn(self) -> None:
        before, self.since = self.since, self.now()
        self.step[self.inside[-1]] += 1e3 * (self.since - before)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.whole:
            yield
            return
        self.turn()
        self.inside.append(name)
        yield
        self.turn()
        self.inside.pop()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        kwargs["optimizer"].step = self.phase("optimizer")(kwargs["optimizer"].step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step, self.since = defaultdict(float), self.now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.turn()
        self.steps.append(dict(self.step))


def watch_trainer(trainer: Any, watch: Phases) -> None:
    """Puts the trainer's own methods into their phases."""
    trainer.training_step = watch.phase("update")(trainer.training_step)
    trainer._prepare_inputs = watch.phase("rest")(trainer._prepare_inputs)
    trainer._generate_single_turn = watch.phase("rollout")(trainer._generate_single_turn)
    trainer._calculate_rewards = watch.phase("verify")(trainer._calculate_rewards)
    if trainer.use_vllm:
        trainer.vllm_generation.sync_weights = watch.phase("sync")(trainer.vllm_generation.sync_weights)
    adapter = next(module for module in trainer.model.modules() if isinstance(module, BaseTunerLayer))
    score, logps = trainer._generate_and_score_completions, trainer._get_per_token_logps_and_entropies

    def passed(*args: Any, **kwargs: Any) -> Any:
        name = "reference" if adapter.disable_adapters else "sampling policy"
        with nullcontext() if torch.is_grad_enabled() else watch.phase(name):  # with gradients: the update's
            return logps(*args, **kwargs)

    def counted(*args: Any, **kwargs: Any) -> Any:
        out = score(*args, **kwargs)
        watch.step["tokens"] += int(out["completion_mask"].sum())
        return out

    trainer._generate_and_score_completions, trainer._get_per_token_logps_and_entropies = counted, passed


def one(who: str, folder: Path, sizes: Sizes, args: argparse.Namespace) -> dict[str, Any]:
    """Trains ``who``, ours, ahead or theirs, and says where a step's time went."""
    mine = who != "theirs"
    rng, micro = random.Random(0), sizes.rows if mine else args.their_micro
    common = {
        "output_dir": str(folder / who), "num_generations": GROUP, "max_completion_length": sizes.longest,
        "per_device_train_batch_size": micro, "gradient_accumulation_steps": sizes.rows // micro, "max_steps": WARM + args.steps,
        "report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
        "bf16": not args.tiny, "use_cpu": args.tiny, "beta": 0.05, "loss_type": "grpo", "use_bias_correction_kl": False,
        "gradient_checkpointing": False, "learning_rate": 1e-6, "lr_scheduler_type": "constant",
        "model_init_kwargs": {"dtype": "auto"}, "use_vllm": not args.tiny, "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.2, "vllm_max_model_length": sizes.prompts[1] + sizes.longest,
    }  # fmt: skip
    own = {"guide": "branch", "anchor_estimator": "k3", "fused_head": True, "tokens_per_microbatch": args.our_tokens}
    own["rollout_ahead"] = who == "ahead"
    prompts = ["".join(rng.choices("0123456789", k=rng.randint(*sizes.prompts))) for _ in range(1024)]
    data = Dataset.from_dict({"prompt": prompts, "answer": ["3"] * len(prompts)})
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=list(PROJECTIONS))
    watch = Phases("cpu" if args.tiny else "cuda")
    watch.whole = who == "ahead"
    cls, config = (SAGETrainer, SAGEConfig(**common, **own)) if mine else (GRPOTrainer, GRPOConfig(**common))
    trainer = cls(str(folder), task_reward("math500", "plain"), config, data, peft_config=lora, callbacks=[watch])
    watch_trainer(trainer, watch)
    vllm = max(0, torch.cuda.memory_allocated() - sum(p.nbytes for p in trainer.model.parameters()))
    trainer.train()
    peak = torch.cuda.max_memory_allocated() - vllm
    return summary(watch.steps[WARM:]) | {"peak_gib": peak / GIB, "vllm_gib": vllm / GIB}


def summary(steps: list[dict[str, float]]) -> dict[str, Any]:
    tokens = [step.pop("tokens") for step in steps]
    for step in steps:
        step["step"] = sum(step.values())
        if "rollout" in step:
            step["all but rollout"] = step["step"] - step["rollout"]
    ms = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
    per_1k = {name: statistics.median(1e3 * step[name] / n for step, n in zip(steps, tokens)) for name in ms}
    return {"ms": ms, "per_1k": per_1k, "tokens": tokens, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write; logs of the two runs lie beside it")
    parser.add_argument("--steps", type=int, default=8, help="measured steps (8)")
    parser.add_argument("--their_micro", type=int, default=8, choices=(1, 2, 4, 8, 16), help="TRL's micro-batch (8)")
    parser.add_argument("--our_tokens", type=int, default=16_384, help="our tokens_per_microbatch (16384)")
    parser.add_argument("--tiny", action="store_true", help="small, on the CPU, without vLLM: a smoke test")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = TINY if args.tiny else FULL
    if args.one:
        args.out.write_text(json.dumps(one(args.one[0], Path(args.one[1]), sizes, args)))
        return
    if not args.tiny and not torch.cuda.is_available():
        parser.error("no CUDA device here: use --tiny for a smoke test on the CPU")
    result: dict[str, Any] = {"made_with": made_with(), "sizes": asdict(sizes), "measurement": not args.tiny}
    result |= {"their_micro": args.their_micro, "our_tokens": args.our_tokens}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), sizes, "cpu" if args.tiny else "cuda")
        torch.cuda.empty_cache()
        for who in ("ours", "theirs", *(["ahead"] * (not args.tiny))):  # the last needs vLLM
            part, log = Path(folder, f"{who}.json"), args.out.with_suffix(f".{who}.log")
            command = [sys.executable, __file__, *sys.argv[1:], "--out", str(part), "--one", who, folder]
            with log.open("w") as lines:
                failed = subprocess.run(command, stdout=lines, stderr=subprocess.STDOUT).returncode
            result[who] = {"not_run": log.read_text()[-3000:]} if failed else json.loads(part.read_text())
            if all("ms" in result.get(name, ()) for name in ("ours", "theirs")):
                per_1k = result["ours"]["per_1k"]
                result["theirs ÷ ours"] = {name: result["theirs"]["per_1k"][name] / per_1k[name] for name in per_1k}
                if "ms" in result.get("ahead", ()):
                    result["theirs ÷ ahead"] = result["theirs"]["per_1k"]["step"] / result["ahead"]["per_1k"]["step"]
            args.out.write_text(json.dumps(result, indent=1))
            print(who, json.dumps({k: v for k, v in result[who].items() if k != "steps"}, indent=1), flush=True)
    for ratio in ("theirs ÷ ours", "theirs ÷ ahead"):
        print(f"{ratio}, per token:", result.get(ratio, "a trainer did not run, see its log"))


if __name__ == "__main__":
    main()
