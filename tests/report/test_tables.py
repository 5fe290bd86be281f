"""The paper's tables and figures from hand-made runs: our numbers are known, the paper's are as printed."""

import json

import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.show import paper
from sage_rlvr.show.paper_tables import TABLES, make, make_all, parse_runs
from tests.analysis.stores import make_store, words, write_log


def evaluated(folder, tasks, settings=None):
    return make_store(folder, [row for task, cells in tasks.items() for row in words(task, cells)], settings)


THREE = {"aime": {"a": "1000", "b": "0000"}, "amc23": {"c": "1100"}, "math500-l5": {"d": "1111"}}


def test_table1_has_ours_beside_the_papers(tmp_path):
    run = evaluated(tmp_path / "branch", THREE)
    made = make("table1", {"branch": run}, tmp_path / "out")
    row = made.table.rows["GRPO + Branch"]
    cells = dict(zip(made.table.columns, row))
    assert cells["AIME pass@1"].ours == pytest.approx(1 / 8)
    assert (cells["AIME pass@1"].paper, cells["AIME pass@1"].paper_std) == (0.063, 0.03)
    assert cells["AIME pass@256"].ours == pytest.approx(0.5)
    assert cells["AIME pass@256"].k == 4  # we have no 256
    assert cells["average pass@1"].ours == pytest.approx((1 / 8 + 1 / 2 + 1) / 3)
    assert cells["average pass@1"].paper == 0.284
    text = (tmp_path / "out" / "table1.md").read_text()
    assert "| GRPO + Branch † | .063 ± .030 |" in text
    assert "| GRPO | not run | not run |" in text
    assert "| GRPO † | .053 ± .027 |" in text
    assert "at k=4" in text
    assert r"\toprule" in (tmp_path / "out" / "table1.tex").read_text()
    saved = json.loads((tmp_path / "out" / "table1.json").read_text())
    assert saved["rows"]["GRPO"][0]["ours"] is None
    assert saved["rows"]["GRPO"][0]["paper"] == 0.053


def test_the_average_is_of_the_papers_tasks_alone(tmp_path):
    run = evaluated(tmp_path / "r", {**THREE, "minerva": {"m": "0000"}})
    cells = make("table1", {"grpo": run}, tmp_path / "out").table
    assert dict(zip(cells.columns, cells.rows["GRPO"]))["average pass@1"].ours == pytest.approx((1 / 8 + 1 / 2 + 1) / 3)
    (one, _) = make("table9", {"grpo": run}, tmp_path / "out").table.rows["GRPO"]
    assert (one.ours, one.paper) == (0.0, 0.17)
    two = evaluated(tmp_path / "s", {"aime": THREE["aime"]})
    cells = make("table1", {"grpo": two}, tmp_path / "out").table
    assert dict(zip(cells.columns, cells.rows["GRPO"]))["average pass@1"].ours is None


def test_several_runs_of_one_row_are_averaged(tmp_path):
    runs = [evaluated(tmp_path / name, {"minerva": {"m": word}}) for name, word in (("a", "1100"), ("b", "1111"))]
    (one, _) = make("table9", {"GRPO": runs}, tmp_path / "out").table.rows["GRPO"]
    assert one.ours == pytest.approx(0.75)
    assert one.spread == pytest.approx(0.5 / 2**0.5)


def test_runs_of_one_row_with_other_n_are_shown_at_the_k_they_share(tmp_path):
    words = {"a": "10000000", "b": "0000", "c": "111110"}  # pass@4 is 1/2, 0 and 1
    runs = [evaluated(tmp_path / name, {"minerva": {"m": word}}) for name, word in words.items()]
    one, top = make("table9", {"GRPO": runs}, tmp_path / "out").table.rows["GRPO"]
    assert one.ours == pytest.approx((1 / 8 + 0 + 5 / 6) / 3)
    assert (top.ours, top.k) == (pytest.approx(0.5), 4)
    assert top.spread == pytest.approx(0.5)


def test_a_damaged_training_record_is_named_and_the_row_is_shown(tmp_path):
    run = evaluated(tmp_path / "grpo", {"minerva": {"m": "10"}})
    (run / "run.json").write_text('{"settings": null}')
    made = make("table9", {"grpo": run}, tmp_path / "out")
    assert made.table.rows["GRPO"][0].ours == 0.5
    assert any("run.json: settings is" in n for n in made.notes)


def test_a_row_of_ones_own_and_a_broken_run(tmp_path):
    run = evaluated(tmp_path / "tempered", THREE)
    made = make("table1", {"tempered | mine": run, "grpo": tmp_path / "gone"}, tmp_path / "out")
    assert made.table.rows["tempered | mine"][0].paper is None
    assert made.table.rows["GRPO"][0].ours is None
    assert any("GRPO: no evaluation in" in n for n in made.notes)
    assert "tempered \\| mine" in (tmp_path / "out" / "table1.md").read_text()


def test_table2(tmp_path):
    rows = [("aime", "p", 0, i, text, 1.0) for i, text in enumerate(["Let x be", "of the form", "no", "no"])]
    rows += [("aime", "p", 0, 16, "by contradiction", 1.0)]  # the 17th: not looked at
    made = make("table2", {"base": make_store(tmp_path / "b", rows)}, tmp_path / "out")
    setup, structural, contradiction = made.table.rows["Base"]
    assert (setup.ours, structural.ours, contradiction.ours) == (0.25, 0.25, 0.0)
    assert (setup.paper, contradiction.paper) == (0.458, 0.007)


