"""Training on what the start model solves now and then: the set against a count by hand, and the whole way from ``eval``."""

import json
from collections import Counter

import pytest

from sage_rlvr import cli
from sage_rlvr.analysis.scoring import Prompts
from sage_rlvr.errors import UserError
from sage_rlvr.launch import data, reach, run
from sage_rlvr.launch.reach import tallies, within_reach
from sage_rlvr.models import load_tokenizer
from sage_rlvr.store import Sample, SampleStore
from sage_rlvr.tasks import load_task, rows

from ..models.tiny import LTR_BASE

TASK = "countdown-ltr"
VERDICTS = {
    0: [0, 0, 1, 0],
    1: [0, 0, 0, 0],
    2: [1, 1, 1, 1],
    3: [1, 0, 1, 1],
    4: [None, 1, 1, 1],
    5: [None, 0, 1, None],
}


def sample(problem, index, verdict, task=TASK):
    return Sample(
        run="base", model="m", task=task, problem=problem, seed=0, index=index, completion="x", tokens=1, finish="stop",
        answer="x", verdict=verdict, reason="", token_ids=[1], logprob=-1.0, solution=None,
    )  # fmt: skip


@pytest.fixture
def problems():
    return load_task(TASK, limit=8)  # the last two were never sampled


@pytest.fixture
def sampled(tmp_path, problems):
    folder = tmp_path / "reach"
    with SampleStore(folder) as store:
        for i, verdicts in VERDICTS.items():
            store.append([sample(problems[i].id, j, v) for j, v in enumerate(verdicts)])
        store.append([sample(problems[6].id, j, v, "another") for j, v in enumerate([0, 1])])
    return folder


def test_some_right_and_some_wrong(sampled, problems, capsys):
    kept = within_reach(problems, sampled)
    assert kept == [problems[i] for i in (0, 3, 5)]
    assert "3 of 6 sampled problems (1 never right, 2 always)" in capsys.readouterr().out


def test_the_file_says_what_the_folder_says(sampled, problems, tmp_path, monkeypatch):
    file = tmp_path / "reach.json"
    counts = {problems[i].id: (sum(v == 1 for v in vs), sum(v is not None for v in vs)) for i, vs in VERDICTS.items()}
    file.write_text(json.dumps({"model": "m", "task": TASK, "problems": counts}))
    assert tallies(file, TASK) == tallies(sampled, TASK) == counts
    assert within_reach(problems, file) == within_reach(problems, sampled)
    monkeypatch.setattr(reach, "SHELF", tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    assert tallies("reach.json", TASK) == tallies(file, TASK), "one that ships with a study, from anywhere"


def test_rows_first_then_reach(sampled):
    asked = run.RunArguments(task=TASK, rows=4, decontaminate=False, within_reach=str(sampled))
    plain = run.RunArguments(task=TASK, rows=4, decontaminate=False)
    everything = data.problems(plain, data.candidates(plain))
    assert data.problems(asked, data.candidates(asked)) == [everything[0], everything[3]]


@pytest.mark.parametrize("text", ["{", "[1, 2]", '{"task": "amc23"', '{"task": "countdown-ltr", "problems": [3]}'])
def test_a_file_of_something_else(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"x.json holds no counts of samples .* name an evaluation's folder"):
        tallies(tmp_path / "x.json", TASK)


def test_nothing_to_learn_from(tmp_path, sampled, problems):
    with pytest.raises(
        UserError, match="of 2 sampled problems of countdown-ltr none is right in some samples and wrong"
    ):
        within_reach(problems[1:3], sampled)
    with pytest.raises(UserError, match="has no samples of amc23: make them with 'sage-rlvr eval"):
        tallies(sampled, "amc23")
    with pytest.raises(UserError, match="nowhere"):
        tallies(tmp_path / "nowhere", TASK)


def test_eval_then_train(tmp_path, monkeypatch, capsys):
    """The two commands of docs/howto/more_training.md, with a model that solves some."""
    monkeypatch.chdir(tmp_path)
    base = str(LTR_BASE)
    sampled = "--limit 16 --n 16 --seeds 1 --temperature 1 --max_tokens 12 --prompt_format symbols --split train"
    command = ["eval", "--model", base, "--tasks", TASK, "--out", "reach", *sampled.split()]
    assert cli.main(command) == 0
    drawn = [row for batch in SampleStore("reach", readonly=True).scan() for row in batch.to_pylist()]
    right = Counter(row["problem"] for row in drawn if row["verdict"] == 1)
    some = {p for p, count in right.items() if count < 16}
    assert 2 <= len(some) < 16
    assert {row["problem"] for row in drawn} == {p.id for p in load_task(TASK, limit=16, split="train")}
    assert trained_on(base, "reach") == some
    prompts = Prompts(SampleStore("reach", readonly=True), load_tokenizer(base))
    assert all(len(prompts(TASK, problem)) > 4 for problem in some), "analyses find them, too"
    assert cli.main([*command, "--split", "test"]) == 2
    assert "split was 'train' and is now 'unset'" in capsys.readouterr().err


def trained_on(base, reach):
    """The problems whose prompts a training of one epoch is given."""
    flags = f"--task {TASK} --rows 16 --decontaminate false --prompt_format symbols --within_reach {reach} --use_cpu --bf16 false"
    batch = "--per_device_train_batch_size 8 --num_generations 8 --report_to none"
    made = run.build(*run.parse(["--model_name_or_path", base, *flags.split(), *batch.split()]), base)
    prompts = [row["prompt"] for row in made.train_dataset]
    return {p.id for p in load_task(TASK, limit=16, split="train") if rows([p], "symbols")[0]["prompt"] in prompts}
