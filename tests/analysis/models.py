"""A tiny model, an adapter on it, and a store of completions it might have written."""

import torch

from sage_rlvr.models import load_tokenizer
from sage_rlvr.tasks import get_format, load_task, render
from tests.analysis.stores import make_store

TASK, FORMAT = "countdown-ltr", "plain"


def problems(n=3):
    return load_task(TASK, limit=n, split="test")


def make_samples(base, n=3, each=4, seed=0):
    """Random tokens of several lengths, some with EOS at the end; the tokenizer is read from disk, as eval reads it."""
    g, tokenizer, out = torch.Generator().manual_seed(seed), load_tokenizer(base), []
    for problem in problems(n):
        for index in range(each):
            size = int(torch.randint(1, 30, (1,), generator=g))
            ids = torch.randint(3, len(tokenizer), (size,), generator=g).tolist() + [1] * (index % 2)
            text = tokenizer.decode(ids, skip_special_tokens=True)
            out.append((TASK, problem.id, 0, index, text, float(index % 2), tuple(ids)))
    return out


def make_run(folder, base, samples, adapter=None):
    settings = {"model": str(base), "adapter": str(adapter) if adapter else None, "prompt_format": FORMAT}
    return make_store(folder, samples, settings)


def prompt_ids(problem_id, tokenizer):
    problem = next(p for p in problems() if p.id == problem_id)
    return tokenizer(render(problem, get_format(FORMAT), tokenizer), add_special_tokens=False)["input_ids"]


@torch.no_grad()
def full_logits(model, prompt, completion):
    """(T, V) float64 log-probs of one text alone, no batch and no padding: the independent computation."""
    out = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0].double()
    return torch.log_softmax(out[len(prompt) - 1 : -1], dim=-1)
