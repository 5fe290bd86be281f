"""Comparisons: the common problems, bold only where the paired interval says so, and every absent run named."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from rich.console import Console

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.compare import AVERAGE, compare
from sage_rlvr.evaluate.results import Estimate
from sage_rlvr.show import figures_eval as figures
from sage_rlvr.show import tables
from sage_rlvr.show.console_eval import comparison_table, show_comparison, show_results
from sage_rlvr.stats.intervals import bootstrap_interval
from tests.evaluate.runs import as_counts, make_run, simulated


def words(rates, n=8, seed=0):
    rng = np.random.default_rng(seed)
    return {f"p{i}": ["".join("01"[int(x)] for x in rng.random(n) < r)] for i, r in enumerate(rates)}


@pytest.fixture
def runs(tmp_path):
    """A base, one that is better everywhere, one that is as good as the base."""
    easy, hard = np.linspace(0.1, 0.4, 12), np.linspace(0.0, 0.2, 10)
    return [
        make_run(tmp_path / "base", {"a": words(easy), "b": words(hard)}),
        make_run(tmp_path / "better", {"a": words(easy + 0.5, seed=1), "b": words(hard + 0.5, seed=2)}),
        make_run(tmp_path / "same_[x]_&_50%", {"a": words(easy, seed=3), "b": words(hard, seed=4)}),
    ]


def share(run_words):
    return np.array([w[0].count("1") / len(w[0]) for w in run_words.values()])


def test_the_table_holds_the_means_their_intervals_and_the_paired_differences(runs):
    c = compare(runs)
    assert c.columns == [("a", 1), ("a", 8), ("b", 1), ("b", 8), (AVERAGE, 1), (AVERAGE, 8)]
    assert c.problems == {"a": 12, "b": 10}
    easy = np.linspace(0.1, 0.4, 12)
    base, better = share(words(easy)), share(words(easy + 0.5, seed=1))
    cell = c.rows[1].cells["a"][1]
    assert (cell.value, cell.low, cell.high) == pytest.approx(bootstrap_interval(better), abs=0.01)
    assert cell.minus_first == pytest.approx(bootstrap_interval(better, base), abs=0.01)
    assert c.rows[0].cells["a"][1].minus_first is None
    for k in (1, 8):
        each = [c.rows[1].cells[t][k].value for t in "ab"]
        assert c.rows[1].cells[AVERAGE][k].value == pytest.approx(np.mean(each))


def test_bold_only_where_every_paired_interval_excludes_zero(runs):
    c = compare(runs)
    assert [row.cells["a"][1].bold for row in c.rows] == [False, True, False]
    assert [row.cells[AVERAGE][1].bold for row in c.rows] == [False, True, False]
    two = compare([runs[0], runs[2]])
    assert not any(cell.bold for row in two.rows for by_k in row.cells.values() for cell in by_k.values())
    alone = compare(runs[:1])
    assert not alone.rows[0].cells["a"][1].bold, "there is nothing to be better than"


def test_better_than_one_is_not_better_than_all(tmp_path):
    """Wide intervals of their own, yet a paired one that excludes 0; and a third run that ties takes the bold away."""
    rates = np.tile([0.0, 1.0], 10)
    low = {f"p{i}": ["1" * int(4 * r) + "0" * (8 - int(4 * r))] for i, r in enumerate(rates)}
    high = {p: ["1" + w[0][:-1]] for p, w in low.items()}  # one more right sample everywhere
    a, b = make_run(tmp_path / "a", {"t": low}), make_run(tmp_path / "b", {"t": high})
    cells = [row.cells["t"][1] for row in compare([a, b]).rows]
    assert cells[1].low < cells[0].high, "the two intervals overlap"
    assert [x.bold for x in cells] == [False, True]
    tie = make_run(tmp_path / "tie", {"t": high})
    assert not any(row.cells["t"][1].bold for row in compare([a, b, tie]).rows)


def test_the_best_on_average_is_by_tasks_not_by_problems(tmp_path):
    """Much better on a small task, a little worse on a large one: each task weighs the same."""
    small, large = [f"p{i}" for i in range(4)], [f"q{i}" for i in range(40)]
    a = make_run(tmp_path / "a", {"s": {p: ["11111111"] for p in small}, "l": {q: ["11110000"] for q in large}})
    b = make_run(tmp_path / "b", {"s": {p: ["00000000"] for p in small}, "l": {q: ["11111000"] for q in large}})
    assert [row.cells[AVERAGE][1].bold for row in compare([a, b]).rows] == [True, False]


def test_false_bolds_are_as_rare_as_the_level_says():
    """Two equal models, 400 times: a bold in 5% of them (2.5 to 8%), one chance in 40 for each side."""
    rng, bolds = np.random.default_rng(0), 0
    for _ in range(400):
        p = rng.beta(1, 2, 40)
        c = compare([as_counts(simulated(rng, p, 1, 4)) for _ in range(2)], resamples=500)
        bolds += any(row.cells["sim"][1].bold for row in c.rows)
    assert 0.025 <= bolds / 400 <= 0.08


def test_only_common_verifiable_problems_count_and_it_is_said(tmp_path):
    a = make_run(tmp_path / "a", {"t": {"p": ["1111"], "q": ["0000"], "bad": ["1111"], "more": ["1111"]}})
    b = make_run(tmp_path / "b", {"t": {"p": ["11", "11"], "q": ["10", "00"], "bad": ["1?", "11"]}, "u": {"z": ["11"]}})
    c = compare([a, b], partial=True)
    assert (c.top, c.problems, c.averaged) == (2, {"t": 2, "u": 1}, ["t"])
    assert [row.cells["t"][1].value for row in c.rows] == pytest.approx([0.5, 0.625])
    said = "\n".join(c.notes)
    assert "t: 1 problems with an unverifiable gold dropped from every run (bad)" in said
    assert "compared on the 2 common problems; 1 are not complete in every run (more)" in said
    assert "u: only in b, so not in the average" in said
    assert "a 4×1; b 2×1, 2×2" in said
    assert "u" not in c.rows[0].cells


def test_a_gold_unverifiable_in_one_run_is_dropped_from_all(tmp_path):
    a = make_run(tmp_path / "a", {"t": {"p": ["10"], "q": ["00"], "bad": ["11"], "worse": ["11"]}})
    b = make_run(tmp_path / "b", {"t": {"p": ["11"], "q": ["00"], "bad": ["1?"]}}, unverifiable=["worse"])
    c = compare([a, b])
    assert c.problems == {"t": 2}
    assert [row.cells["t"][1].value for row in c.rows] == pytest.approx([0.25, 0.5])
    assert "2 problems with an unverifiable gold dropped from every run (bad, worse)" in c.notes[0]


def test_sampled_otherwise_is_said(tmp_path):
    t = {"t": {"p": ["10"], "q": ["00"]}}
    a = make_run(tmp_path / "a", t, {"model": "x", "sampling": {"temperature": 0.3}})
    b = make_run(tmp_path / "b", t, {"model": "y", "sampling": {"temperature": 1.0}})
    assert compare([a, b]).notes == ["b was sampled otherwise than a: sampling.temperature 0.3 → 1.0"]


def test_absent_runs_are_named_and_the_rest_shown(runs, tmp_path):
    half = make_run(tmp_path / "half", {"a": {"p0": ["11.1"], "p1": ["1111"]}})
    other = make_run(tmp_path / "other", {"a": {"p0": ["1"]}})
    (other / "store.json").write_text((other / "store.json").read_text().replace('"version": 1', '"version": 7'))
    c = compare([runs[0], tmp_path / "gone", half, other])
    assert [row.name for row in c.rows] == ["base"]
    reasons = {"gone": "no sample store", "half": "half finished: 1 of 2", "other": "is of version 7"}
    for name, why in reasons.items():
        assert why in c.absent[str(tmp_path / name)]
    assert compare([half], partial=True).problems == {"a": 1}
    with pytest.raises(UserError, match=r"no run to show .*half finished"):
        compare([half])
    apart = [make_run(tmp_path / name, {"t": {name: ["10"]}}) for name in "xy"]
    with pytest.raises(UserError, match="share no complete problem"):
        compare(apart)


def test_rounding_is_no_difference(tmp_path):
    """The same rates from 8 and from 16 samples differ in the last bit; that is not "better"."""
    some = words(np.full(5, 0.5), n=8)
    a, b = make_run(tmp_path / "a", {"t": some}), make_run(tmp_path / "b", {"t": {p: w * 2 for p, w in some.items()}})
    for pair in ([a, b], [b, a]):
        assert not any(row.cells["t"][1].bold for row in compare(pair).rows)


def test_two_folders_of_one_name_keep_their_paths(tmp_path):
    t = {"t": {"p": ["10"], "q": ["00"]}}
    folders = [make_run(tmp_path / x / "run", t) for x in "ab"]
    assert [row.name for row in compare(folders).rows] == [str(f) for f in folders]


def test_markdown_latex_and_json(runs):
    c = compare(runs)
    lines = comparison_table(c).markdown().splitlines()
    assert {line.count("|") for line in lines[:5]} == {8}
    assert re.search(r"\| better \| \*\*\.\d{3}\*\* \[\.\d{3}, \.\d{3}\] \|", lines[3])
    tex = comparison_table(c).latex()
    assert r"same\_[x]\_\&\_50\%" in tex
    body = tex.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert {len(re.findall(r"(?<!\\)&", row)) for row in body} == {6}
    assert tex.count(r"\textbf") == sum(c.rows[1].cells[g][k].bold for g, k in c.columns) > 0
    assert tex.count("{") - tex.count(r"\{") == tex.count("}") - tex.count(r"\}")
    d = json.loads(c.to_json(), parse_constant=pytest.fail)
    assert d["rows"][1]["cells"]["a"]["1"]["bold"] is True


@pytest.mark.parametrize(
    ("x", "said"),
    [(0.2844, ".284"), (1, "1.000"), (-0.05, "−.050"), (float("nan"), "–"), (0, ".000"), (-1e-17, ".000")],
)
def test_digits(x, said):
    assert tables.digits(x) == said


def test_figure_is_svg_and_png_with_a_description(tmp_path):
    curve = {k: Estimate(k / 10, k / 10 - 0.1, k / 10 + 0.1) for k in (1, 2, 4, 8)}
    lone = {1: Estimate(0.5)}  # no interval
    names = ["base", "$x_1$ <b>", *"cdefghi"]
    curves = {"t": dict.fromkeys(names, curve), "u": dict.fromkeys(names, lone)}
    found = figures.pass_at_k_figure(curves, tmp_path / "fig", "pass@k")
    assert [f.name for f in found.files] == ["fig.svg", "fig.png"]
    ElementTree.parse(found.files[0])
    assert found.files[1].read_bytes()[:4] == b"\x89PNG"
    assert "t, base: 0.100 at k=1 to 0.800 at k=8" in found.description
    again = figures.pass_at_k_figure(curves, tmp_path / "again", "pass@k")
    assert again.files[0].read_bytes() == found.files[0].read_bytes()


def test_pages_print_and_write(runs, tmp_path):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    c = show_comparison([*runs, tmp_path / "gone"], tmp_path / "out", console=console)
    text = console.export_text()
    assert "same_[x]_&_50%" in text
    assert "not shown:" in text
    files = ["comparison.json", "pass_at_k.png", "pass_at_k.svg", "pass_at_k.txt", "table.md", "table.tex"]
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == files
    assert len(c.rows) == 3
    r = show_results(runs[1], base=runs[0], console=console)
    text = console.export_text()
    assert "paired differences from" in text
    assert "SRR" in text
    assert (runs[1] / "results.json").read_text() == r.to_json()
    assert (runs[1] / "pass_at_k.svg").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write there"):
        show_comparison(runs, tmp_path / "file", console=console)


@pytest.mark.parametrize("content", ["{nope", "[]", '{"version": 1}', '{"version": 1, "tasks": {"t": {}}}'])
def test_a_damaged_record_of_counts_is_named_and_the_rest_compared(tmp_path, content):
    make_run(tmp_path / "a", {"t": {"p": ["10"]}})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "counts.json").write_text(content)
    found = compare([tmp_path / "a", tmp_path / "b"], resamples=50)
    assert [row.name for row in found.rows] == ["a"]
    assert str(tmp_path / "b") in found.absent[str(tmp_path / "b")]


def test_other_weights_are_no_other_settings(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, {"t": {"p": ["10"]}}, {"model": name, "model_weights": name, "adapter_weights": name})
    assert not compare([tmp_path / "a", tmp_path / "b"], resamples=50).notes
