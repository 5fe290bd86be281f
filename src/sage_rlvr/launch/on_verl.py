"""A recipe in verl 0.9.1's words: the overrides that ask verl for the same run, or a sentence that names what verl has not.

verl lives in a Python of its own. Nothing here imports it; ``integrations/verl/options.py``, which reads what is written here on
verl's side, is asked first.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import ModelConfig

from sage_rlvr.errors import UserError
from sage_rlvr.integrations.verl import ESTIMATOR, MODE
from sage_rlvr.integrations.verl import reward as reward_file
from sage_rlvr.integrations.verl.options import OURS, read_options
from sage_rlvr.launch import data
from sage_rlvr.launch.run import FREE, RunArguments
from sage_rlvr.models import load_tokenizer
from sage_rlvr.tasks import chat_template, get_format, rows
from sage_rlvr.train.config import SAGEConfig

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
LOSSES = {"grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm", "dapo": "token-mean"}
SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "cosine": "cosine"}
IN_VERL = {"k3": "low_var_kl", "k2": "mse"}
MEASURED = ("held_out", "eval_dataset")  # while training: nothing does that on verl
FP32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}

# fields that are read below, or that change no weights here; of any other the default is asked for
READ = """
task rows prompt_format data_dir decontaminate within_reach sft
per_device_train_batch_size gradient_accumulation_steps steps_per_generation generation_batch_size num_generations num_iterations
max_completion_length max_steps num_train_epochs temperature top_p top_k min_p learning_rate lr_scheduler_type warmup_steps optim
weight_decay adam_beta1 adam_beta2 max_grad_norm epsilon epsilon_high loss_type scale_rewards beta use_bias_correction_kl
anchor_estimator guide guide_args guide_hold guide_center advantage advantage_args seed bf16 gradient_checkpointing
gradient_checkpointing_kwargs tokens_per_microbatch use_vllm vllm_mode shuffle_dataset vllm_importance_sampling_correction
vllm_importance_sampling_mode vllm_importance_sampling_clip_max trust_remote_code stop_strings skip_zero_advantage fused_head
use_cpu average_tokens_across_devices
model_name_or_path dtype attn_implementation use_peft lora_r lora_alpha lora_dropout lora_target_modules
"""


def check(run: RunArguments, args: SAGEConfig, model_args: ModelConfig) -> None:
    """Refuses what verl cannot do as the recipe says it."""
    if reasons := list(_refusals(run, args, model_args)):
        raise UserError(f"verl cannot run this: {'. '.join(reasons)}.")
    try:
        read_options(_nested(overrides(run, args, model_args, Path(), "model", prompt_tokens=1, gpus=1)))
    except UserError as e:
        raise UserError(f"verl cannot run this: {e}") from e


def _refusals(run: RunArguments, args: SAGEConfig, model_args: ModelConfig) -> Iterator[str]:
    default = RunArguments(), SAGEConfig(output_dir="", use_cpu=True, bf16=False, report_to="none"), ModelConfig()
    for given, usual in zip((run, args, model_args), default):
        for name in sorted({f.name for f in fields(given)} - set(READ.split())):
            if getattr(given, name) != getattr(usual, name) and (name in MEASURED or not FREE.match(name)):
                yield f"{name}={getattr(given, name)!r} has no counterpart in verl; leave it out"
    schedule, optimizer = _text(args.lr_scheduler_type), _text(args.optim)
    if args.max_steps <= 0:
        yield "max_steps is not set, and a run there is as long as its steps; set it"
    if (completions := _completions(args)) % args.num_generations:
        yield (
            f"an optimizer step of {completions} completions holds a part of a group of {args.num_generations}; set "
            "per_device_train_batch_size to a multiple of num_generations"
        )
    if args.steps_per_generation != args.gradient_accumulation_steps or args.num_iterations != 1:
        yield "a rollout batch is used for several optimizer steps; set num_iterations to 1 and leave steps_per_generation out"
    if schedule not in SCHEDULES:
        yield f"lr_scheduler_type={schedule!r}; verl has {', '.join(SCHEDULES)}"
    if not optimizer.startswith("adamw_torch"):
        yield f"optim={optimizer!r}; set it to adamw_torch"
    if args.loss_type not in LOSSES:
        yield f"loss_type={args.loss_type!r}; verl has {', '.join(LOSSES)}"
    if args.scale_rewards not in ("group", "none"):
        yield f"scale_rewards={args.scale_rewards!r}; verl has group and none"
    if args.min_p:
        yield f"min_p={args.min_p}; set it to null"
    if (
        args.use_vllm
        and args.vllm_importance_sampling_correction
        and args.vllm_importance_sampling_mode != "token_truncate"
    ):
        yield f"vllm_importance_sampling_mode={args.vllm_importance_sampling_mode!r}; verl has token_truncate"
    if model_args.use_peft and model_args.lora_dropout:
        yield f"lora_dropout={model_args.lora_dropout}; set it to 0"
    fmt = get_format(run.prompt_format)
    if args.stop_strings or (args.stop_strings is None and fmt.stop):
        yield f"prompt_format {fmt.name!r} ends completions at a string, and verl ends them at tokens; take boxed"
    if fmt.fallback:
        yield (
            f"prompt_format {fmt.name!r} reads unmarked answers, and verl does not tell a reward which completions were cut; "
            "take boxed"
        )


def _completions(args: SAGEConfig) -> int:
    """Of an optimizer step."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))


