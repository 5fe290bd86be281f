"""Verdicts of whole tensors against the task's own scorer."""

import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.errors import UserError
from sage_rlvr.models.scratch import character_tokenizer
from sage_rlvr.stacked.world import FORMAT, World
from sage_rlvr.tasks import Problem, task_reward
from sage_rlvr.tasks.countdown import HARD, LTR, generate_hard, generate_ltr, solutions

ALPHABET = "0123456789+-*=: "
LONGEST = 18


@pytest.fixture(scope="module", params=[HARD, LTR])
def made(request):
    problems = (generate_hard if request.param == HARD else generate_ltr)(12, seed=3)
    world = World(request.param, character_tokenizer(ALPHABET), "cpu")
    return world, world.problems(problems)


def rows(world, texts, ends=True):
    """(1, len(texts), T) ids of the texts, with their end if they are to have one."""
    out = torch.full((len(texts), LONGEST), world.pad)
    for row, text in zip(out, texts):
        ids = [world.tokenizer.convert_tokens_to_ids(c.replace(" ", "Ġ")) for c in text] + [world.end] * ends
        row[: len(ids)] = torch.tensor(ids[:LONGEST])
    return out[None]


def scorers(world, problems, which, texts, ended=True):
    reward = task_reward(world.task, FORMAT)
    gold = problems.all[which].answer
    verdicts = reward(completions=texts, answer=[gold] * len(texts), truncated=[not ended] * len(texts))
    return [bool(v) for v in verdicts]


def spoilt(rng, answer):
    """An answer with a character put in, taken out or changed; sometimes as it is."""
    at, c = rng.randrange(len(answer) + 1), rng.choice(ALPHABET)
    return rng.choice(
        [answer, answer[:at] + c + answer[at:], answer[:at] + answer[at + 1 :], answer[:at] + c + answer[at + 1 :]]
    )


def test_right_answers_and_near_ones_are_judged_as_the_scorer_judges(made):
    world, problems = made
    rng, good = random.Random(1), 0
    for which, problem in enumerate(problems.all):
        right = solutions(problem.meta["numbers"], problem.meta["target"])
        texts = [text for text in (spoilt(rng, rng.choice(right)) for _ in range(150)) if len(text) < LONGEST]
        verdicts = world.right(problems, torch.tensor([which]), rows(world, texts))[0].tolist()
        assert verdicts == scorers(world, problems, which, texts)
        good += sum(verdicts)
    assert good > 200


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(ALPHABET, max_size=LONGEST - 1), min_size=1, max_size=30), which=st.integers(0, 11))
def test_any_text_is_judged_as_the_scorer_judges(made, texts, which):
    world, problems = made
    assert world.right(problems, torch.tensor([which]), rows(world, texts))[0].tolist() == scorers(
        world, problems, which, texts
    )


def test_an_answer_that_was_cut_off_is_judged_by_the_scorers_rule(made):
    world, problems = made
    numbers, target = problems.all[0].meta["numbers"], problems.all[0].meta["target"]
    text = solutions(numbers, target)[0]
    ids = rows(world, [text])[..., : len(text)]
    assert (ids != world.end).all()
    assert world.right(problems, torch.tensor([0]), ids)[0].tolist() == scorers(world, problems, 0, [text], ended=False)


def test_nothing_but_the_end_is_wrong(made):
    world, problems = made
    assert world.right(problems, torch.tensor([0]), rows(world, [""]))[0].tolist() == [False]


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ([20, 20], ["25-20", "20-25", "5"]),  # two numbers that make 5, but not 20 twice
        ([2, 3, 5], ["2+3", "5", "2+3+5-5", "3+2*5", "2*5-3-2", "003+02*1"]),  # not all of them, or one twice
    ],
)
def test_what_does_not_use_every_number_once_is_wrong(made, numbers, texts):
    world, _ = made
    gold = {"numbers": numbers, "target": 5}
    problems = world.problems([Problem("p", world.task, f"{numbers} to 5", json.dumps(gold), gold)])
    assert world.right(problems, torch.tensor([0]), rows(world, texts))[0].tolist() == [False] * len(texts)
    assert scorers(world, problems, 0, texts) == [False] * len(texts)


def test_zeros_in_front_of_a_number_change_nothing(made):
    world, _ = made
    gold = {"numbers": [2, 3], "target": 5}
    problems = world.problems([Problem("p", world.task, "2 3 to 5", json.dumps(gold), gold)])
    texts = ["02+3", "2+003", "0+2+3"]
    verdicts = world.right(problems, torch.tensor([0]), rows(world, texts))[0].tolist()
    assert verdicts == scorers(world, problems, 0, texts) == [True, True, False]


def test_solutions_are_told_apart_for_right_answers_alone(made):
    world, problems = made
    problem = next(p for p in problems.all if len(solutions(p.meta["numbers"], p.meta["target"])) > 1)
    one, two = solutions(problem.meta["numbers"], problem.meta["target"])[:2]
    ids = rows(world, [one, one, two, "1+1"])[0]
    keys = world.keys(ids, torch.tensor([True, True, True, False]))
    reward = task_reward(world.task, FORMAT)
    assert keys == [reward.key(one), reward.key(one), reward.key(two), None]


def test_another_task_is_one_sentence():
    with pytest.raises(UserError, match="leave --engine out"):
        World("gsm8k", character_tokenizer(ALPHABET), "cpu")


@pytest.mark.parametrize("alphabet", [ALPHABET, "0123456789+-*=:"], ids=["with spaces", "without"])
def test_rows_are_the_tokenizers(alphabet):
    """Also where it drops a character, as the bases of older studies do with spaces."""
    tokenizer = character_tokenizer(alphabet)
    world, rng = World(HARD, tokenizer, "cpu"), random.Random(1)
    texts = ["".join(rng.choices(ALPHABET, k=rng.randint(1, 12))) + "=" for _ in range(50)]
    theirs = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    ids, seen = world.left_padded(texts)
    assert (ids == theirs.input_ids).all()
    assert (seen == theirs.attention_mask.bool()).all()
