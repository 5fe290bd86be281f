"""``sage-rlvr eval --dataset … --reward …``: the user's own rows, judged by the user's own functions or by the answer column."""

import json
import sys

import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sage_rlvr import UserError, cli
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.rewards import BadRewards, OwnReward, RewardFailed, checked

ROWS = [{"prompt": f"{i} {i % 3}={i + 4}:", "target": i + 4, "tags": ["a", str(i)]} for i in range(1, 7)]
REWARDS = """
import json

def correct(completions, target, tags, prompts, completion_ids, trainer_state, log_metric, **kwargs):
    log_metric("seen", float(trainer_state.global_step))
    with open("seen.json", "w") as f:
        json.dump([prompts, target, tags, sorted(kwargs)], f)
    return [len(c) % 2 + 0.2 * (t % 2) for c, t in zip(completions, target)]

async def length(completions, **kwargs):
    return [float(len(c)) for c in completions]

def sometimes(completions, target, **kwargs):
    return [None if t == 6 else 1.0 for t in target]

def broken(completions, **kwargs):
    return [float("nan")] * len(completions)

def narrow(completions):
    return [0.0] * len(completions)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = dict(TASKS)
    (tmp_path / "rewards.py").write_text(REWARDS)
    write(tmp_path, ROWS)
    yield tmp_path
    TASKS.clear()
    TASKS.update(before)


def write(place, rows):
    (place / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def evaluate(*argv, out="out"):
    tiny = ["--model", "demo-base", "--dataset", "data.jsonl", "--max_tokens", "5", "--n", "3", "--out", out]
    return cli.main(["eval", *tiny, *argv])


def samples(folder):
    return pd.read_parquet(folder / "samples").sort_values(["problem", "index"], ignore_index=True)


def test_rewards_with_weights_decide_what_is_right(place, capsys):
    """Every verdict follows from the stored text and its row; the folder is whole, compares, and is held to data and code."""
    argv = (
        "--reward",
        "rewards.py:correct",
        "rewards.py:length",
        "--reward_weights",
        "1",
        "0.1",
        "--correct_at",
        "1.6",
    )
    assert evaluate(*argv) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "6 problems × 1 seed × n 3 = 18 samples" in said
    assert "right: reward ≥ 1.6 (rewards.py:correct + rewards.py:length)" in said
    found = samples(place / "out")
    targets = {f"data.jsonl:{i}": row["target"] for i, row in enumerate(ROWS, 1)}
    totals = [len(c) % 2 + 0.2 * (targets[p] % 2) + 0.1 * len(c) for c, p in zip(found.completion, found.problem)]
    assert found.verdict.tolist() == [float(total >= 1.6 - 1e-6) for total in totals]
    assert 0 < found.verdict.sum() < len(found)
    assert found.reason.tolist() == [f"reward {total:g}" for total in totals]
    prompts, target, tags, more = json.loads((place / "seen.json").read_text())
    by_prompt = {row["prompt"]: row for row in ROWS}
    assert [(by_prompt[p]["target"], by_prompt[p]["tags"]) for p in prompts] == list(zip(target, tags))
    assert {"task", "problem", "truncated", "log_extra"} <= set(more)
    result = json.loads((place / "out" / "results.json").read_text())["tasks"]["data.jsonl"]
    assert result["pass_at"]["1"]["value"] == pytest.approx(found.verdict.mean()), (
        "also of completions that were cut off"
    )

    assert evaluate(*argv) == 0
    assert "out is complete: 18 samples are there" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["compare", "out", "out"]) == 0
    for name, content, sentence in (
        (
            "rewards.py",
            REWARDS + "\n# another\n",
            "the reward has changed since out was begun: give --out another folder",
        ),
        (
            "data.jsonl",
            json.dumps(ROWS[0]) + "\n",
            "the data have changed since out was begun: give --out another folder",
        ),
    ):
        before = (place / name).read_text()
        (place / name).write_text(content)
        assert evaluate(*argv) == 2
        assert sentence in capsys.readouterr().err
        (place / name).write_text(before)
    assert evaluate(*argv[:-2]) == 2
    assert "correct_at was 1.6 and is now 1.0" in capsys.readouterr().err


def test_a_broken_reward_is_a_sentence_and_once_fixed_the_same_command_goes_on(place, capsys):
    assert evaluate("--reward", "rewards.py:broken") == 2
    said = capsys.readouterr().err
    assert "the reward function 'broken' returned nan for completion 0 of 18 (data.jsonl:" in said
    assert said.rstrip().endswith("Fix it and run this again.")
    assert "Traceback" not in said
    (place / "rewards.py").write_text(REWARDS.replace('float("nan")', "1.0"))
    for name in [n for n, m in sys.modules.items() if getattr(m, "__file__", None) == str(place / "rewards.py")]:
        del sys.modules[name]  # the same command is another process
    assert evaluate("--reward", "rewards.py:broken") == 0
    assert set(samples(place / "out").verdict) == {1.0}


def test_none_leaves_the_problem_out(place, capsys):
    """As training does where every reward says None."""
    assert evaluate("--reward", "rewards.py:sometimes", "--extract", "any") == 0
    result = json.loads((place / "out" / "results.json").read_text())["tasks"]["data.jsonl"]
    assert (result["problems"], result["unverifiable"]) == (5, ["data.jsonl:2"])
    assert result["pass_at"]["1"]["value"] == 1.0


def test_without_a_reward_the_answer_column_judges_held_out_rows(place, capsys):
    write(place, [{"question": f"{i}={i}:", "solution": f"so #### {i % 10}"} for i in range(1, 13)])
    (place / "find.py").write_text("def last(text):\n    return text[-1:].strip() or None\n")
    argv = ("--prompt_format", "plain", "--extract", "find.py:last", "--holdout", "4", "--verifier_workers", "1")
    assert evaluate(*argv) == 0
    found = samples(place / "out")
    golds = {f"data.jsonl:{i}": str(i % 10) for i in range(1, 13)}
    assert found.problem.nunique() == 4
    assert found.verdict.tolist() == [float(c[-1:] == golds[p]) for c, p in zip(found.completion, found.problem)]
    (place / "fails.py").write_text("def last(text):\n    return 1 / 0\n")
    assert evaluate(*argv, "--extract", "fails.py:last", out="other") == 2
    assert (
        "--extract fails.py:last raised ZeroDivisionError: division by zero (fails.py, line 2)"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--task", "gsm8k"], "--task gsm8k and --dataset data.jsonl both say what to evaluate on: keep one"),
        (["--reward", "rewards.py:corect"], "'corect' is not there; rewards.py has correct."),
        (["--reward", "rewards.py:narrow"], "write def narrow(completions, **kwargs)"),
        (["--reward", "rewards.py:length", "--reward_weights", "1", "2"], "2 numbers and there are 1 rewards"),
        (["--reward", "rewards.py:length", "--reward_weights", "inf"], "must be finite numbers, and are inf"),
        (["--reward", "rewards.py:length", "--split", "test"], "--split test is for a Hub id or a folder"),
        (
            ["--reward", "rewards.py:length", "--holdout", "6"],
            "--holdout 6 leaves no row of data.jsonl to train on, it has 6",
        ),
        (["--correct_at", "0.5"], "--correct_at says something of --reward, and there is none"),
        ([], "no column 'answer' or 'solution', it has prompt, target, tags"),
        (["--answer_column", "target", "--extract", "all"], "--extract all: write marked, any, or file.py:function"),
    ],
)
def test_a_mistake_is_one_sentence(place, capsys, argv, sentence):
    assert evaluate(*argv) == 2
    assert sentence in capsys.readouterr().err.strip().splitlines()[-1]


numbers = st.floats(-1e3, 1e3, width=32)
patient = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@patient
@given(st.data(), st.integers(1, 3), st.integers(1, 5), numbers)
def test_totals_are_trls_weighted_sum(data, functions, rows, correct_at):
    per_func = data.draw(st.lists(st.lists(st.none() | numbers, min_size=rows, max_size=rows), min_size=functions,
                                  max_size=functions))  # fmt: skip
    weights = data.draw(st.lists(numbers, min_size=functions, max_size=functions))
    judge = OwnReward([], correct_at=correct_at)
    judge.weights = weights
    judge.funcs = [lambda completions, given=given, **kwargs: given for given in per_func]
    totals, verdicts = (call(prompts=[""] * rows, completions=[""] * rows) for call in (judge.totals, judge))
    table = torch.tensor([[torch.nan if r is None else r for r in given] for given in per_func], dtype=torch.float64).T
    expected = (table * torch.tensor(weights, dtype=torch.float64)).nansum(1)
    for row, (total, verdict) in enumerate(zip(totals, verdicts)):
        if table[row].isnan().all():
            assert total is None
            assert verdict is None
        else:
            assert total == pytest.approx(expected[row].item(), abs=1e-6)
            assert verdict == float(total >= correct_at - 1e-6)


@patient
@given(st.one_of(st.none(), st.text(), st.floats(), st.lists(st.none() | st.text() | st.floats() | st.booleans())))
def test_whatever_a_function_returns_is_numbers_or_one_sentence(returned):
    judge = OwnReward([])
    judge.weights, judge.funcs = [1.0], [lambda **kwargs: returned]
    why, totals = None, None
    try:
        totals = judge.totals(prompts=["a", "b"], completions=["c", "d"])
    except RewardFailed as e:
        why = e.why
    if why is None:
        assert totals == [None if v is None else float(v) for v in returned]
    else:
        assert "\n" not in why
        with pytest.raises(BadRewards):
            checked(returned, ["", ""])


def test_a_judge_that_raises_a_users_error_keeps_its_sentence():
    def refuses(**kwargs):
        raise UserError("set KEY first.")

    judge = OwnReward([])
    judge.weights, judge.funcs = [1.0], [refuses]
    with pytest.raises(RewardFailed) as e:
        judge.totals(prompts=[], completions=[])
    assert e.value.why == "the reward function 'refuses' says: set KEY first"
