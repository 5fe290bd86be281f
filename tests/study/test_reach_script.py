"""benchmarks/gpu/reach.py from end to end: two evaluations side by side, the counts of both, and a training that reads them."""

import json
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from sage_rlvr.launch import data, run
from sage_rlvr.store import SampleStore
from sage_rlvr.tasks import load_task

from ..models.tiny import LTR_BASE
from .small import SMALL

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "reach.py"


@pytest.fixture
def reach(tmp_path, monkeypatch):
    """The script in this process, whose evaluations are processes of their own; answers its exit code."""
    study = SMALL | {"base": {"model_name_or_path": str(LTR_BASE)}}
    study["train"] = SMALL["train"] | {"temperature": 1.0, "min_p": 0.02}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(study))
    places = ["--study", tmp_path / "small.yaml", "--out", tmp_path / "out", "--to", tmp_path / "new" / "reach.json"]

    def run(*flags):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, places), "--rows", "10", *flags])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return ended.value.code

    return run


@pytest.mark.slow
def test_the_counts_of_all_evaluations(reach, tmp_path):
    assert reach("--n", "6", "--jobs", "2") == 0
    stores = [SampleStore(tmp_path / "out" / str(job), readonly=True) for job in (0, 1)]
    rows = [[row for batch in store.scan() for row in batch.to_pylist()] for store in stores]
    assert [sorted({row["seed"] for row in part}) for part in rows] == [[0, 2, 4], [1, 3, 5]]
    everything = [row for part in rows for row in part]
    right, drawn = Counter(), Counter(row["problem"] for row in everything)
    right.update(row["problem"] for row in everything if row["verdict"] == 1)
    assert set(drawn.values()) == {6}
    sampled = {"temperature": 1.0, "min_p": 0.02, "max_tokens": 10, "prompt_format": "symbols", "split": "train"}
    assert all(sampled.items() <= store.settings.items() for store in stores), "as in training"
    kept = json.loads((tmp_path / "new" / "reach.json").read_text())
    assert kept["problems"] == {p: [right[p], 6] for p in drawn}
    assert len(drawn) == 10
    assert 0 < len(right) < 10

    asked = run.RunArguments(
        task="countdown-ltr", rows=10, within_reach=str(tmp_path / "new" / "reach.json"), decontaminate=False
    )
    assert {p.id for p in data.problems(asked, data.candidates(asked))} == {p for p, n in right.items() if n < 6}
    assert set(drawn) == {p.id for p in load_task("countdown-ltr", limit=10, split="train")}


def test_too_few_samples_for_the_jobs(reach, capsys):
    assert reach("--n", "3", "--jobs", "2") == 2
    assert "less than two samples for each of --jobs 2" in capsys.readouterr().err


def test_an_evaluation_that_fails_is_named(reach, tmp_path, capsys):
    assert reach("--n", "2", "--jobs", "1", "--backend", "nonsense") == 2
    assert "0.log says why the evaluation ended" in capsys.readouterr().err
    assert "nonsense" in (tmp_path / "out" / "0.log").read_text()
