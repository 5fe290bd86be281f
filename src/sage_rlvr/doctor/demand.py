"""What a run asks of a machine: everything that its memory and disk depend on, read from its parsed settings."""

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


class Demand:
    """Of settings as ``launch.run.parse`` answers them; ``args.bf16`` is as on the machine that is planned for."""

    def __init__(self, run: Any, args: Any, model_args: Any, prompt: int | None = None) -> None:
        from trl import get_peft_config

        model = model_args.model_name_or_path
        if not model:
            raise UserError("no model to plan for: give --model a Hub id, a folder or a .gguf file.")
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "max_completion_length"):
            if getattr(args, name) < 1:
                raise UserError(f"{name}={getattr(args, name)} leaves nothing to plan: set it to 1 or more.")
        self.run, self.args, self.model = run, args, model
        self.config = architecture(model, args.trust_remote_code)
        self.dtype = _dtype(model_args.dtype, self.config, model)  # of the weights
        # bytes per frozen weight where bitsandbytes packs it
        self.quantised = 0.55 if model_args.load_in_4bit else 1.05 if model_args.load_in_8bit else None
        self.autocast = args.bf16 or args.fp16
        adapter = is_adapter(model)
        # a PEFT config, or None: every weight is trained
        self.lora = _peft_config(model) if adapter else get_peft_config(model_args)
        self.reference = args.beta != 0  # a pass over π_ref is made
        self.adapter_copy = adapter and self.reference  # the adapter that it goes on from, frozen, is the reference
        counted = prompt or prompt_tokens(run, model)
        self.prompt, self.prompt_known = counted or PROMPT_TOKENS, counted is not None
        self.completion = args.max_completion_length  # tokens, at most
        self.length = self.prompt + self.completion
        # rows of one forward and backward pass: as many as tokens_per_microbatch lets in, where it is set
        self.micro_batch = rows = args.per_device_train_batch_size
        if args.tokens_per_microbatch is not None:
            self.micro_batch = min(rows, max(1, args.tokens_per_microbatch // self.length))
        self.accumulation = args.gradient_accumulation_steps * -(-rows // self.micro_batch)
        self.rollout_rows = rows * args.steps_per_generation  # generated together, on this device
        self.fused_head = args.fused_head  # our head; None: on a GPU
        self.optim = str(getattr(args.optim, "value", args.optim))
        here = args.use_vllm and args.vllm_mode == "colocate"
        self.vllm = args.vllm_gpu_memory_utilization if here else None  # its share of the GPU where it lives here
        self.vllm_cache = args.vllm_kv_cache_gib and args.vllm_kv_cache_gib * 2**30  # bytes, where they are given
        self.vllm_server = args.use_vllm and not here
        self.steps = steps_of(run, args)
        updates = args.steps_per_generation * args.num_iterations
        self.rollouts = -(-self.steps * args.gradient_accumulation_steps // updates)  # batches that are generated

    @property
    def state_share(self) -> float:
        """Bytes of optimizer state per byte of trainable weight (float32 where 8-bit)."""
        name = self.optim.lower()
        if "8bit" in name:
            return 0.5 if "lion" not in name else 0.25  # one byte per state
        return next((share for kind, share in STATES.items() if kind in name), 2.0)


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
