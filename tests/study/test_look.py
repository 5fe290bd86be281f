"""benchmarks/gpu/look.py on a study that was really run: what it writes, and what make results makes of it."""

import json
import re
import runpy
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.gpu.records import RUNS, pack, unpack
from sage_rlvr.analysis.patterns import patterns
from sage_rlvr.analysis.perplexity import perplexity
from sage_rlvr.analysis.scoring import source_of
from sage_rlvr.stats.counts import counts_of
from sage_rlvr.store import SampleStore
from sage_rlvr.study.plan import read_folder
from sage_rlvr.study.run import finished_runs
from tests import forked
from tests.models.tiny import LTR_BASE
from tests.study import forking
from tests.study.small import SMALL
from tests.study.test_results_pages import SESSIONS

pytestmark = pytest.mark.slow  # a whole study, then every analysis of it
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TASKS = ["countdown-ltr", "countdown-ltr-fresh"]
ALL = {"base", "grpo-s0", "branch-s0"}


def call(script, monkeypatch, *args):
    monkeypatch.syspath_prepend(BENCHMARKS)  # as Python itself does for a script
    monkeypatch.setattr(sys, "argv", [script, *map(str, args)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    return end.value.code


def asked(place, out="study", records="results/gpu/small", **more):
    flags = {"out": place / out, "records": place / records, "limit": 2, "per_problem": 2, **more}
    return [word for name, value in flags.items() for word in (f"--{name}", value)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two tasks, and a base that solves some problems; looked at with folders named in full, from somewhere else."""
    root = tmp_path_factory.mktemp("look")
    model = shutil.copytree(LTR_BASE, root / "models" / "of_mine")
    study = SMALL | {"base": {"model_name_or_path": str(model)}}
    study["train"] = SMALL["train"] | {"learning_rate": 3e-4}
    study["evaluate"] = SMALL["evaluate"] | {"tasks": TASKS, "n": 16}
    (root / "small.yaml").write_text(yaml.safe_dump(study))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        done = forked.run(
            forking.study, "run", root / "small.yaml", "--out", root / "study", "--jobs", "2", timeout=1200
        )
        assert done.returncode == 0, done.stderr
        pack(root / "study", root / "results" / "gpu" / "small")
        (root / "results" / "gpu" / "small" / "sessions.json").write_text(json.dumps(SESSIONS))
        assert call("gpu/look.py", patch, *asked(root)) == 0
    return root


def seen(place, records="results/gpu/small"):
    return json.loads((place / records / "look.json").read_text())


def test_what_is_written_is_what_the_analyses_say(place):
    found, folder = seen(place), place / "study" / "branch-s0" / "eval"
    assert set(found["patterns"]) == set(found["perplexity"]) == ALL
    assert [s["runs"] for s in found["sessions"]] == [list(finished_runs(place / "study"))]
    for task, own in patterns(folder).items():
        kept = found["patterns"]["branch-s0"][task]
        assert own.problems > 0
        assert (kept["problems"], kept["solutions"]) == (own.problems, own.solutions)
    read = perplexity(folder, source_of(place / "models" / "of_mine"), limit=2)
    for task in TASKS:
        for problem, values in read[task].items():
            assert found["perplexity"]["branch-s0"][task][problem] == pytest.approx(values, rel=1e-4)
    base = [x for by in found["perplexity"]["base"].values() for xs in by.values() for x in xs]
    own = [x for by in found["perplexity"]["branch-s0"].values() for xs in by.values() for x in xs]
    assert np.mean(own) != pytest.approx(np.mean(base), rel=1e-3)


def test_of_each_task_the_problem_on_which_runs_differ_most(place):
    counts = [counts_of(folder) for folder in finished_runs(place / "study").values()]
    for task, problem in seen(place)["chosen"]:
        rates = {p: [c.tasks[task].rights[i] for c in counts] for i, p in enumerate(counts[0].tasks[task].problems)}
        assert np.var(rates[problem]) == max(map(np.var, rates.values())) > 0


def test_the_page_has_the_chosen_problems_alone(place):
    page = (place / "results" / "gpu" / "small" / "explorer.html").read_text()
    known = json.loads((place / "study" / "base" / "eval" / "problems.json").read_text())
    chosen = dict(seen(place)["chosen"])
    told = {(t, p): json.dumps(q["question"])[1:-1] for t, by in known.items() for p, q in by.items()}
    assert len(told) == 24
    assert [place for place, text in told.items() if text in page] == list(chosen.items())
    with tarfile.open(place / "results" / "gpu" / "small" / "look" / "grpo-s0.tar.gz") as tar:
        tar.extractall(place / "cut", filter="data")
    made = [Path(at, "grpo-s0", "eval", "made.json").read_text() for at in (place / "cut", place / "study")]
    assert made[0] == made[1], "where its samples were drawn, with what"
    kept = SampleStore(place / "cut" / "grpo-s0" / "eval", readonly=True)
    samples = [(row["task"], row["problem"]) for batch in kept.scan() for row in batch.to_pylist()]
    assert sorted(samples) == sorted(16 * [*chosen.items()]), "all samples of those, and none of another"
    traced = re.findall(r'"traces":(\d+),"notes"', page)
    assert traced == ["4"] * 3, "two completions of each problem, token by token, in every run"
    assert "that on which the runs differ most" in page


def test_no_folder_of_this_machine_is_named(place):
    """Neither the study's, nor the model's that lies outside of it, in the page or in the records."""
    records = place / "results" / "gpu" / "small"
    texts = [records / "explorer.html", records / "look.json"]
    assert not [file for file in texts if str(place) in file.read_text()]
    assert "models/of_mine" in texts[0].read_text()
    there = place / "elsewhere"
    unpack([records], there)
    for name in ("store.json", "counts.json", "made.json"):
        assert not [f for f in there.glob(f"*/eval/{name}") if str(place / "study") in f.read_text()]


def test_make_results_shows_it(place, monkeypatch):
    """From the records alone."""
    assert call("results.py", monkeypatch, "--root", place) == 0
    text = (place / "docs" / "results" / "small.md").read_text()
    heads = re.findall(r"^##? (.*)", text, re.M)
    assert heads == ["Study small", *TASKS, "All tasks", "A look at the samples", "Training"]
    assert "(small-explorer.html): " in text
    assert "`branch`, mean of tasks: pass@1 " in text
    assert "not judged (1 seed of 3)" in text
    values = {run: {p: np.array(x) for p, x in by[TASKS[0]].items()} for run, by in seen(place)["perplexity"].items()}
    mark = np.quantile(np.concatenate([*values["base"].values()]), 0.9)
    above = {run: np.mean([(x > mark).mean() for x in by.values()]) for run, by in values.items()}
    (row,) = re.findall(rf"^\| branch-s0 \| {TASKS[0]} \| 24 \| .*", text, re.M)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert float(cells[3]) == pytest.approx(np.median(np.concatenate([*values["branch-s0"].values()])), abs=6e-4)
    assert float(cells[6].split()[0]) == pytest.approx(above["branch-s0"] - above["base"], abs=6e-4)
    assert call("results.py", monkeypatch, "--root", place, "--check") == 0
    (place / "docs" / "results" / "old.md").write_text("")
    assert call("results.py", monkeypatch, "--root", place, "--check") == 1
    (place / "docs" / "results" / "old.md").unlink()


def test_another_machine_goes_on_with_the_runs_it_has(place, tmp_path, monkeypatch, capsys):
    """The base was sampled and looked at elsewhere; here lie one run's samples."""
    records = tmp_path / "records"
    shutil.copytree(place / "results" / "gpu" / "small", records)
    (records / "explorer.html").unlink()
    (records / "look" / "branch-s0.tar.gz").unlink()
    before = seen(place)
    for part in ("patterns", "perplexity"):
        del before[part]["branch-s0"]
    (records / "look.json").write_text(json.dumps(before))
    unpack([records], tmp_path / "study")
    shutil.rmtree(tmp_path / "study" / "branch-s0")
    shutil.copytree(place / "study" / "branch-s0", tmp_path / "study" / "branch-s0")
    shutil.rmtree(tmp_path / "study" / "base" / "eval")  # the problems are chosen: nobody's counts are read again
    assert read_folder(tmp_path / "study").name == "small"
    assert call("gpu/look.py", monkeypatch, *asked(tmp_path, records="records")) == 0
    found = seen(tmp_path, "records")
    assert found["sessions"][-1]["runs"] == ["branch-s0"]
    assert {part: found[part] for part in ("patterns", "perplexity", "chosen")} == {
        part: seen(place)[part] for part in ("patterns", "perplexity", "chosen")
    }
    assert re.findall(r'"traces":(\d+),"notes"', (records / "explorer.html").read_text()) == ["4"] * 3
    assert call("gpu/look.py", monkeypatch, *asked(tmp_path, records="records", limit=3)) == 2
    assert "look.json was made with --limit 2" in capsys.readouterr().err


def test_records_alone_are_not_enough_to_look(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "records").mkdir()
    shutil.copy(place / "results" / "gpu" / "small" / RUNS, tmp_path / "records")
    unpack([tmp_path / "records"], tmp_path / "study")
    assert call("gpu/look.py", monkeypatch, *asked(tmp_path, records="records")) == 2
    said = capsys.readouterr().err
    assert "has no run with its samples: run this where they were sampled" in said
    assert said.count("\n") == 1
