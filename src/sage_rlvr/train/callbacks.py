"""Around a run: a progress line, a word where samples are not the policy's, held-out pass@k."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from sage_rlvr.models import write_whole
from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.train.reward_guard import random_state


class WarnOnce(TrainerCallback):
    """Prints ``sentence`` at the first log with ``metric`` above ``limit`` and a mean of log π − log(q·π_ref) below 0."""

    metric: str
    limit: float
    sentence: str  # what is wrong and what to do, after "at step N"
    warned = False

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        value, mean = ((logs or {}).get(name, 0.0) for name in (self.metric, "sage/pseudo_kl"))
        if state.is_world_process_zero and not self.warned and value > self.limit and mean < 0:
            self.warned = True
            print(f"sage: at step {state.global_step} {self.sentence.format(value=value, mean=mean)}")


class OnPolicy(WarnOnce):
    """For runs without a guide, with one update per rollout batch: there both estimate the same divergence."""

    metric, limit = "kl_ref", 0.05  # nats per token: below it the mean of a few rows may be negative by chance
    sentence = (
        "kl_ref is {value:.3g} and the mean of log π − log π_ref {mean:.3g}, which on policy cannot be below 0: the tokens "
        "come from another policy than the one that is trained. Look for dropout, or for a sampler with other weights or "
        "numerics (docs: FAQ)."
    )


class PaidToRamble(WarnOnce):
    """For exact credit (k1-reward alone logs the bonus): D̃ is below 0, so more text of this kind earns more of it."""

    metric, limit = "sage/bonus_abs", 1.0  # what a right answer earns
    sentence = (
        "the guide pays more than the task: the bonus is {value:.3g} per completion, a right answer earns 1, and long "
        "uncertain text earns most (look at completions/clipped_ratio and entropy). Train with guide_center=batch, which "
        "takes the mean of log q out, or with a smaller beta (docs: Theory)."
    )


class NothingToLearn(TrainerCallback):
    """Says so where no group of the first steps had unequal rewards: then the policy term has no gradient."""

    PATIENCE = 20  # steps

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.settled = state.global_step > 0  # a resumed run has learned something, or was told

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        flat = (logs or {}).get("frac_reward_zero_std")
        if flat is None or self.settled:
            return
        late = state.global_step >= self.PATIENCE
        self.settled = flat < 1 or late
        if flat == 1 and late and state.is_world_process_zero:
            print(
                f"sage: in all {state.global_step} steps every group had equal rewards (mean {(logs or {})['reward']:.3g}), so "
                "nothing was learned from them. Read some completions (--log_completions true), check the reward and the prompt "
                "format, or take easier problems (docs: FAQ, The loss is 0)."
            )


CONSOLE = {  # metric → what the console calls it, and how it is written
    "reward": ("reward", ".3f"),
    "kl_ref": ("KL", ".2g"),
    "sage/active": ("active", ".2f"),
    "entropy": ("entropy", ".2f"),
    "completions/mean_length": ("length", ".0f"),
}
HELD_OUT = "held_out/"
AT_ONCE = 256  # held-out completions of a process that are sampled together


class TrainingProgress(TrainerCallback):
    """A line at each log (reward, KL to the reference, share of tokens the guide changes, entropy, length, the
    time left) and one for each held-out measurement; in a terminal the time left is in a bar below them."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self._bar: Progress | None = None
        self._start = (0.0, 0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._start = (time.monotonic(), state.global_step)
        if self.console.is_terminal:
            columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self.console)
            self._bar.add_task("steps", total=state.max_steps, completed=state.global_step)
            self._bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        step = step_line(logs or {})
        lines = [*held_out_lines(logs or {}), *([step + self._time_left(state)] if step else [])]
        for line in lines:
            text = f"{state.global_step}/{state.max_steps}  {line}"
            self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _time_left(self, state: Any) -> str:
        seconds, steps = time.monotonic() - self._start[0], state.global_step - self._start[1]
        if self._bar is not None or not steps:
            return ""
        left = seconds / steps * (state.max_steps - state.global_step)
        return f"  ~{left:.0f} s" if left < 100 else f"  ~{left / 60:.0f} min"

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def step_line(logs: dict[str, Any]) -> str:
    """What the console says of a training step; nothing for a log that is not one's."""
    if "reward" not in logs:
        return ""
    numbers = [(*CONSOLE[name], logs[name]) for name in CONSOLE if isinstance(logs.get(name), int | float)]
    return "  ".join(f"{label} {value:{style}}" for label, style, value in numbers)


