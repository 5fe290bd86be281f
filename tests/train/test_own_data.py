"""``sage-rlvr train --dataset … --reward …``: what a user's function is handed and may answer; every mistake in a sentence."""

import json

import pytest
import yaml

from sage_rlvr import cli
from sage_rlvr.launch import data, run
from sage_rlvr.tasks import TASKS

ROWS = [{"prompt": f"{i} {i % 3}={i + 4}:", "target": i + 4, "tags": ["a", str(i)]} for i in range(1, 9)]
TINY = [
    *(
        "--model",
        "demo-base",
        "--out",
        "out",
        "--guide",
        "none",
        "--beta",
        "0.01",
        "--use_cpu",
        "true",
        "--bf16",
        "false",
    ),
    *("--num_generations", "4", "--per_device_train_batch_size", "8", "--max_tokens", "6", "--max_steps", "2"),
    *("--report_to", "none", "--logging_steps", "1", "--save_steps", "1", "--disable_tqdm", "true"),
]
REWARDS = '''
import json

def correct(completions, target, tags, prompts, **kwargs):
    with open("seen.json", "w") as f:
        json.dump([prompts, completions, target, tags, sorted(kwargs)], f)
    return [float(str(t) in c) for c, t in zip(completions, target)]

async def slow(completions, **kwargs):
    return [float(len(c)) for c in completions]

def sometimes(completions, target, **kwargs):
    return [None if t % 2 else 1.0 for t in target]

def odd(completions, target, prompts, trainer_state, **kwargs):
    if trainer_state.max_steps:  # a step; a held-out measurement has no trainer's state
        with open("trained.txt", "a") as f:
            f.writelines(p + "\\n" for p in prompts)
    return [1.0 if t % 2 else 0.5 for t in target]

def fails_held_out(completions, trainer_state, **kwargs):
    return [1.0] * len(completions) if trainer_state.max_steps else [1 / 0]

def chat(completions, **kwargs):
    return [float(len(c[0]["content"]) % 2) for c in completions]

def nothing(completions, **kwargs):
    return [float("nan")] * len(completions)

def narrow(completions, target):
    return [0.0] * len(completions)

def asks(completions, goal, **kwargs):
    return [0.0] * len(completions)

LIMIT = 3
'''  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = dict(TASKS)
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "broken.py").write_text("import json\nx = 1 / 0\n")
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    yield tmp_path
    TASKS.clear()
    TASKS.update(before)


def train(*argv):
    return cli.main(["train", *TINY, "--dataset", "data.jsonl", *argv])


