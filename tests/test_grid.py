"""Tables on a terminal of 80 columns: no line is longer, and every value is there whole."""

import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from sage_rlvr import cli
from sage_rlvr.demo import Difference, show_tables
from sage_rlvr.grid import MOST, Grid
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.stats.table import Row, shown
from sage_rlvr.study.console import wide_console
from tests.evaluate.runs import make_run
from tests.study.test_against import study_of

NUMBER = st.floats(-9, 9).map(lambda x: f"{x:+.3f}")
INTERVAL = st.tuples(NUMBER, NUMBER, NUMBER).map(lambda x: "{} [{}, {}]".format(*x))
NAME = st.text("abcdefgh_+.0123456789", min_size=1, max_size=60)


def printed(grid, width=80):
    out = io.StringIO()
    grid.show(Console(file=out, width=width))
    return out.getvalue()


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(1, 4), st.sampled_from([60, 80, 120]))
def test_any_table_fits_and_loses_nothing(data, columns, rows, width):
    grid = Grid("about", ["name", *(f"c{i}" for i in range(columns))])
    cells = [[data.draw(NAME), *(data.draw(st.one_of(NUMBER, INTERVAL)) for _ in range(columns))] for _ in range(rows)]
    for row in cells:
        grid.add(*row)
    said = printed(grid, width)
    assert max(map(cell_len, said.splitlines())) <= width
    left = re.findall(r"[+-]\d\.\d{3}|\[[^\]]*\]", said)
    for value in (cell for row in cells for cell in row[1:]):
        for piece in re.findall(r"^[+-]\d\.\d{3}|\[[^\]]*\]", value):
            assert piece in left
    if all(len(row[0]) <= MOST for row in cells):
        assert all(row[0] in said for row in cells)


def test_a_table_that_fits_is_one_table_with_intervals_on_the_line():
    grid = Grid("", ["name", "pass@1"])
    grid.add("grpo", "0.284 [0.201, 0.367]")
    assert "0.284 [0.201, 0.367]" in printed(grid)
    assert printed(grid).count("name") == 1


def test_a_table_that_continues_repeats_its_names():
    grid = Grid("", ["name", *(f"pass@{k}" for k in range(9))])
    grid.add("grpo", *["0.284 [0.201, 0.367]"] * 9)
    said = printed(grid)
    assert said.count("grpo") == said.count("name") > 1
    assert all(f"pass@{k}" in said for k in range(9))


# ---- the verbs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def lines_of(capsys, argv):
    assert cli.main(argv) == 0
    return capsys.readouterr().out.splitlines()


def boxed(lines):
    """Those of tables."""
    return [line for line in lines if line[:1] in "┏┃┡│├└"]


def test_results_and_compare_hold_at_80_columns(place, capsys):
    words = {f"p{i}": ["1101" * (i + 1) + "0000" * (15 - i), "0100" * 16] for i in range(6)}
    for name in ("base", "grpo_with_quite_a_long_name", "branch"):
        make_run(place / name, {"amc23": words, "math500-l5": words, "knights-knaves": words}, solutions=True)
    for argv in (["results", "branch", "--base", "base"], ["compare", "base", "grpo_with_quite_a_long_name", "branch"]):
        lines = lines_of(capsys, argv)
        tables = boxed(lines)
        assert tables
        assert max(map(cell_len, tables)) <= 80
        assert not any("…" in line for line in tables)
        written = (place / "branch" / "table.md").read_text() if argv[0] == "results" else ""
        for value in re.findall(r"\*?\.\d{3}", written):
            assert value.strip("*") in "\n".join(tables)


@pytest.mark.parametrize("argv", [["tasks"], ["recipes"], ["study", "list"], ["doctor"], ["--help"]], ids=" ".join)
def test_lists_hold_at_80_columns(place, capsys, argv):
    try:
        lines = lines_of(capsys, argv)
    except SystemExit:
        lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 80


LONG = "branch+beta0.05_rho0.3_tau1.2_centred_exact_credit_k1"


def test_a_studys_tables_hold_at_80_columns(place, capsys):
    seeds = [{"countdown-ltr": [i, 8, 3], "knights-knaves": [0, 2, 4 + i]} for i in range(2)]
    study_of(place / "s", {"base": seeds[:1], "grpo": seeds, LONG: seeds, f"{LONG}2": seeds}, [0, 1])
    for reference, more in ((None, "base"), ("grpo", "grpo")):
        lines = lines_of(capsys, ["study", "table", "s", *(["--reference", reference] if reference else [])])
        assert max(map(cell_len, boxed(lines))) <= 80
        said = "\n".join(lines)
        assert "…" not in said
        values = re.findall(r"\d\.\d{3}", (place / "s" / "table.md").read_text())
        differences = [
            x for d in json.loads((place / "s" / "against.json").read_text()) for x in d["pass_1"] + d["pass_n"]
        ]
        assert len(values) > 20
        assert all(value in said for value in [*values, *(f"{x:+.3f}" for x in differences)])
        for task in ("countdown-ltr", "knights-knaves", "mean of tasks"):
            assert f"each variant minus {more} on {task}" in " ".join(said.split())
    lines = lines_of(capsys, ["study", "status", "s"])
    assert max(map(cell_len, boxed(lines))) <= 80
    assert not any("…" in line for line in boxed(lines))


def test_the_demos_tables_hold_at_80_columns(place, capsys):
    """Names are folded, never cut: two long ones that differ at their end stay two."""
    x, y = Interval(0.123, 0.034, 0.223), Interval(-0.123, -0.223, -0.034)
    names = ["base", "grpo_no_kl", LONG, f"{LONG}2"]
    rows = [Row("countdown-ltr", v, 1, 240, {1: x, 64: x}, {}, x, 3.0, 2.0, 14.0, 0.1) for v in names]
    found = [Difference(v, r, y, y) for r in names[:2] for v in names[1:] if v != r]
    show_tables(wide_console(), rows, found, 64)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert "…" not in "".join(lines)
    first = "".join(line.split()[0] for line in lines if line.strip())
    assert (first.count(LONG), first.count(f"{LONG}2")) == (6, 3)  # in three tables, both names
    for z, sign, many in ((x, "", rows), (y, "+", found)):
        assert sum(line.count(shown(z, sign=sign)) for line in lines) == 2 * len(many)
