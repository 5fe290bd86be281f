"""A model and a tokenizer small enough to make anew in every test."""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

LTR_BASE = Path(__file__).parent / "ltr-base"  # solves some problems of countdown-ltr (made.json: how it was made)
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,+-*=<>/_SOLUTIN\n"
SPECIAL = ["<pad>", "<eos>", "<unk>"]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def tokenizer(pad: bool = True) -> PreTrainedTokenizerFast:
    """One token a character."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *ALPHABET])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    names = {"eos_token": "<eos>", "unk_token": "<unk>"} | ({"pad_token": "<pad>"} if pad else {})
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def model(seed: int = 0, hidden: int = 32, layers: int = 2) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(SPECIAL) + len(ALPHABET),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.2,  # large enough for logits that differ by more than rounding
    )
    return Qwen2ForCausalLM(config).eval()


def save_base(folder: Path, seed: int = 0, **shape: int) -> Path:
    model(seed, **shape).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def save_broken(folder: Path) -> Path:
    """A model that gives nothing but what is not a number."""
    spoilt = model()
    spoilt.model.norm.weight.data.fill_(float("nan"))
    spoilt.save_pretrained(save_base(folder))
    return folder


def save_adapter(folder: Path, base: Path, seed: int = 1) -> Path:
    """An adapter whose B is not 0, as after training."""
    base_model = Qwen2ForCausalLM.from_pretrained(base)
    adapted = get_peft_model(base_model, LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS, task_type="CAUSAL_LM"))
    torch.manual_seed(seed)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.1)
    adapted.save_pretrained(folder)
    return folder


def logits(m: torch.nn.Module) -> torch.Tensor:
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        return m.eval()(input_ids=ids).logits.float()
