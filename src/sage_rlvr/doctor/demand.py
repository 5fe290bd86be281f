"""What a run asks of a machine: everything that its memory and disk depend on, read from its parsed settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sage_rlvr.doctor.architectures import architecture
from sage_rlvr.errors import UserError
from sage_rlvr.models import is_adapter
from sage_rlvr.models.gguf import is_gguf
from sage_rlvr.tasks.loading import local_files

PROMPT_TOKENS = 300  # assumed where prompts cannot be tokenised here: the paper's system prompt and a contest problem
STATES = {  # bytes of optimizer state per byte of fp32 weight; torch keeps its states in the weight's dtype
    "adamw": 2.0, "adam": 2.0, "sgd": 0.0, "adafactor": 0.02, "lion": 1.0, "rmsprop": 1.0, "adagrad": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Demand:
    model: str
    config: Any  # a Transformers config
    dtype: torch.dtype  # of the weights
    quantised: float | None  # bytes per frozen weight where bitsandbytes packs it
    autocast: bool  # bf16 or fp16 mixed precision
    lora: Any  # a PEFT config, or None: every weight is trained
    adapter_copy: bool  # the run goes on from an adapter, whose frozen copy is the reference
    reference: bool  # a pass over π_ref is made
    micro_batch: int  # rows of one forward and backward pass: as many as tokens_per_microbatch lets in, where it is set
    accumulation: int
    rollout_rows: int  # rows generated together, on this device
    prompt: int  # tokens
    prompt_known: bool
    completion: int  # tokens, at most
    checkpointing: bool
    fused_head: bool | None  # our head; None: on a GPU
    optim: str
    vllm: float | None  # its share of the GPU where it lives here
    vllm_cache: float | None  # bytes of its KV cache, where they are given
    vllm_server: bool
    vllm_sleeps: bool
    steps: int
    rollouts: int  # how many times a rollout batch is generated
    processes: int
    trusted: bool

    @property
    def length(self) -> int:
        return self.prompt + self.completion

    @property
    def state_share(self) -> float:
        """Bytes of optimizer state per byte of trainable weight (float32 where 8-bit)."""
        name = self.optim.lower()
        if "8bit" in name:
            return 0.5 if "lion" not in name else 0.25  # one byte per state
        return next((share for kind, share in STATES.items() if kind in name), 2.0)


def demand_of(run: Any, args: Any, model_args: Any, bf16: bool, prompt: int | None = None) -> Demand:
    """``bf16`` is whether the run will use mixed precision on the machine that is planned for."""
    from trl import get_peft_config

    model = model_args.model_name_or_path
    if not model:
        raise UserError("no model to plan for: give --model a Hub id, a folder or a .gguf file.")
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "max_completion_length"):
        if getattr(args, name) < 1:
            raise UserError(f"{name}={getattr(args, name)} leaves nothing to plan: set it to 1 or more.")
    config = architecture(model, args.trust_remote_code)
    adapter = is_adapter(model)
    here = args.use_vllm and args.vllm_mode == "colocate"
    counted = prompt or prompt_tokens(run, model)
    steps = steps_of(run, args)
    longest = (counted or PROMPT_TOKENS) + args.max_completion_length
    rows = args.per_device_train_batch_size
    if args.tokens_per_microbatch is not None:
        rows = min(rows, max(1, args.tokens_per_microbatch // longest))
    return Demand(
        model=model,
        config=config,
        dtype=_dtype(model_args.dtype, config, model),
        quantised=0.55 if model_args.load_in_4bit else 1.05 if model_args.load_in_8bit else None,
        autocast=bf16 or args.fp16,
        lora=_peft_config(model) if adapter else get_peft_config(model_args),
        adapter_copy=adapter and args.beta != 0,
        reference=args.beta != 0,
        micro_batch=rows,
        accumulation=args.gradient_accumulation_steps * -(-args.per_device_train_batch_size // rows),
        rollout_rows=args.per_device_train_batch_size * args.steps_per_generation,
        prompt=counted or PROMPT_TOKENS,
        prompt_known=counted is not None,
        completion=args.max_completion_length,
        checkpointing=args.gradient_checkpointing,
        fused_head=args.fused_head,
        optim=str(getattr(args.optim, "value", args.optim)),
        vllm=args.vllm_gpu_memory_utilization if here else None,
        vllm_cache=args.vllm_kv_cache_gib * 2**30 if args.vllm_kv_cache_gib else None,
        vllm_server=args.use_vllm and not here,
        vllm_sleeps=bool(args.vllm_enable_sleep_mode),
        steps=steps,
        rollouts=-(-steps * args.gradient_accumulation_steps // (args.steps_per_generation * args.num_iterations)),
        processes=args.world_size,
        trusted=args.trust_remote_code,
    )


def _peft_config(adapter: str) -> Any:
    from peft import PeftConfig

    config = PeftConfig.from_pretrained(adapter)
    config.inference_mode = False
    return config


def _dtype(asked: Any, config: Any, model: str) -> torch.dtype:
    if asked in (None, "auto"):
        asked = "bfloat16" if is_gguf(model) else getattr(config, "dtype", None) or "float32"
    dtype = asked if isinstance(asked, torch.dtype) else getattr(torch, str(asked).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(f"dtype={asked!r} is unknown: write float32, bfloat16, float16 or auto.")
    return dtype


def steps_of(run: Any, args: Any) -> int:
    """Optimizer steps: max_steps, else the epochs over as many problems as the run or its task has."""
    from sage_rlvr.tasks.registry import get_task

    if args.max_steps >= 0:
        return args.max_steps
    problems = run.rows or get_task(run.task).count() or 1000
    per_rollout = max(1, args.generation_batch_size // args.num_generations)
    updates = args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps
    return max(1, round(args.num_train_epochs * problems / per_rollout * updates))


def prompt_tokens(run: Any, model: str) -> int | None:
    """The longest prompt of the first problems, where both they and the tokenizer are on this machine; else None."""
    from sage_rlvr.models import load_tokenizer
    from sage_rlvr.tasks import chat_template, load_task, rows
    from sage_rlvr.tasks.registry import get_task

    task = get_task(run.task)
    if not (task.generate or local_files(task, run.data_dir)) or not Path(model).exists():
        return None
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = chat_template(tokenizer, run.prompt_format)
    asked = [row["prompt"] for row in rows(load_task(run.task, run.data_dir, 64), run.prompt_format)]
    chat = {"tokenize": False, "add_generation_prompt": True}
    texts = [p if isinstance(p, str) else tokenizer.apply_chat_template(p, **chat) for p in asked]
    return max(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