# ---- what verl is told -------------------------------------------------------------------------------------------


def words(settings: Mapping[str, Any]) -> list[str]:
    """As ``python -m verl.trainer.main_ppo`` is called with them."""
    return [f"{name}={_word(value)}" for name, value in settings.items()]


def overrides(
    run: RunArguments,
    args: SAGEConfig,
    model_args: ModelConfig,
    folder: Path,
    start: str,
    prompt_tokens: int,
    gpus: int,
) -> dict[str, Any]:
    """verl's settings. ``start``: the model's folder; ``folder``: where ``write_inputs`` wrote, and verl's checkpoints are;
    ``prompt_tokens``: of the longest prompt."""
    completions = _completions(args)
    prompts, warmup = completions // args.num_generations, args.warmup_steps
    attention = model_args.attn_implementation or "sdpa"  # flash_attention_2 is a package of its own
    return {
        "trainer.v1.trainer_mode": MODE, "trainer.nnodes": 1, "trainer.n_gpus_per_node": gpus,
        "hydra.run.dir": str(folder / "hydra"), "trainer.default_local_dir": str(folder), "trainer.resume_mode": "auto",
        "trainer.logger": ["console", "file"],
        "trainer.val_before_train": False, "trainer.test_freq": -1, "trainer.total_training_steps": args.max_steps,
        "trainer.total_epochs": args.max_steps,  # more than enough: the steps decide
        "trainer.save_freq": int(args.save_steps) if _text(args.save_strategy) == "steps" else args.max_steps,
        "trainer.max_actor_ckpt_to_keep": args.save_total_limit,
        "data.train_files": str(folder / "train.parquet"), "data.val_files": str(folder / "train.parquet"),
        "data.train_batch_size": prompts, "data.shuffle": args.shuffle_dataset, "data.seed": args.seed,
        "data.max_prompt_length": prompt_tokens, "data.max_response_length": args.max_completion_length,
        "data.trust_remote_code": args.trust_remote_code,
        "reward.custom_reward_function.path": reward_file.__file__,
        f"{MODEL}.path": start, f"{MODEL}.tokenizer_path": str(folder / "tokenizer"),
        f"{MODEL}.trust_remote_code": args.trust_remote_code,
        f"{MODEL}.enable_gradient_checkpointing": args.gradient_checkpointing,
        f"{MODEL}.use_remove_padding": attention == "flash_attention_2",
        f"+{MODEL}.override_config.attn_implementation": attention,
        **(_lora(model_args) if model_args.use_peft else {f"{ROLLOUT}.load_format": "auto"}),
        f"{ACTOR}.strategy": "fsdp2", "actor_rollout_ref.ref.strategy": "fsdp2",
        f"{ACTOR}.fsdp_config.seed": args.seed,
        **_precision(args, model_args),
        f"{ACTOR}.ppo_mini_batch_size": prompts, f"{ACTOR}.ppo_epochs": 1,
        **_micro_batches(args, prompt_tokens + args.max_completion_length, completions, gpus),
        f"{ACTOR}.optim.lr": args.learning_rate, f"{ACTOR}.optim.weight_decay": args.weight_decay,
        f"{ACTOR}.optim.betas": [args.adam_beta1, args.adam_beta2], f"{ACTOR}.optim.clip_grad": args.max_grad_norm,
        f"{ACTOR}.optim.lr_scheduler_type": SCHEDULES[_text(args.lr_scheduler_type)],
        # a share below 1, as TRL reads it
        f"{ACTOR}.optim.lr_warmup_steps": math.ceil(warmup * args.max_steps) if 0 < warmup < 1 else int(warmup),
        f"{ACTOR}.clip_ratio": args.epsilon, f"{ACTOR}.clip_ratio_low": args.epsilon,
        f"{ACTOR}.clip_ratio_high": args.epsilon if args.epsilon_high is None else args.epsilon_high,
        f"{ACTOR}.clip_ratio_c": 1e9,  # no second clip below 0, as in TRL
        f"{ACTOR}.loss_agg_mode": LOSSES[args.loss_type],
        f"{ACTOR}.loss_scale_factor": args.max_completion_length if args.loss_type == "dr_grpo" else None,
        f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.n": args.num_generations, f"{ROLLOUT}.seed": args.seed,
        f"{ROLLOUT}.temperature": args.temperature, f"{ROLLOUT}.top_p": args.top_p, f"{ROLLOUT}.top_k": args.top_k or -1,
        f"{ROLLOUT}.tensor_model_parallel_size": args.vllm_tensor_parallel_size,
        f"{ROLLOUT}.gpu_memory_utilization": args.vllm_gpu_memory_utilization,
        **_engine(args),
        **_anchor(args),
        **_advantage(args),
    }  # fmt: skip


