"""A model small enough for exact questions: a two-layer Qwen2 over characters, and rollouts that are given, not sampled."""

import hashlib
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from sage_rlvr.train import SAGEConfig, SAGETrainer

LETTERS = "0123456789+-*= abcdefghijklmnopqrstuvwxyz<>/SOLUTIN"
TIMES = {"step_time", "time/generate", "time/reward", "time/rollout"}  # logged, and by the clock


def tokenizer():
    vocab = {t: i for i, t in enumerate(["<pad>", "<eos>", "<bos>", *LETTERS])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    from tokenizers import decoders

    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", padding_side="left"
    )


def model(seed=0, width=32, layers=2, spread=0.3):
    """Weights wide enough that entropies range around the guides' thresholds."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer()),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=spread,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    return Qwen2ForCausalLM(config)


def folder(path: Path, seed=0, **kwargs) -> str:
    """The model saved: TRL builds a full-fine-tuning reference from the folder."""
    model(seed, **kwargs).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


def dataset(rows=32):
    return Dataset.from_dict(
        {"prompt": [f"{i}+{i % 7}=" for i in range(rows)], "answer": [str(i + i % 7) for i in range(rows)]}
    )


def given_rollouts(prompts, trainer):
    """Completions as a function of the prompt and the place in its group, however rows lie on processes."""
    tok, out = trainer.processing_class, {"prompt_ids": [], "completion_ids": [], "logprobs": []}
    first = trainer.accelerator.process_index * len(prompts)
    for row, prompt in enumerate(prompts, start=first):
        digest = hashlib.sha256(f"{prompt}|{row % trainer.num_generations}".encode()).digest()
        length = 3 + digest[0] % 8
        ids = [3 + b % len(LETTERS) for b in digest[1 : 1 + length]] + [tok.eos_token_id]
        out["prompt_ids"].append(tok(prompt)["input_ids"])
        out["completion_ids"].append(ids)
        out["logprobs"].append([0.0] * len(ids))
    return out


def hash_reward(completions, **kwargs):
    """Deterministic, uneven within groups, without asking anyone."""
    return [float(hashlib.sha256(c.encode()).digest()[0] % 3 == 0) for c in completions]


def config(cls, out, **kwargs):
    defaults = {
        "output_dir": str(out), "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 16,
        "learning_rate": 1e-2, "max_steps": 2, "logging_steps": 1, "report_to": "none", "save_strategy": "no", "use_cpu": True,
        "bf16": False, "beta": 0.2, "gradient_checkpointing": False, "disable_tqdm": True, "seed": 7,
        "lr_scheduler_type": "constant",
        "temperature": 0.9, "shuffle_dataset": True,
    }  # fmt: skip
    return cls(**(defaults | kwargs))


def build(folder, tmp_path, cls=SAGETrainer, given=True, reward=hash_reward, data=None, **options):
    """A trainer over the folder's model; ``given``: which rollouts it is given, False to sample them."""
    args = config(SAGEConfig, tmp_path, **options)
    rollout = given_rollouts if given is True else given or None
    return cls(folder, reward, args, data or dataset(), rollout_func=rollout)
