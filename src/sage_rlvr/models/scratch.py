"""A small model from scratch: a Qwen2 over characters, for worlds that fit on a laptop (the demo, the mini study, tests)."""

from pathlib import Path
from typing import Any

from sage_rlvr.models.folders import whole_folder

SPECIAL = ("<pad>", "<eos>", "<unk>")


def character_tokenizer(characters: str) -> Any:
    """One token per character; what is not among them has none. No BOS, pads on the left.

    It is Qwen2's own class, whose rules are byte-level and spell a space Ġ: AutoTokenizer reads the folder of a Qwen2 by those
    rules, whatever class its files name, and a space that is spelled as a space would then be lost.
    """
    from transformers import Qwen2Tokenizer

    tokens = [*SPECIAL, *(c.replace(" ", "Ġ") for c in dict.fromkeys(characters))]
    pad, eos, unk = SPECIAL
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return Qwen2Tokenizer(vocab=vocabulary, merges=[], pad_token=pad, eos_token=eos, unk_token=unk, padding_side="left")


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
