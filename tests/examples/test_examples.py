"""Every example runs; the pages of commands name what exists; the index is whole."""

import re
import runpy

import pytest
import torch

from sage_rlvr import Signals, cli, make_advantage, make_guide
from sage_rlvr.launch import multi_process
from tests.docs.fences import NEEDS, read
from tests.docs.parsing import check, verb_words
from tests.paths import ROOT

SHELF = ROOT / "examples"
PAGES = sorted(SHELF.glob("*.md"))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs an example as a script, in this process; answers its names and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def one(name):
        space = runpy.run_path(str(SHELF / name), run_name="__main__")
        return space, capsys.readouterr().out

    return one


def test_own_task(run):
    space, out = run("own_task.py")
    assert "10/10  reward" in out
    assert len((SHELF / "own_task.py").read_text().splitlines()) <= 40
    right, gold = ["3+8-1", "8-1+3"], "3 8 1=10"
    wrong = ["3+8", "3+8-2", "3+8-1 ", "", "3*8-1", "8+3+1", "3+8-1-0", "11-1"]
    assert [space["judge"](a, gold) for a in right + wrong] == [1.0] * len(right) + [0.0] * len(wrong)
    made = {split: {p.answer for p in space["problems"](50, 0, split)} for split in ("train", "test")}
    assert not made["train"] & made["test"]


def test_own_guide(run):
    _, out = run("own_guide.py")
    assert "10/10  reward" in out
    h = torch.tensor([[0.1, 2.0, 0.3, 2.5, 2.5], [1.5, 1.5, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    q = make_guide("early-fork", q=1.2, tokens=4)(Signals(logps=-h, ref_logps=-h, mask=mask, entropies=h)).exp()
    assert torch.allclose(q, torch.tensor([[1, 1.2, 1, 1.2, 1], [1.2, 1, 1, 1, 1]]))


def test_own_advantage(run):
    _, out = run("own_advantage.py")
    assert "10/10  reward" in out
    rewards, lengths = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([5, 10, 10, 2])
    found = make_advantage("brief", share=0.2)(rewards, group=4, lengths=lengths)
    paid = torch.tensor([1.1, 1.0, 0.0, 0.0])
    assert torch.allclose(found, (paid - paid.mean()) / (paid.std() + 1e-4))


# ---- the pages of commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_name_what_exists(page, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for fence in read(page.read_text(), page.name):
        assert set(fence.needs) <= NEEDS, fence
        for words in fence.commands():
            if (argv := verb_words(words)) is not None:
                check(argv)


def test_unmarked_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = [words for page in PAGES for f in read(page.read_text(), page.name) if f.free for words in f.commands()]
    assert {words[1] for words in done} == {"recipes", "plan", "doctor"}
    for words in done:
        assert cli.main(words[1:]) in ((0,) if words[1] == "recipes" else (0, 1)), words  # 1: this machine will not do
        assert capsys.readouterr().out


def test_the_run_on_a_cpu_runs(tmp_path, monkeypatch, capsys):
    """In one process here; tests/train/test_launch.py starts several."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    (fence,) = [f for page in PAGES for f in read(page.read_text(), page.name) if f.run_by]
    (words,) = fence.commands()
    argv, config, processes = multi_process.take_flags(words[2:])
    assert (config, int(processes)) == ("cpu", 2)
    assert cli.main(["train", *argv]) == 0
    assert "2/2  reward" in capsys.readouterr().out


def test_memory_by_plan_is_that_of_the_recipes():
    for name in ("gsm8k_0.5b_24gb", "gsm8k_1.5b_24gb"):
        said = re.search(r"Memory by plan: ([\d.]+ GB)", (ROOT / "recipes" / f"{name}.yaml").read_text())
        assert said[1] in (SHELF / "gsm8k_24gb.md").read_text()


def test_the_index_names_every_example():
    named = re.findall(r"^\| \[(\S+)\]\((\S+)\)", (SHELF / "README.md").read_text(), re.M)
    assert all(shown == target for shown, target in named)
    assert sorted(name for name, _ in named) == sorted(
        f.name for f in SHELF.iterdir() if f.is_file() and f.name != "README.md"
    )
