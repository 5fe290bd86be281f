"""The tokenizer of a model from scratch, as AutoTokenizer reads its folder."""

import random

import pytest
from transformers import AutoTokenizer

from sage_rlvr.models.scratch import character_tokenizer, scratch_model

CHARACTERS = "0123456789+-*=: "


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return AutoTokenizer.from_pretrained(
        scratch_model(tmp_path_factory.mktemp("m") / "m", CHARACTERS, width=8, layers=1)
    )


def test_every_character_is_one_token_and_comes_back(saved):
    rng = random.Random(0)
    for tokenizer in (saved, character_tokenizer(CHARACTERS)):
        for _ in range(50):
            text = "".join(rng.choices(CHARACTERS, k=20))
            ids = tokenizer(text)["input_ids"]
            assert len(ids) == 20
            assert tokenizer.decode(ids) == text
        assert len(tokenizer) == len(CHARACTERS) + 3


def test_numbers_are_told_apart_by_their_spaces(saved):
    assert saved("1 12 3=200:")["input_ids"] != saved("11 2 3=200:")["input_ids"]


def test_prompts_are_padded_on_the_left(saved):
    rows = saved(["1=1:", "10 2=12:"], padding=True)
    assert rows["attention_mask"][0] == [0] * 4 + [1] * 4
    assert rows["input_ids"][0][:4] == [saved.pad_token_id] * 4