def held_out_lines(logs: dict[str, Any]) -> list[str]:
    """One for each held-out task: "held out amc23  pass@1 0.250  pass@8 0.500"."""
    tasks: dict[str, list[str]] = {}
    for name, value in logs.items():
        if name.startswith(HELD_OUT):
            task, _, metric = name.removeprefix(HELD_OUT).rpartition("/")
            tasks.setdefault(task, []).append(f"{metric} {value:.3f}")
    return ["  ".join([f"held out {task}".rstrip(), *values]) for task, values in tasks.items()]


class LogFile(TrainerCallback):
    """Every logged step as one line of output_dir/log.jsonl: what reports and analyses read, finished or not."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A resumed run goes on from its checkpoint: lines of steps that will be taken again are dropped."""
        if state.is_world_process_zero:
            write_whole(log_file(args), "".join(f"{json.dumps(entry)}\n" for entry in state.log_history))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            with log_file(args).open("a", encoding="utf-8") as f:
                f.write(json.dumps({**logs, "step": state.global_step}) + "\n")


def log_file(args: Any) -> Path:
    """In a folder that is there: an evaluation may come before any training."""
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    return Path(args.output_dir, "log.jsonl")


def replace_progress(trainer: Any) -> None:
    """transformers' own bar (or printer) makes room; with disable_tqdm there is none at all."""
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    if not trainer.args.disable_tqdm:
        trainer.add_callback(TrainingProgress())


class HeldOutPassAtK(TrainerCallback):
    """pass@1 and pass@n on held-out rows every ``every`` steps, so that reward overfitting shows while it happens.

    ``rows`` are dataset rows (prompt, answer, …), ``reward_func`` judges them as in training. Random states are put back
    afterwards: the run is the same with and without it.
    """

    def __init__(self, trainer: Any, rows: list[dict], reward_func: Any, every: int, n: int = 8, label: str = ""):
        self.trainer, self.rows, self.reward_func = trainer, rows, reward_func
        self.every, self.n, self.label = every, n, f"{label}/" if label else ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self._evaluate(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            self._evaluate(state.global_step)

    def _evaluate(self, step: int) -> None:
        trainer, accelerator = self.trainer, self.trainer.accelerator
        world, rank = accelerator.num_processes, accelerator.process_index
        padded = self.rows + self.rows[: -len(self.rows) % world]  # every rank generates the same number of rows
        share = len(padded) // world
        mine = [row for row in padded[rank * share : (rank + 1) * share] for _ in range(self.n)]
        before = trainer.num_generations_eval, trainer.state.num_input_tokens_seen
        if trainer.ahead is not None:
            trainer.ahead.wait()  # a colocated engine draws from the same random states
        restore = random_state()
        trainer.model.eval()
        trainer.num_generations_eval = self.n
        try:
            with torch.no_grad():
                torch.manual_seed(step * 131 + rank)
                prompts = [row["prompt"] for row in mine]
                completions, ids, truncated = list[Any](), list[Any](), list[bool]()
                size = max(AT_ONCE // self.n, 1) * self.n  # whole problems
                for at in range(0, len(prompts), size):
                    _, some_ids, _, some, *_ = trainer._generate(prompts[at : at + size])
                    completions, ids, truncated = completions + some, ids + some_ids, truncated + trainer.truncated()
            names = dict.fromkeys(k for row in mine for k in row if k not in ("prompt", "completion", "completion_ids"))
            columns: dict[str, Any] = {name: [row.get(name) for row in mine] for name in names}
            columns |= {"prompts": prompts, "completions": completions, "completion_ids": ids, "truncated": truncated}
            verdicts = trainer._guard.held_out(self.reward_func, **columns)
            trainer._metrics["eval"].clear()
            self._log(gather_object(list(verdicts))[: len(self.rows) * self.n], step)
        finally:
            restore()  # of all: vLLM draws from Python's and NumPy's too
            trainer.num_generations_eval, trainer.state.num_input_tokens_seen = before
            trainer.model.train()

    def _log(self, verdicts: list[float | None], step: int) -> None:
        groups = [verdicts[i : i + self.n] for i in range(0, len(verdicts), self.n)]
        right = [sum(v > 0 for v in g if v is not None) for g in groups if None not in g]
        if not right:
            return
        sizes = sorted({1, self.n})
        out = {f"{HELD_OUT}{self.label}pass@{k}": float(pass_at_k(self.n, right, k).mean()) for k in sizes}
        due = self.trainer.control.should_log
        self.trainer.log(dict(out))
        self.trainer.control.should_log = due  # logging would otherwise count as this step's own log
