"""What the tests ask of engines, and what transformers says of what they drew."""

import torch

from sage_rlvr.evaluate.sampling import Request, Sampling, truncated
from sage_rlvr.models import load_tokenizer

PROMPTS = ("1+2=", "30+4= so", "abc abc abc a")
WIDTH = 256  # four heads of 64, of keys two: vLLM has no CPU kernel for heads of 8
PLAIN = Sampling(temperature=1.0, min_p=0.0)


def requests(base, count, first=0):
    ids = [tuple(load_tokenizer(base)(p)["input_ids"]) for p in PROMPTS]
    return [Request("t", f"p{i % len(ids)}", 0, i, ids[i % len(ids)]) for i in range(first, first + count)]


def run(backend, rows):
    return {g.request: g for batch in backend.generate(iter(rows)) for g in batch}


@torch.no_grad()
def logprob(model, prompt, drawn, how=PLAIN):
    """The sum over what was drawn, of the distribution it was drawn from: the whole text in one pass."""
    logits = model(input_ids=torch.tensor([[*prompt, *drawn]])).logits[0, len(prompt) - 1 : -1]
    return truncated(logits, how)[torch.arange(len(drawn)), drawn].sum().item()


def blocks(gib, cache):
    """As many as a cache of so many GiB has: keys and values of two layers, two heads of 64, four bytes."""
    return int(gib * 2**30) // (cache.block_size * 2 * 2 * 2 * 64 * 4)
