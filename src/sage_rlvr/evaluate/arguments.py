"""The flags of ``sage-rlvr eval``, checked. No model library is imported here, so that --help is quick."""

from dataclasses import dataclass, field
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.names import OLD

MOST_N, MOST_SEEDS = 1_000_000, 10_000  # beyond, a slip of the keyboard
DTYPES = ("auto", "bfloat16", "float16", "float32")


def _field(default: Any, said: str) -> Any:
    kept = {"default_factory": default.copy} if isinstance(default, list) else {"default": default}
    return field(**kept, metadata={"help": said})


@dataclass
class EvalArguments:
    """Flags of ``sage-rlvr eval``. Its defaults are for a look at a model: 16 samples, one seed, the temperature that training
    samples at. The paper's evaluation is n=256, seeds=5, temperature=0.3 with training's truncation (min_p 0.01, top_p 1); the
    authors' evaluation config itself has top_p 0.95."""

    model: str = _field("", "Hub id, folder of weights or of an adapter, or .gguf file.")
    tasks: list[str] = _field([], "Tasks to sample, as gsm8k or aime,amc23 ('sage-rlvr tasks' lists them).")
    dataset: str | None = _field(None, "Or your own data, as train takes it: a file, a folder, or a Hub id.")
    reward: list[str] | None = _field(
        None, "Your own rewards, file.py:function or module:function, as train takes them (docs/your_data.md)."
    )
    reward_weights: list[float] | None = _field(None, "A weight for each reward. Default: 1 each.")
    correct_at: float | None = _field(
        None, "With --reward: a completion is right where its weighted reward is at least this. Default: 1."
    )
    prompt_column: str | None = _field(
        None, "Column of the prompts in --dataset. Default: prompt, question or problem."
    )
    answer_column: str | None = _field(None, "Column of the right answers in --dataset. Default: answer or solution.")
    dataset_config: str | None = _field(None, "Config of a Hub dataset, such as main.")
    holdout: int | None = _field(
        None, "Only the rows of --dataset that 'train --holdout' of the same number leaves out."
    )
    extract: str | None = _field(
        None,
        "How an answer is found in a completion: marked (<SOLUTION> or \\boxed), any (also the last number), or "
        "file.py:function. Default: as the prompt format does.",
    )
    out: str = _field("", "Folder of the run: its samples are stored there. Run the same command again to continue.")
    adapter: str | None = _field(None, "LoRA adapter to put on the model, without merging.")
    n: int = _field(16, "Samples for each problem and seed; pass@k is known up to k = n (the paper: 256).")
    seeds: list[int] = _field([1], "How many seeds (5: 0 to 4, the paper's), or two or more seeds by number.")
    backend: str = _field("auto", "vllm, transformers, or auto: vLLM where it is installed and there is a GPU.")
    temperature: float = _field(1.0, "Sampling temperature; 0 is greedy (the paper: 0.3).")
    top_p: float = _field(1.0, "Keep the likeliest tokens that hold this much mass; 1: all.")
    min_p: float = _field(0.01, "Drop tokens less likely than this share of the likeliest one's probability.")
    top_k: int = _field(0, "Keep this many of the likeliest tokens; 0: all.")
    max_tokens: int = _field(2048, "Longest completion; one that gets there is truncated, and counted apart.")
    prompt_format: str = _field(
        "",
        "Prompt format, as in training: paper, boxed, plain, symbols, as_is, or a registered name. Default: paper; with "
        "--dataset boxed; with --dataset and --reward as_is.",
    )
    data_dir: str | None = _field(None, "Folder of local task files (default: $SAGE_RLVR_DATA, then ./data).")
    limit: int | None = _field(None, "Only the first problems of each task.")
    split: str | None = _field(
        None, "Which problems; train: those to train on, for train --within_reach. Default: test."
    )
    run: str | None = _field(None, "Name of the run in the store (default: the name of the folder).")
    batch_size: int | None = _field(None, "transformers: rows sampled together (default: 64, on a GPU 128).")
    dtype: str = _field("auto", "bfloat16, float16 or float32; auto: as stored, with transformers on CPU float32.")
    gpu_memory_utilization: float = _field(0.9, "vllm: share of each GPU's memory it may take.")
    kv_cache_gib: float | None = _field(
        None, "vllm: GiB of an engine's KV cache, for some that start side by side on one GPU."
    )
    engines_per_gpu: int = _field(
        1,
        "vllm: engines that share each GPU and its memory: one keeps a CPU core busier than a large GPU (docs/reference/faq.md).",
    )
    verifier_workers: int | None = _field(None, "Processes that judge answers (default: one per CPU core, 16 at most).")
    verifier_timeout_s: float = _field(5.0, "Seconds an answer may take to be judged.")
    save_every_s: float = _field(
        60.0, "Seconds that judged samples may wait to be written; kill -9 costs these and the batches in flight."
    )
    trust_remote_code: bool = _field(False, "Run Python code that comes with the model.")

    def __post_init__(self) -> None:
        if isinstance(self.tasks, str):
            self.tasks = [name for name in self.tasks.split(",") if name]
        self.tasks = list(dict.fromkeys(name for entry in self.tasks for name in entry.split(",") if name))
        if isinstance(self.seeds, int):
            self.seeds = [self.seeds]
        if len(self.seeds) == 1 and self.seeds[0] > MOST_SEEDS:
            raise UserError(
                f"seeds={self.seeds[0]:,} asks for more than {MOST_SEEDS:,} seeds: give fewer, or their numbers."
            )
        self.seeds = list(range(self.seeds[0])) if len(self.seeds) == 1 else sorted(set(self.seeds))
        for name, example in (
            ("model", "a Hub id or a folder"),
            ("tasks", "one or more, such as gsm8k or aime,amc23, or --dataset your own file"),
            ("out", "a folder"),
        ):
            if not getattr(self, name) and not (name == "tasks" and self.dataset):
                raise UserError(f"eval needs --{OLD.get(name, name)}: give {example}.")
        self._check_own()
        if self.n < 1 or not self.seeds or min(self.seeds) < 0:
            raise UserError(f"n={self.n} and seeds={self.seeds}: give at least one sample and one seed, none below 0.")
        if self.n > MOST_N:
            raise UserError(
                f"n={self.n:,} is more than {MOST_N:,} samples for each problem and seed: give a smaller --n."
            )
        if self.kv_cache_gib is not None and self.kv_cache_gib <= 0:
            raise UserError(f"kv_cache_gib={self.kv_cache_gib} must be above 0, or left unset.")
        if self.engines_per_gpu < 1:
            raise UserError(f"engines_per_gpu={self.engines_per_gpu} must be 1 or more.")
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"batch_size={self.batch_size} must be 1 or more, or left unset.")
        if self.dtype not in DTYPES:
            raise UserError(f"dtype={self.dtype!r} is not one of {', '.join(DTYPES)}.")

    def _check_own(self) -> None:
        from sage_rlvr.tasks.own import check_flags

        check_flags(self, ",".join(self.tasks), "to evaluate on")
        self.split = self.split or (None if self.dataset else "test")
        for name in ("reward_weights", "correct_at"):
            if getattr(self, name) is not None and not self.reward:
                raise UserError(
                    f"--{name} says something of --reward, and there is none: add --reward, or leave it out."
                )
        if self.reward and self.correct_at is None:
            self.correct_at = 1.0
        if self.holdout is not None and self.holdout < 1:
            raise UserError(f"holdout={self.holdout} must be 1 or more, or left unset.")

    def said(self, problems: int) -> str:
        """One line before the work begins: how much is sampled, and how."""
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        return (
            f"eval: {problems:,} problems × {seeds} × n {self.n} = {problems * len(self.seeds) * self.n:,} samples, "
            f"temperature {self.temperature:g}, top_p {self.top_p:g}, min_p {self.min_p:g}, at most {self.max_tokens:,} tokens"
            + (f"; right: reward ≥ {self.correct_at:g} ({' + '.join(self.reward)})" if self.reward else "")
        )

    def settings(self, backend: str, base: str, adapter: str | None) -> dict[str, Any]:
        """What every sample in the folder has in common. n, seeds, tasks and limit are not here: a run may be extended;
        nor is batch_size, which changes no more than the last bit of a logit, so that a GPU without room can be helped."""
        same = ("temperature", "top_p", "min_p", "top_k", "max_tokens", "prompt_format", "dtype")
        own = ("reward", "reward_weights", "correct_at", "extract", "prompt_column", "answer_column", "split")
        said = {n: value for n in own if (value := getattr(self, n)) is not None and (n, value) != ("split", "test")}
        return {"model": base, "adapter": adapter, "backend": backend} | {n: getattr(self, n) for n in same} | said
