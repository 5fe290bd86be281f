"""Settings that are gone: the sentence that says what to write, and records made with them read as what they mean today."""

import json
import lzma
from pathlib import Path

import pytest
import yaml

from sage_rlvr import UserError
from sage_rlvr.study.plan import RECORD, load_study, open_folder, read_folder
from sage_rlvr.study.records import RUNS, unpack
from sage_rlvr.train import gone
from tests.slow import but_few

ROOT = Path(__file__).parents[2]
SHARE = {"advantage_args": {"share": 0.5}}


def test_what_old_settings_are_today():
    now = gone.translated
    assert now({"beta": 0.1, "coverage": 0.0, "rarity": 0.0, "advantage": "beta"}) == {"beta": 0.1, "advantage": "beta"}
    assert now({"rarity": 0.5}) == {"advantage": "rarity"} | SHARE
    assert now({"rarity": 0.5, "coverage": 0.0, "advantage": "group"}) == {"advantage": "rarity"} | SHARE
    assert now({"coverage": 0.5, "advantage": "beta"}) == {
        "advantage": ["coverage", "beta"],
        "advantage_args": {"coverage": {"share": 0.5}},
    }
    both = {"coverage": 1.0, "rarity": 1.0}
    assert now(both) == both, "their product is no advantage of today's"
    new = {"advantage": ["rarity", "focal"], "advantage_args": {"focal": {"gamma": 1.0}}}
    assert now(new) == new


def test_a_study_of_old_settings_is_read_as_it_was_meant():
    content = {
        "train": {"max_steps": 3, "coverage": 0.5},
        "variants": {
            "a": {},
            "b": {"coverage": 0.0, "rarity": 0.5},
            "c": {"coverage": 0.0},
            "d": {"advantage": "beta"},
        },
    }
    read = gone.translated_study(content)
    assert read["train"] == {"max_steps": 3}
    assert read["variants"] == {
        "a": {"advantage": "coverage"} | SHARE,
        "b": {"advantage": "rarity"} | SHARE,
        "c": {},
        "d": {"advantage": ["coverage", "beta"], "advantage_args": {"coverage": {"share": 0.5}}},
    }


@pytest.mark.parametrize(
    ("name", "families"), but_few([("frontier", ("coverage", "rarity")), ("confirm", ("best",))], fast=[0])
)
def test_the_committed_records_are_those_of_todays_study(tmp_path, name, families):
    """Records made with the fields that are gone are laid into a folder of today's study: every run's settings are its own."""
    records = ROOT / "results" / "gpu" / name
    with lzma.open(records / RUNS, "rt", encoding="utf-8") as f:
        written = json.loads(next(f))["study"]
    old = [v for v, settings in written["variants"].items() if set(gone.SHARES) & settings.keys()]
    assert {v.partition("+")[0] for v in old} == set(families)
    study = load_study(name)
    open_folder(study, tmp_path / "new")
    laid = unpack([records], tmp_path / "new")
    assert {f"{v}-s{seed}" for v in old for seed in study.seeds_of(v)} <= set(laid)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / RECORD).write_text(json.dumps(written))  # a folder that an earlier release began
    for variant in old:
        run = f"{variant}-s{study.seeds_of(variant)[0]}"
        assert read_folder(tmp_path / "old").settings_of(run) == study.settings_of(run)
    (tmp_path / "old" / run).mkdir()
    open_folder(study, tmp_path / "old")


def test_a_study_file_that_sets_them_is_told_what_to_write(tmp_path):
    content = {
        "base": {"model_name_or_path": "m"},
        "train": {"max_steps": 3},
        "variants": {"rare": {"rarity": 0.5, "sweep": {"beta": [0.1]}}},
        "seeds": [0],
        "evaluate": {"tasks": ["t"]},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"mine.yaml, rare\+beta0.1: .* write advantage='rarity', .*{'share': 0.5}"):
        load_study(tmp_path / "mine.yaml")
