"""The verbs that look: over a small store and a training log, from the command line to the files they promise."""

import json

import pytest

from sage_rlvr import cli
from sage_rlvr.store.samples import Sample, SampleStore


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two evaluations of 6 problems × 8 samples: the base solves the first three, the trained model all but the first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, solved in (("base", {0, 1, 2}), ("trained", {1, 2, 3, 4, 5})):
        with SampleStore(f"runs/{name}", {"model": name, "temperature": 1.0}) as store:
            ids = [f"countdown-ltr-test-s0-{i}" for i in range(6)]
            store.ask("countdown-ltr", ids, 8, [0])
            for i, problem in enumerate(ids):
                for index in range(8):
                    right = float(i in solved and index % 2 == 0)
                    text = f"1+{index}"
                    said = (text, 3, "stop", text, right, None, [1, 2, 3], -1.0, text if right else None)
                    store.append([Sample(name, name, "countdown-ltr", problem, 0, index, *said)])
    return tmp_path


def test_results_and_compare(runs, capsys):
    assert cli.main(["results", "runs/trained", "--base", "runs/base", "--out", "out"]) == 0
    found = json.loads((runs / "out" / "results.json").read_text())
    assert found["tasks"]["countdown-ltr"]["pass_at"]["1"]["value"] == pytest.approx(5 / 6 / 2)
    assert cli.main(["compare", "runs/base", "runs/trained", "--out", "both"]) == 0
    assert "countdown-ltr" in (runs / "both" / "table.md").read_text()
    assert cli.main(["compare", "runs/base", "runs/nothing"]) in (0, 2)
    assert "nothing" in "".join(capsys.readouterr())


def test_support(runs, capsys):
    assert cli.main(["analyze", "support", "runs/trained", "--base", "runs/base", "--budget", "8", "--out", "an"]) == 0
    record = json.dumps(json.loads((runs / "an" / "support.json").read_text()))
    for problem in (0, 3, 4, 5):  # one lost, three gained
        assert f"countdown-ltr-test-s0-{problem}" in record
    assert cli.main(["analyze", "support", "runs/trained", "--out", "an"]) == 2
    assert "base" in capsys.readouterr().err


def test_report_is_one_page(runs):
    asked = {"countdown-ltr": {"countdown-ltr-test-s0-1": {"question": "Reach 7 with 3 and <b>4</b>.", "answer": "{}"}}}
    (runs / "runs" / "base" / "problems.json").write_text(json.dumps(asked))
    assert cli.main(["report", "runs", "--out", "page.html"]) == 0
    page = (runs / "page.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "http-equiv" in page
    assert "Reach 7 with 3 and" in page, "the explorer shows what was asked"
    assert "<b>4</b>" not in page, "as text"
    assert 'src="http' not in page
    assert cli.main(["report", "nowhere", "--out", "page.html"]) == 2


def test_tables_leave_the_papers_value_where_nothing_was_run(runs):
    assert cli.main(["tables", "table1", "base=runs/base", "--out", "paper"]) == 0
    text = (runs / "paper" / "table1.md").read_text()
    assert "†" in text
    assert "not run" in text
    assert cli.main(["tables", "table77", "--out", "paper"]) == 2
