"""τ and ρ come from the run behind an evaluation; pass@k from its samples."""

import json

import pytest

from sage_rlvr.analysis.grid import grid, settings_of
from sage_rlvr.errors import UserError
from tests.analysis.stores import make_store, words


def evaluated(tmp_path, name, args, cells, guide="branch", **more):
    train = tmp_path / "train" / name
    train.mkdir(parents=True)
    (train / "run.json").write_text(
        json.dumps({"settings": {"guide": guide, "guide_args": args, **more}, "finished": True})
    )
    return make_store(tmp_path / "eval" / name, words("amc23", cells), {"model": "base", "adapter": str(train)})


def test_known_answer(tmp_path):
    runs = [
        evaluated(tmp_path, "a", {"threshold": 0.8, "ratio": 0.1}, {"p": "1100", "q": "0000"}),
        evaluated(tmp_path, "b", {"threshold": 2.0, "ratio": 0.5}, {"p": "1111", "q": "1000"}),
        evaluated(tmp_path, "c", {"threshold": 2.0, "ratio": 0.5}, {"p": "0001", "q": "0000"}),
        evaluated(tmp_path, "none", {}, {"p": "1111"}, guide="none"),
        tmp_path / "missing",
    ]
    g = grid(runs)
    assert (g.task, g.top, g.problems) == ("amc23", 4, 2)
    one, two = g.cells
    assert (one.threshold, one.ratio, one.pass_1, one.pass_top) == (0.8, 0.1, pytest.approx(1 / 4), pytest.approx(0.5))
    assert (two.threshold, two.ratio) == (2.0, 0.5)
    assert two.pass_1 == pytest.approx((5 / 8 + 1 / 8) / 2)
    assert two.std_1 == pytest.approx(0.5 / 2**0.5)
    assert two.pass_top == pytest.approx((1 + 0.5) / 2)
    assert "guide 'none', not 'branch'" in g.absent[str(runs[3])]
    assert "no run" in g.absent[str(runs[4])]


def test_defaults_of_the_guide_count(tmp_path):
    assert settings_of(evaluated(tmp_path, "a", {"ratio": 0.7}, {"p": "1"})) == (1.2, 0.7)


def test_a_base_behind_which_an_sft_stage_stands_is_not_in_the_grid(tmp_path):
    base = evaluated(tmp_path, "sft", None, {"p": "1"})
    (tmp_path / "train" / "sft" / "run.json").write_text(json.dumps({"settings": {"epochs": 2}, "finished": True}))
    with pytest.raises(UserError, match="guide None"):
        settings_of(base)


def test_unequal_problems_are_compared_on_the_common_ones(tmp_path):
    a = evaluated(tmp_path, "a", {"threshold": 1.0}, {"p": "10", "q": "00"})
    b = evaluated(tmp_path, "b", {"threshold": 2.0}, {"p": "11"})
    g = grid([a, b])
    assert g.problems == 1
    assert [c.pass_1 for c in g.cells] == [0.5, 1.0]


def test_what_else_differs_is_said(tmp_path):
    a = evaluated(tmp_path, "a", {"threshold": 1.0}, {"p": "10"}, beta=0.05, seed=1)
    b = evaluated(tmp_path, "b", {"threshold": 2.0}, {"p": "11"}, beta=0.2, seed=2)
    (note,) = grid([a, b]).notes
    assert note.endswith("in more than τ and ρ: beta 0.05 → 0.2")


def test_nothing_to_show(tmp_path):
    with pytest.raises(UserError, match="grid: no run"):
        grid([tmp_path / "x"])
