"""docs/sessions/five_minutes.md, typed again: its files, its commands, and what it says they print."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from sage_rlvr import cli
from sage_rlvr.tasks import TASKS

from .fences import ROOT, read

LESS = {"40": "2", "8": "2", "20": "2"}  # steps, samples of a problem, steps between measurements


def blocks(page, language):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [fence for fence in read(text, page) if fence.language == language]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = dict(TASKS)
    yield tmp_path
    TASKS.clear()
    TASKS.update(before)


def test_the_session(place, capsys):
    page = "sessions/five_minutes.md"
    (place / "make_data.py").write_text(blocks(page, "python")[0].text)
    (place / "rewards.py").write_text(blocks(page, "python")[1].text)
    typed = [words for fence in blocks(page, "bash") if not fence.needs for words in fence.commands()]
    made, slip, before, trained, after, compared, again = typed
    assert made == ["python", "make_data.py"]
    subprocess.run([sys.executable, *made[1:]], check=True)
    first = (place / "data.jsonl").read_text().splitlines()[0]
    assert json.loads(first) == json.loads(blocks(page, "json")[0].text)
    said_slip, said_run = (fence.text for fence in blocks(page, "text"))

    def run(words):
        assert words[0] == "sage-rlvr"
        return cli.main([LESS.get(word, word) for word in words[1:]])

    assert run(slip) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1] == said_slip
    assert run(before) == 0
    assert "100 problems × 1 seed × n 2" in capsys.readouterr().out
    assert run(trained) == 0
    printed = capsys.readouterr().out
    steps = [line for line in said_run.splitlines() if re.match(r"\d+/40  (reward|held out)", line)]
    assert len(steps) == 7
    assert re.search(r"^2/2  reward \S+  KL \S+  entropy \S+  length \S+", printed, re.M)
    assert re.search(r"^2/2  held out data.jsonl  pass@1 \S+  pass@8 \S+", printed, re.M)
    for line in (line for line in said_run.splitlines() if line not in steps):
        assert line.replace("every 20 steps", "every 2 steps") in printed
    assert (place / "runs" / "mine" / "model.safetensors").is_file()
    assert "`data.jsonl`, 200 rows (sha256" in (place / "runs" / "mine" / "README.md").read_text()
    assert run(after) == 0
    assert run(compared) == 0
    assert "(100 problems)" in capsys.readouterr().out
    assert again == trained
    assert run(again) == 0
    assert "is finished" in capsys.readouterr().out


def test_your_data_shows_what_works(place):
    """The page's reward is right about the page's row, and its recipe's keys are settings."""
    page = "your_data.md"
    scope: dict = {}
    exec(blocks(page, "python")[0].text, scope)
    row = json.loads(blocks(page, "json")[0].text)
    assert scope["correct"](["19", " 19 apples", "20"], answer=[row["answer"]] * 3) == [1.0, 1.0, 0.0]
    (place / "rewards.py").write_text(blocks(page, "python")[0].text + "\n\nshort = correct\n")
    (place / "data.jsonl").write_text(json.dumps(row) + "\n")
    (place / "mine.yaml").write_text(blocks(page, "yaml")[0].text)
    from sage_rlvr.launch.run import parse

    settings, args, _ = parse(["--config", "mine.yaml", "--use_cpu", "true"])
    assert (settings.reward, args.reward_weights) == (["rewards.py:correct", "rewards.py:short"], [1, 0.2])
    for fence in blocks(page, "bash"):
        for words in fence.commands():
            if words[1] != "train":  # tests/docs/test_commands.py reads it
                continue
            flags = [word for word in words[2:] if word != "Qwen/Qwen2.5-0.5B-Instruct"]
            parse(["--model", "demo-base", *(w for w in flags if w != "--model")])
    words = len(re.findall(r"\S+", (ROOT / "docs" / page).read_text(encoding="utf-8")))
    assert words <= 780, f"{words} words"
    assert shlex.split(blocks(page, "bash")[0].text.replace("\\\n", ""))[0] == "sage-rlvr"