def _lora(model_args: ModelConfig) -> dict[str, Any]:
    return {
        f"{MODEL}.lora_rank": model_args.lora_r, f"{MODEL}.lora_alpha": model_args.lora_alpha,
        f"{MODEL}.target_modules": model_args.lora_target_modules or "all-linear",
        f"{ROLLOUT}.load_format": "safetensors", f"{ROLLOUT}.layered_summon": True,
    }  # fmt: skip


def _precision(args: SAGEConfig, model_args: ModelConfig) -> dict[str, Any]:
    """Trained weights in the recipe's dtype, those of an adapter in float32; products in bfloat16 with ``bf16``."""
    out: dict[str, Any] = {}
    small = (
        model_args.dtype == "bfloat16" and not model_args.use_peft
    )  # verl has one dtype for adapter and frozen weights
    for engine in (ACTOR, "actor_rollout_ref.ref"):
        out[f"{engine}.fsdp_config.model_dtype"] = "bf16" if small else "fp32"
        if not args.bf16:
            out[f"{engine}.fsdp_config.dtype"] = "float32"
            out[f"+{engine}.fsdp_config.mixed_precision"] = FP32
    return out


def _micro_batches(args: SAGEConfig, row_tokens: int, completions: int, gpus: int) -> dict[str, Any]:
    if tokens := args.tokens_per_microbatch:
        return {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": max(tokens, row_tokens)}
    size = math.gcd(args.per_device_train_batch_size, max(completions // gpus, 1))
    passes = (f"{ACTOR}.ppo", f"{ROLLOUT}.log_prob", "actor_rollout_ref.ref.log_prob")
    return {f"{which}_micro_batch_size_per_gpu": size for which in passes}


def _engine(args: SAGEConfig) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if args.vllm_kv_cache_gib:
        out[f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"] = int(args.vllm_kv_cache_gib * 2**30)
    if args.use_vllm and args.vllm_importance_sampling_correction:
        out["algorithm.rollout_correction.rollout_is"] = "token"
        out["algorithm.rollout_correction.rollout_is_threshold"] = args.vllm_importance_sampling_clip_max
    return out


def _anchor(args: SAGEConfig) -> dict[str, Any]:
    """The KL under verl's own fields, the guide under ours."""
    by_reward = args.anchor_estimator == "k1-reward" and bool(args.beta)
    out: dict[str, Any] = {
        "algorithm.use_kl_in_reward": by_reward, f"{ACTOR}.use_kl_loss": args.beta > 0 and not by_reward,
        f"{ACTOR}.kl_loss_coef": args.beta, f"{ACTOR}.kl_loss_type": IN_VERL.get(args.anchor_estimator, "low_var_kl"),
        "+sage.guide": args.guide, "+sage.seed": args.seed,
    }  # fmt: skip
    if by_reward:
        out |= {"algorithm.kl_penalty": "kl", "algorithm.kl_ctrl.kl_coef": args.beta}
    if args.anchor_estimator in OURS and args.beta:
        out["+sage.estimator"] = args.anchor_estimator
    if args.guide != "none":
        out |= {"+sage.hold": args.guide_hold, "+sage.center": args.guide_center}
        if args.guide_args:
            out["+sage.guide_args"] = args.guide_args
    return out


def _advantage(args: SAGEConfig) -> dict[str, Any]:
    out: dict[str, Any] = {"algorithm.norm_adv_by_std_in_grpo": args.scale_rewards == "group"}
    if args.advantage == "group":
        return out | {"algorithm.adv_estimator": "grpo"}
    given: Any = args.advantage_args or {}
    if args.advantage == "alike":
        given = {"beta": args.beta} | given
    elif "alike" in args.advantage:
        given = given | {"alike": {"beta": args.beta} | given.get("alike", {})}
    out |= {"algorithm.adv_estimator": ESTIMATOR, "+sage.advantage": args.advantage}
    if given:
        out["+sage.advantage_args"] = given
    if "answers" in args.make_advantage().needs:
        out["+sage.answer"] = reward_file.ANSWER
    return out


def _word(value: Any) -> str:
    """In Hydra's grammar."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_word(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_word, value)) + "]"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return json.dumps(value)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in settings.items():
        *above, last = name.removeprefix("+").split(".")
        at = out
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
    return out


# ---- what verl reads ---------------------------------------------------------------------------------------------


def write_inputs(run: RunArguments, args: SAGEConfig, start: str, folder: Path) -> int:
    """The training problems as verl's parquet, and the tokenizer with the prompt format in its template; answers the tokens of
    the longest prompt."""
    tokenizer = load_tokenizer(start, trust_remote_code=args.trust_remote_code)
    tokenizer.chat_template = chat_template(tokenizer, run.prompt_format)
    tokenizer.save_pretrained(folder / "tokenizer")
    asked = rows(data.problems(run, data.candidates(run)), run.prompt_format)
    if len(asked) < (prompts := args.generation_batch_size // args.num_generations):
        raise UserError(f"{run.task} has {len(asked)} problems to train on, and a step takes {prompts}: ask for fewer.")
    table = [
        {
            "prompt": row["prompt"],
            "data_source": row["task"],
            "reward_model": {"style": "rule", "ground_truth": row["answer"]},
            "extra_info": {"index": i, "prompt_format": run.prompt_format, "row": json.dumps(row)},
        }
        for i, row in enumerate(asked)
    ]
    Dataset.from_list(table).to_parquet(folder / "train.parquet")
    texts = [tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False) for row in asked]
    return max(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))
