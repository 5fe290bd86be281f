"""benchmarks/gpu/look.py on a study that was really run: what it writes, and what make results makes of it."""

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from sage_rlvr.analysis.patterns import patterns
from sage_rlvr.analysis.perplexity import perplexity
from sage_rlvr.analysis.scoring import source_of
from sage_rlvr.study.records import pack, unpack
from sage_rlvr.study.run import run_study
from tests.study.small import SMALL
from tests.study.test_results_pages import SESSIONS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TASKS = ["countdown-ltr", "countdown-ltr-far"]


def call(script, monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", [script, *map(str, args)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    return end.value.code


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A study of two tasks, run from its own folder with relative paths."""
    root = tmp_path_factory.mktemp("look")
    more = {"evaluate": SMALL["evaluate"] | {"tasks": TASKS}}
    (root / "small.yaml").write_text(yaml.safe_dump(SMALL | more))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        assert run_study("small.yaml", "runs/small", jobs=2)[1] == []
        pack("runs/small", "results/gpu/small")
        (root / "results" / "gpu" / "small" / "sessions.json").write_text(json.dumps(SESSIONS))
        asked = ["--out", "runs/small", "--records", "results/gpu/small", "--limit", 2, "--per_problem", 1]
        assert call("gpu/look.py", patch, *asked) == 0
    return root


def test_what_is_written_is_what_the_analyses_say(place, monkeypatch):
    monkeypatch.chdir(place)
    found = json.loads((place / "results" / "gpu" / "small" / "look.json").read_text())
    assert set(found["patterns"]) == {"base", "grpo-s0", "branch-s0"}
    folder = Path("runs/small/branch-s0/eval")
    for task, own in patterns(folder).items():
        kept = found["patterns"]["branch-s0"][task]
        assert (kept["problems"], kept["solutions"]) == (own.problems, own.solutions)
    read = perplexity(folder, source_of("runs/small/base/eval"), limit=2)
    for task in TASKS:
        for problem, values in read[task].items():
            assert found["perplexity"]["values"]["branch-s0"][task][problem] == pytest.approx(values, rel=1e-4)
    assert [task for task, _ in found["explorer"]] == TASKS


def test_the_page_has_the_chosen_problems_alone_and_no_folder_of_this_machine(place):
    page = (place / "results" / "gpu" / "small" / "explorer.html").read_text()
    chosen = [problem for _, problem in json.loads((place / "results/gpu/small/look.json").read_text())["explorer"]]
    asked = json.loads((place / "runs" / "small" / "base" / "eval" / "problems.json").read_text())
    others = [p["question"] for by in asked.values() for name, p in by.items() if name not in chosen]
    assert len(others) == 22
    assert not any(json.dumps(q)[1:-1] in page for q in others)
    assert all(json.dumps(asked[t][p]["question"])[1:-1] in page for t, p in zip(TASKS, chosen))
    assert re.findall(r'"traces":(\d+),"notes"', page) == ["2"] * 3, (
        "a completion of each problem, token by token, in every run"
    )
    assert str(place) not in page
    assert "grpo-s0/train" in page


def test_make_results_shows_it(place, monkeypatch):
    """From the records alone, in a place where nothing was sampled."""
    assert call("results.py", monkeypatch, "--root", place) == 0
    text = (place / "docs" / "results" / "small.md").read_text()
    heads = re.findall(r"^##? (.*)", text, re.M)
    assert heads == ["Study small", *TASKS, "All tasks", "Patterns", "Perplexity under the base", "Tokens", "Training"]
    assert "(small-explorer.html)" in text
    page = place / "results" / "gpu" / "small" / "explorer.html"
    assert (place / "docs" / "results" / "small-explorer.html").read_bytes() == page.read_bytes()
    assert "1 seed, so not judged" in text
    values = json.loads((place / "results/gpu/small/look.json").read_text())["perplexity"]["values"]
    pooled = {run: np.array([x for t in by.values() for xs in t.values() for x in xs]) for run, by in values.items()}
    above = (pooled["branch-s0"] > np.quantile(pooled["base"], 0.9)).mean()
    (row,) = re.findall(r"^\| branch-s0 \| \d+ \| .*", text, re.M)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:3] == [str(pooled["branch-s0"].size), f"{np.median(pooled['branch-s0']):.3f}"]
    assert float(cells[4].split()[0]) == pytest.approx(above, abs=6e-4)
    assert call("results.py", monkeypatch, "--root", place, "--check") == 0
    (place / "docs" / "results" / "old-explorer.html").write_text("")
    assert call("results.py", monkeypatch, "--root", place, "--check") == 1
    (place / "docs" / "results" / "old-explorer.html").unlink()


def test_records_alone_are_not_enough_to_look(place, tmp_path, monkeypatch, capsys):
    unpack([place / "results" / "gpu" / "small"], tmp_path / "study")
    assert call("gpu/look.py", monkeypatch, "--out", tmp_path / "study", "--records", tmp_path / "to") == 2
    said = capsys.readouterr().err
    assert "has samples of no run: run this where the base and the others were sampled" in said
    assert said.count("\n") == 1