def test_several_rewards_with_weights_one_of_them_async(place, capsys):
    """The functions get TRL's arguments and every column; what they answer is weighted; a changed file is noticed at resume."""
    names = ("rewards.py:correct", "rewards.py:slow", "rewards.py:sometimes")
    argv = ("--reward", *names, "--reward_weights", "1", "0.25", "0")
    assert train(*argv) == 0
    said = capsys.readouterr().out
    assert "data: data.jsonl, 8 rows; prompts as they are; reward: rewards.py:correct, rewards.py:slow, " in said
    assert "decontamination: off for your own data" in said
    prompts, completions, target, tags, more = json.loads((place / "seen.json").read_text())
    by_prompt = {row["prompt"]: row for row in ROWS}
    assert [(by_prompt[p]["target"], by_prompt[p]["tags"]) for p in prompts] == list(zip(target, tags))
    assert len(completions) == 8
    assert all(isinstance(text, str) for text in completions)
    assert {"completion_ids", "trainer_state", "log_extra", "log_metric", "problem", "task"} <= set(more)
    logged = [json.loads(line) for line in (place / "out" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in logged if "rewards/slow/mean" in line]
    assert len(steps) == 2
    for step in steps:
        both = step["rewards/correct/mean"], step["rewards/slow/mean"]
        assert step["reward"] == pytest.approx(both[0] + 0.25 * both[1], abs=1e-5)
        assert step["rewards/sometimes/mean"] == 1, "None is left out of the mean"
    card = (place / "out" / "README.md").read_text()
    assert "`data.jsonl`, 8 rows (sha256" in card
    assert "`rewards.py:slow` (sha256" in card
    assert train(*argv) == 0
    assert "is finished" in capsys.readouterr().out
    record = json.loads((place / "out" / "run.json").read_text())
    assert record["settings"]["dataset"] == "data.jsonl"
    (place / "rewards.py").write_text(REWARDS + "\n# another\n")
    assert train(*argv) == 0
    assert (
        "rewards.py:correct, rewards.py:slow, rewards.py:sometimes has changed since out was begun"
        in capsys.readouterr().out
    )
    (place / "data.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    assert train(*argv) == 2
    assert "the data have changed since out was begun: use another" in capsys.readouterr().err


def test_messages_are_a_conversation_and_a_recipe_names_both(place, capsys):
    rows = [{"prompt": [{"role": "user", "content": row["prompt"]}], "target": 3} for row in ROWS]
    (place / "chat.json").write_text(json.dumps(rows))
    (place / "mine.yaml").write_text(yaml.safe_dump({"dataset": "chat.json", "reward": "rewards.py:chat"}))
    assert cli.main(["train", "--config", "mine.yaml", *TINY, "--max_steps", "1"]) == 0
    assert "data: chat.json, 8 rows; prompts as they are; reward: rewards.py:chat" in capsys.readouterr().out


def test_without_a_reward_the_answer_column_is_judged(place, capsys):
    lines = [{"question": f"{i}+{i}=", "solution": f"#### {2 * i}"} for i in range(1, 9)]
    (place / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (place / "find.py").write_text("def last(text):\n    return text[-1:] or None\n")
    assert train("--prompt_format", "plain", "--extract", "find.py:last", "--max_steps", "1") == 0
    assert "reward: 'solution' judged by Math-Verify" in capsys.readouterr().out
    settings, args, _ = run.parse([*TINY, "--dataset", "data.jsonl", "--extract", "find.py:last"])
    assert settings.prompt_format == "boxed"
    reward = data.rewards(settings, args)
    assert reward(["it is 4", "it is 5", ""], answer=["4", "4", "4"]) == [1.0, 0.0, 0.0]
    settings.extract = "any"
    assert data.rewards(settings, args)(["the answer is 4"], answer=["4"]) == [1.0]
    settings.extract = "marked"
    assert data.rewards(settings, args)(["the answer is 4", "\\boxed{4}"], answer=["4", "4"]) == [0.0, 1.0]


def test_a_reward_of_nan_stops_with_the_row_it_was_for(place, capsys):
    assert train("--reward", "rewards.py:nothing") == 2
    said = capsys.readouterr().err
    assert "the reward function 'nothing' returned nan for completion 0 of 8 (data.jsonl:" in said
    assert "return a finite number, or None" in said
    assert "Traceback" not in said


def test_held_out_rows_are_measured_and_never_trained_on(place, capsys):
    """The reward of a row is known, so pass@1 is: the share of held-out rows whose reward reaches ``correct_at``."""
    argv = ("--reward", "rewards.py:odd", "--holdout", "3", "--held_out_every", "2", "--held_out_n", "2")
    assert train(*argv, "--disable_tqdm", "false", "--num_train_epochs", "4", "--max_steps", "4") == 0
    said = capsys.readouterr().out
    assert "data: data.jsonl, 5 rows;" in said
    assert "held out: 3 rows of data.jsonl, not trained on; pass@1 and pass@2 every 2 steps; right: reward ≥ 1" in said
    held = {p.meta["_columns"]["prompt"]: p for p in TASKS["data.jsonl"].generate(99, 0, "test")}
    trained = set((place / "trained.txt").read_text().splitlines())
    assert len(held) == 3
    assert trained == {row["prompt"] for row in ROWS} - set(held)
    share = sum(row["target"] % 2 for row in ROWS if row["prompt"] in held) / 3
    logged = map(json.loads, (place / "out" / "log.jsonl").read_text().splitlines())
    measured = {e["step"]: e["held_out/data.jsonl/pass@2"] for e in logged if "held_out/data.jsonl/pass@2" in e}
    assert measured == {step: pytest.approx(share) for step in (0, 2, 4)}
    assert f"4/4  held out data.jsonl  pass@1 {share:.3f}  pass@2 {share:.3f}" in said
    assert train(*argv, "--max_steps", "4", "--holdout", "2") == 2
    assert "out was made with holdout=3 and this run has 2" in capsys.readouterr().err


def test_a_file_of_its_own_is_held_out_and_a_reward_that_fails_there_is_one_sentence(place, capsys):
    """Messages beside text; a file of the same name; a lower ``correct_at``."""
    (place / "test").mkdir()
    rows = [{"prompt": [{"role": "user", "content": "1 1=2:"}], "target": t} for t in (1, 2)]
    (place / "test" / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = ("--eval_dataset", "test/data.jsonl", "--held_out_n", "2", "--max_steps", "1")
    assert train("--reward", "rewards.py:odd", *held, "--correct_at", "0.5") == 0
    assert "held out: 2 rows of test/data.jsonl; pass@1 and pass@2 every 50 steps; right: reward ≥ 0.5" in (
        capsys.readouterr().out
    )
    assert '"held_out/test/data.jsonl/pass@1": 1.0' in (place / "out" / "log.jsonl").read_text()
    assert train("--reward", "rewards.py:fails_held_out", *held, "--out", "other") == 2
    said = capsys.readouterr().err
    assert "the reward function 'fails_held_out' raised ZeroDivisionError: division by zero (rewards.py, line" in said
    assert "no step was finished, so there is nothing to save" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["--reward", "rewards.py:chat", "--holdout", "8"],
            "--holdout 8 leaves no row of data.jsonl to train on, it has 8",
        ),
        (
            ["--reward", "rewards.py:chat", "--eval_dataset", "data.jsonl"],
            "is what the run trains on: give other rows, or --holdout",
        ),
        (
            ["--reward", "rewards.py:chat", "--eval_dataset", "dat.jsonl"],
            "--eval_dataset dat.jsonl: there is no such file; did you",
        ),
        (
            ["--holdout", "2", "--eval_dataset", "b.jsonl"],
            "--eval_dataset and --holdout both say which rows are held out",
        ),
        (["--reward", "rewards.py:chat", "--reward_weights", "nan"], "--reward_weights must be finite numbers"),
        (["--task", "gsm8k"], "--task gsm8k and --dataset data.jsonl both say what to train on: keep one"),
        (["--reward", "reward.py:correct"], "there is no file reward.py; did you mean rewards.py?"),
        (["--reward", "rewards.py:corect"], "'corect' is not there; rewards.py has correct."),
        (["--reward", "rewards.py:LIMIT"], "'LIMIT' is not a function; rewards.py has"),
        (["--reward", "rewards"], "write file.py:function or package.module:function"),
        (["--reward", "no.such:f"], "Python finds no module 'no.such'"),
        (["--reward", "broken.py:f"], "broken.py cannot be imported (ZeroDivisionError: division by zero, line 2)"),
        (["--reward", "rewards.py:narrow"], "write def narrow(completions, target, **kwargs)"),
        (
            ["--reward", "rewards.py:asks"],
            "asks for 'goal', which is no column of data.jsonl; it has answer, prompt, tags, target",
        ),
        (["--reward", "rewards.py:chat", "--reward_weights", "1", "2"], "2 numbers and there are 1 rewards"),
        (
            ["--reward", "rewards.py:chat", "--advantage", "coverage"],
            "add --extract marked, --extract any or --extract file",
        ),
        ([], "no column 'answer' or 'solution', it has prompt, target, tags"),
        (["--answer_column", "target", "--extract", "all"], "--extract all: write marked, any, or file.py:function"),
        (["--reward", "rewards.py:chat", "--prompt_column", "promt"], "write --prompt_column prompt"),
        (["--reward", "rewards.py:chat", "--split", "test"], "--split test is for a Hub id or a folder"),
        (["--reward", "rewards.py:slow", "--random_reward", "0.5"], "one reward that is not async"),
    ],
)
def test_a_mistake_is_one_sentence(place, capsys, argv, sentence):
    assert train(*argv) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert sentence in said[-1]


def test_flags_win_over_a_recipe(place):
    (place / "task.yaml").write_text("task: gsm8k\nprompt_format: boxed\n")
    (place / "data.yaml").write_text("dataset: data.jsonl\nreward: rewards.py:chat\nsplit: null\n")
    settings, *_ = run.parse(["--config", "task.yaml", *TINY, "--dataset", "data.jsonl", "--reward", "rewards.py:chat"])
    assert (settings.task, settings.prompt_format) == ("data.jsonl", "boxed")
    settings, *_ = run.parse(["--config", "data.yaml", *TINY, "--task", "countdown-ltr"])
    assert (settings.task, settings.dataset, settings.reward) == ("countdown-ltr", None, ["rewards.py:chat"])


@pytest.mark.parametrize(("asked", "fetched"), [(None, set()), (True, {"aime24", "math500"})])
def test_benchmarks_are_fetched_only_where_that_was_asked_for(place, monkeypatch, capsys, asked, fetched):
    """What the Hub's library is asked for while it may go online; offline it answers from its cache, here from nothing."""
    import datasets
    import huggingface_hub.constants as hub

    online = []

    def load(name, *args, **kwargs):
        if not datasets.config.HF_HUB_OFFLINE:
            online.append(name)
        raise ConnectionError("not in the cache")

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # there seems to be a way out
    (place / "mine").mkdir()
    (place / "mine" / "gsm8k_train.jsonl").write_text(
        json.dumps({"question": "what is 1 and 1", "answer": "#### 2"}) + "\n"
    )
    settings = run.RunArguments(task="gsm8k", data_dir="mine", decontaminate=asked)
    assert len(data.candidates(settings)) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("decontamination")]
    assert len(said) == 1
    assert "not compared with math500" in said[0]
    hubs = {name: TASKS[name].hub for name in ("aime24", "math500")}
    assert {name for name, hub_id in hubs.items() if hub_id in online} == fetched
    assert not (asked is None and online)
    assert data.candidates(run.RunArguments(task="countdown-ltr", rows=2)), "made here: nothing to compare"
    assert "decontamination" not in capsys.readouterr().out
