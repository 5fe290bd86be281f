"""The verbs that look: over a small store and a training log, from the command line to the files they promise."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sage_rlvr import cli
from sage_rlvr.errors import Failed, UserError
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


def test_tables_leave_the_papers_value_where_nothing_was_run(runs, capsys):
    assert cli.main(["tables", "table1", "base=runs/base", "grpo=runs/nowhere", "--out", "paper"]) == 0
    assert "note: GRPO: no evaluation in runs/nowhere" in capsys.readouterr().out
    text = (runs / "paper" / "table1.md").read_text()
    assert "†" in text
    assert "not run" in text
    assert cli.main(["tables", "table77", "--out", "paper"]) == 2


# ---- wrong use, and files of the user's --------------------------------------------------------------------------------


def test_a_misspelt_flag_of_eval_is_a_sentence(capsys):
    assert cli.main(["eval", "--model", "m", "--tasks", "amc23", "--out", "o", "--temprature", "1"]) == 2
    assert "eval has no '--temprature': did you mean --temperature?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--guide", "branch", "--guide_args", '{"ratio": "a"}'], "guide 'branch': ratio='a' is not a number"),
        (["--guide", "branch", "--guide_args", '{"q_max": NaN}'], "guide 'branch': q_max=nan is not a number"),
        (["--guide", "verified", "--guide_args", '{"kappa": null}'], "guide 'verified': kappa=None is not a number"),
        (["--guide", "token", "--guide_args", '{"alpha": "21"}'], "alpha='21': give one number, or a pair"),
    ],
)
def test_a_guides_argument_that_is_no_number_is_a_sentence(runs, capsys, args, said):
    assert cli.main(["trace", "runs/trained", *args]) == 2
    assert said in capsys.readouterr().err


def test_what_errors_name_can_be_said(runs, monkeypatch):
    """Flags that texts and docs speak of reach the functions that take them."""
    heard = {}
    monkeypatch.setattr("sage_rlvr.show.console_analysis.trace_page", lambda run, points, **o: heard.update(o))
    assert cli.main(["trace", "runs/trained", "--out", "t", "--seed", "7", "--batch_tokens", "512"]) == 0
    assert (heard["out"], heard["seed"], heard["batch_tokens"]) == ("t", 7, 512)
    monkeypatch.setattr("sage_rlvr.show.console_analysis.analyze", lambda *a, **o: heard.update(o))
    assert cli.main(["analyze", "patterns", "r", "--first", "16", "--level", "0.9", "--batch_tokens", "64"]) == 0
    assert (heard["first"], heard["level"], heard["batch_tokens"]) == (16, 0.9, 64)


MINE = """
from sage_rlvr.tasks import Problem, Source, Task, register_task
register_task(Task(name="doubles", description="twice a number", kind="generated", scorer="math", licence="CC0-1.0",
    splits={"test": (Source("generated"),)},
    generate=lambda n, seed, split: [Problem(str(i), "doubles", f"What is 2 x {i}?", str(2 * i)) for i in range(n)]))
"""


def test_a_module_of_the_users_is_loaded_before_the_verb(tmp_path):
    """As installed: the console script, in a folder that is not on Python's path."""
    (tmp_path / "mine.py").write_text(MINE)
    script = Path(sys.executable).with_name("sage-rlvr")
    command = [str(script), "--import", "mine", "tasks", "show", "doubles", "2", "--format", "plain"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1200)
    assert shown.returncode == 0, shown.stderr
    assert "What is 2 x 1?" in shown.stdout


def raising(monkeypatch, error):
    def fail(args):
        raise error

    monkeypatch.setitem(cli.VERBS, "recipes", cli.VERBS["recipes"]._replace(run=fail))
    return cli.main(["recipes"])


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch):
    for error in (
        RuntimeError("The size of tensor a (3) must match"),
        FloatingPointError("x"),
        OSError(5, "I/O error"),
    ):
        with pytest.raises(type(error)):
            raising(monkeypatch, error)


def test_a_sentence_is_for_what_a_person_can_mend(monkeypatch, capsys):
    for error, code, said in (
        (UserError("write it so."), 2, "write it so."),
        (Failed("one run failed."), 1, "one run failed."),
        (OSError(errno.ENOSPC, "No space left", "/runs/x"), 1, "/runs/x could not be written: the disk is full"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 1, "the disk is full"),
    ):
        assert raising(monkeypatch, error) == code
        assert said in capsys.readouterr().err


def test_a_module_that_is_not_there_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAGE_RLVR_IMPORT", "")
    assert cli.main(["--import", "nowhere.py", "tasks"]) == 2
    assert "--import nowhere.py: No module named 'nowhere'" in capsys.readouterr().err