def test_table5(tmp_path):
    log = [{"step": s, "grad_norm": s / 100} for s in range(1, 10)]
    made = make("table5", {"grpo_no_kl": write_log(tmp_path / "t", log, {"max_steps": 9})}, tmp_path / "out")
    assert [c.ours for c in made.table.rows["GRPO w/o KL"]] == pytest.approx([0.02, 0.05, 0.08])
    assert [c.paper for c in made.table.rows["GRPO w/o KL"]] == [0.018, 0.010, 0.023]
    assert made.table.rows["GRPO"][0].ours is None


def test_table6(tmp_path):
    run = evaluated(tmp_path / "run", {"amc23": {"c": "1000"}})
    write_log(run, [], {"guide": "branch", "guide_args": {"threshold": 0.8, "ratio": 0.3}})
    table = make("table6", {"grid": run}, tmp_path / "out").table
    one, top = table.rows["τ = 0.8, ρ = 0.3"]
    assert (one.ours, top.ours) == pytest.approx((0.25, 1.0))
    assert (one.paper, top.paper, top.k) == (0.45, 0.958, 4)
    assert len(table.rows) == 9
    assert r"$\tau$ = 0.8" in (tmp_path / "out" / "table6.tex").read_text()


def test_the_papers_averages_are_the_means_of_its_tasks():
    """The transcription checks itself: an average is printed to three digits."""
    for number in (1, 3, 4):
        for row, cells in paper.results(number).items():
            for k in (1, paper.TABLES[number]["top"]):
                mean = sum(cells[t, k].mean for t in paper.TASKS) / 3
                assert cells[paper.AVERAGE, k].mean == pytest.approx(mean, abs=0.0011), (number, row, k)


@pytest.mark.parametrize(
    ("label", "row"),
    [("branch", "GRPO + Branch"), ("GRPO + Branch", "GRPO + Branch"), ("grpo_no_kl", "GRPO w/o KL"), ("base", "Base"),
     ("Base Model", "Base"), ("full_1.5b_grpo", "GRPO"), ("DAPO (no KL)", "DAPO"), ("my arm", "my arm")],
)  # fmt: skip
def test_labels(label, row):
    assert paper.row_of(label) == row


def test_runs_as_flags():
    assert parse_runs(["base=x/y", "runs/grpo", "b=1", "b=2"]) == {
        "base": ["x/y"],
        "grpo": ["runs/grpo"],
        "b": ["1", "2"],
    }
    with pytest.raises(UserError, match="label=folder"):
        parse_runs(["=x"])


# ---- figures -----------------------------------------------------------------------------------------------------


def test_figure2(tmp_path):
    for name, end in (("grpo", 0.4), ("grpo_no_kl", 0.1)):
        held = [{"step": s, "held_out/aime/pass@1": v} for s, v in ((0, 0.2), (5, 0.4), (10, end))]
        write_log(tmp_path / name, [*held, *({"step": s, "reward": s / 10} for s in range(1, 11))], {"max_steps": 10})
    made = make("figure2", {n: tmp_path / n for n in ("grpo", "grpo_no_kl")}, tmp_path / "out")
    assert [f.suffix for f in made.files] == [".svg", ".png", ".json"]
    assert "GRPO w/o KL: held-out pass@1 peaks at 0.400 (step 5) and ends at 0.100" in made.description


def test_figure3_marks_the_papers_points(tmp_path):
    made = make("figure3", {"branch": evaluated(tmp_path / "b", THREE)}, tmp_path / "out")
    assert "AIME, GRPO + Branch: 0.125 at k=1 to 0.500 at k=4" in made.description
    assert "AIME, GRPO, the paper's: 0.053 at k=1, 0.407 at k=256" in made.description
    assert any("GRPO: not run" in n for n in made.notes)


def test_figure6_has_a_panel_a_model(tmp_path):
    runs = {}
    for name, model in (("full_1.5b", "Q/small"), ("full_1.5b_grpo", "Q/small"), ("full_3b", "Q/large")):
        runs[name] = evaluated(tmp_path / name, {"amc23": {"c": "10"}}, {"model": model})
    data = json.loads((make("figure6", runs, tmp_path / "out").files[-1]).read_text())["data"]["ours"]
    assert {panel: set(rows) for panel, rows in data.items()} == {
        "small · amc23": {"GRPO + Branch", "GRPO"}, "large · amc23": {"GRPO + Branch"}
    }  # fmt: skip


def test_figure7_shows_two_problems(tmp_path):
    from tests.analysis.models import make_run, make_samples
    from tests.models import tiny

    base = tiny.save_base(tmp_path / "model")
    runs = {n: make_run(tmp_path / n, base, make_samples(base, 3, seed=i)) for i, n in enumerate(("base", "branch"))}
    made = make("figure7", runs, tmp_path / "out")
    data = json.loads(made.files[-1].read_text())["data"]
    assert {row: len(by) for row, by in data.items()} == {"Base": 2, "GRPO + Branch": 2}
    assert all(len(x) == 4 for x in data["Base"].values())


def test_nothing_run_leaves_the_papers_values(tmp_path):
    made = {m.which: m for m in make_all({}, tmp_path)}
    assert set(TABLES) <= set(made)
    for which in TABLES:
        text = (tmp_path / f"{which}.md").read_text()
        assert "not run" in text
        assert "†" in text
    assert (tmp_path / "figure3.svg").is_file()  # the paper's points
    assert (tmp_path / "figure5.svg").is_file()  # needs no run
    assert not (tmp_path / "figure4.svg").exists()
    assert made["figure4"].notes == ["figure4: not run"]


def test_the_same_runs_give_the_same_files(tmp_path):
    run = evaluated(tmp_path / "b", THREE)
    for out in ("x", "y"):
        make("figure3", {"branch": run}, tmp_path / out)
    assert (tmp_path / "x" / "figure3.svg").read_bytes() == (tmp_path / "y" / "figure3.svg").read_bytes()


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(UserError, match="perhaps you mean table"):
        make("table7", {}, tmp_path)
