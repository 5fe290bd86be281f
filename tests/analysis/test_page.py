"""What the command line shows and writes: every kind, with a broken run beside whole ones."""

import io
import json

import pytest
from rich.console import Console

from sage_rlvr.errors import UserError
from sage_rlvr.show.console_analysis import analyze, trace_page
from tests.analysis.models import TASK, make_run, make_samples
from tests.analysis.stores import make_store, words, write_log
from tests.models import tiny


@pytest.fixture
def screen():
    return Console(file=io.StringIO(), width=200)


def test_patterns_with_a_missing_and_a_half_finished_run(tmp_path, screen):
    whole = make_store(tmp_path / "whole", [("t", "p", 0, 0, "Let x be 3", 1.0)])
    half = make_store(tmp_path / "half", words("t", {"p": "10"}), n=4)
    record = analyze("patterns", [whole, half, tmp_path / "gone"], out=tmp_path / "out", console=screen)
    said = screen.file.getvalue()
    assert record["runs"]["whole"]["t"]["frequency"]["constraint set-up"]["per_problem"] == 1.0
    assert "half finished, 2 of 4 samples" in said
    assert "not shown" in said
    assert "gone" in said
    assert json.loads((tmp_path / "out" / "patterns.json").read_text())["absent"].keys() == {str(tmp_path / "gone")}
    svg = (tmp_path / "out" / "patterns.svg").read_text()
    assert "<svg" in svg
    assert "constraint set-up 1.000" in (tmp_path / "out" / "patterns.txt").read_text()


def test_patterns_as_flags(tmp_path, screen):
    run = make_store(tmp_path / "r", [("t", "p", 0, 0, "a=b by induction", 1.0)])
    record = analyze("patterns", [run], console=screen, pattern=["induction=by induction", "sum=a=b"])
    assert [record["runs"]["r"]["t"]["frequency"][n]["count"] for n in ("induction", "sum")] == [1, 1]
    with pytest.raises(UserError, match="name=regex"):
        analyze("patterns", [run], console=screen, pattern=["induction"])


def test_support(tmp_path, screen):
    base = make_store(tmp_path / "base", words("t", {"a": "10", "b": "00", "c": "01"}))
    run = make_store(tmp_path / "run", words("t", {"a": "10", "b": "01", "c": "00"}))
    record = analyze("support", [run], base=base, out=tmp_path / "out", console=screen, budget=2)
    assert {k: record["runs"]["run"]["t"][k] for k in "PESO"} == {"P": ["a"], "E": ["b"], "S": ["c"], "O": []}
    assert "lost c" in screen.file.getvalue()
    with pytest.raises(UserError, match="needs base"):
        analyze("support", [run], console=screen)


def test_dynamics_of_a_training_run_and_of_the_evaluation_behind_which_it_stands(tmp_path, screen):
    entries = [{"step": s, "reward": 0.5, "grad_norm": float(s), "held_out/t/pass@1": 0.1} for s in range(1, 61)]
    train = write_log(tmp_path / "train", entries, {"max_steps": 60})
    run = make_store(tmp_path / "eval_of_it", words("t", {"a": "1"}), {"model": "m", "adapter": str(train)})
    record = analyze("dynamics", [train, run], out=tmp_path / "out", console=screen)
    assert record["runs"]["train"]["grad_norm"]["early"]["mean"] == 10.5
    assert record["runs"]["eval_of_it"]["grad_norm"] == record["runs"]["train"]["grad_norm"]
    assert (tmp_path / "out" / "dynamics.png").stat().st_size > 10_000


def test_grid(tmp_path, screen):
    run = make_store(tmp_path / "run", words("t", {"a": "10"}))
    write_log(run, [], {"guide": "branch", "guide_args": {"threshold": 1.2, "ratio": 0.3}})
    record = analyze("grid", [run], out=tmp_path / "out", console=screen)
    assert record["grid"]["cells"][0]["pass_1"] == 0.5
    assert (tmp_path / "out" / "grid.svg").is_file()


def test_perplexity_and_trace(tmp_path, screen):
    base = tiny.save_base(tmp_path / "model")
    first = make_run(tmp_path / "base", base, make_samples(base, 2))
    second = make_run(tmp_path / "run", base, make_samples(base, 2, seed=1))
    record = analyze("perplexity", [second], base=first, out=tmp_path / "out", console=screen, thresholds=[1.0])
    assert set(record["runs"]) == {"base", "run"}
    assert record["runs"]["run"]["above"]["1"] == 1.0
    assert record["runs"]["base"]["above"]["base q0.5"] == 0.5
    assert len(record["values"]["run"][TASK]) == 2
    how = {"reference": base, "console": screen, "limit": 1, "per_problem": 1}
    trace_page(first, [base], guide="branch", guide_args='{"ratio": 0.1}', **how)
    with pytest.raises(UserError, match=r"temperature=0\.0 must be above 0"):
        trace_page(first, [base], guide="branch", temperature=0.0, **how)
    with pytest.raises(UserError, match="guide_args without a guide"):
        trace_page(first, [base], guide_args='{"ratio": 0.1}', **how)
    with pytest.raises(UserError, match="not a JSON object"):
        trace_page(first, [base], reference=base, console=screen, guide_args="ratio")
    assert "1 completions through 1 checkpoints" in screen.file.getvalue()
    assert "q: as asked in the call." in screen.file.getvalue()


@pytest.mark.parametrize(
    ("kind", "opts", "said"),
    [
        ("moods", {}, "is unknown"),
        ("grid", {"budget": 3}, "has no option 'budget'; only support has it"),
        ("grid", {"moods": 3}, "has no option 'moods'; it has task"),
        ("patterns", {"first": 0}, "first=0 must be 1 or more"),
        ("dynamics", {}, "no run to show"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path, kind, opts, said, screen):
    with pytest.raises(UserError, match=said):
        analyze(kind, [tmp_path / "gone"], console=screen, **opts)


def test_markup_in_names_is_text(tmp_path, screen):
    run = make_store(tmp_path / "run", words("[red]t", {"a": "1"}))
    analyze("patterns", [run], console=screen)
    assert "[red]t" in screen.file.getvalue()
