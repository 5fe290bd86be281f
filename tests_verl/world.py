"""A model of two layers, its tokenizer, a dataset and verl's own config for them."""

from pathlib import Path

import pandas as pd
from hydra import compose, initialize_config_module
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCAB = 64


def make_model(folder: Path, seed: int = 0) -> Path:
    import torch

    torch.manual_seed(seed)
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, VOCAB)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.35,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_data(path: Path, rows: int = 32) -> Path:
    frame = [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": f"w{3 + i % 50} w{5 + i % 40}"}],
            "reward_model": {"style": "rule", "ground_truth": str(i % 2)},
            "extra_info": {"index": i},
        }
        for i in range(rows)
    ]
    pd.DataFrame(frame).to_parquet(path)
    return path


def make_config(model: Path, data: Path, out: Path, *overrides: str, mode: str = "sage_sync"):
    """verl's ppo_trainer config for the tiny model: FSDP2 in float32 on the CPU, two steps, four prompts × four."""
    base = [
        f"trainer.v1.trainer_mode={mode}", "trainer.device=cpu", "trainer.nnodes=1", "trainer.n_gpus_per_node=2",
        "trainer.logger=[console]", "trainer.val_before_train=False", "trainer.total_training_steps=2",
        "trainer.save_freq=-1", f"trainer.default_local_dir={out}", "trainer.resume_mode=disable",
        f"data.train_files={data}", f"data.val_files={data}", "data.train_batch_size=4", "data.max_prompt_length=8",
        "data.max_response_length=12", "data.dataloader_num_workers=0", "data.shuffle=False", "data.seed=1",
        "data.filter_overlong_prompts=False",
        f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2", "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.use_torch_compile=False", "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        "actor_rollout_ref.actor.fsdp_config.dtype=float32", "actor_rollout_ref.actor.fsdp_config.model_dtype=float32",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}",
        "actor_rollout_ref.ref.strategy=fsdp2", "actor_rollout_ref.ref.use_torch_compile=False",
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile=False",
        "actor_rollout_ref.ref.fsdp_config.dtype=float32", "actor_rollout_ref.ref.fsdp_config.model_dtype=float32",
        "+actor_rollout_ref.ref.fsdp_config.mixed_precision={param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4", "actor_rollout_ref.rollout.temperature=1.0",
        "algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.05", "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
        "transfer_queue.enable=True", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "trainer.total_epochs=1", "actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.n_gpus_per_node=1",
    ]  # fmt: skip
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[*base, *overrides])
