"""SFT of a stack: transformers' loss, and what is shown is learned."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from sage_rlvr.models.scratch import character_tokenizer, scratch_model
from sage_rlvr.stacked.model import Stack
from sage_rlvr.stacked.teach import teach
from sage_rlvr.stacked.world import World
from sage_rlvr.tasks.countdown import THREE

ROWS = [
    [{"prompt": f"{i} 2={i + 2}:", "completion": f"{i}+2"} for i in range(9)],
    [{"prompt": "1=1:", "completion": "1-1-1"}] * 9,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = scratch_model(tmp_path_factory.mktemp("scratch") / "m", "0123456789+-*=: ", width=32, layers=2)
    return AutoModelForCausalLM.from_pretrained(folder)


def test_the_first_loss_is_transformers_on_completions(model):
    world, losses = World(THREE, character_tokenizer("0123456789+-*=: "), "cpu"), []
    teach(Stack.of(model, 2), world, ROWS, 1, 9, 1e-3, at=lambda step, now: losses.append(now))
    for run, rows in enumerate(ROWS):
        total, tokens = 0.0, 0
        for row in rows:
            prompt = world.tokenizer(row["prompt"])["input_ids"]
            answer = world.tokenizer(row["completion"])["input_ids"] + [world.end]
            labels = torch.tensor([[-100] * len(prompt) + answer])
            loss = model(input_ids=torch.tensor([prompt + answer]), labels=labels).loss
            total, tokens = total + loss.item() * len(answer), tokens + len(answer)
        assert losses[0][run].item() == pytest.approx(total / tokens, rel=1e-4)


def test_each_run_learns_what_it_is_shown(model):
    world, losses = World(THREE, character_tokenizer("0123456789+-*=: "), "cpu"), []
    teach(Stack.of(model, 2), world, ROWS, 60, 9, 1e-2, at=lambda step, now: losses.append(now))
    assert losses[-1][1] < 0.05, "one answer, always the same"
    assert losses[-1][0] < 0.3 * losses[0][0]
    assert losses[-1][0] > losses[-1][1], "the first run's answers differ"
