"""A small model from scratch: a Qwen2 over characters, for worlds that fit on a laptop (the demo, the mini study, tests)."""

from pathlib import Path
from typing import Any

from sage_rlvr.models.folders import whole_folder

SPECIAL = ("<pad>", "<eos>", "<unk>")


def character_tokenizer(characters: str) -> Any:
    """One token per character; anything else is <unk>. No BOS, pads on the left."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *dict.fromkeys(characters)])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    pad, eos, unk = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=pad, eos_token=eos, unk_token=unk, padding_side="left"
    )


def scratch_model(
    folder: str | Path,
    characters: str,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    length: int = 64,
    dropout: float = 0.0,
    seed: int = 0,
) -> Path:
    """Random weights and tokenizer, saved whole; a folder that is there already is left as it is.

    ``dropout``: of attention weights, in training; RL leaves it out with ``disable_dropout: true``.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = Path(folder)
    if (folder / "config.json").is_file():
        return folder
    tokenizer = character_tokenizer(characters)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=length,
        attention_dropout=dropout,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    with whole_folder(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
    return folder
