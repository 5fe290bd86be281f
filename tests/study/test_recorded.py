"""Committed records of settings that were written otherwise, read as what they mean today."""

import json
import lzma
from pathlib import Path

import pytest
import yaml

from benchmarks.gpu.records import RUNS, unpack
from sage_rlvr import UserError
from sage_rlvr.study.plan import RECORD, load_study, open_folder, read_folder
from tests.slow import but_few

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "families"), but_few([("frontier", ("coverage", "rarity")), ("confirm", ("best",))], fast=[1])
)
def test_the_committed_records_are_those_of_todays_study(tmp_path, name, families):
    """coverage and rarity were settings then: every run's settings are those of today's study."""
    records = ROOT / "results" / "gpu" / name
    with lzma.open(records / RUNS, "rt", encoding="utf-8") as f:
        written = json.loads(next(f))["study"]
    old = [v for v, settings in written["variants"].items() if {"coverage", "rarity"} & settings.keys()]
    assert {v.partition("+")[0] for v in old} == set(families)
    study = load_study(name)
    open_folder(study, tmp_path / "new")
    laid = unpack([records], tmp_path / "new")
    assert {f"{v}-s{seed}" for v in old for seed in study.seeds_of(v)} <= set(laid)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / RECORD).write_text(json.dumps(written))
    for variant in old:
        run = f"{variant}-s{study.seeds_of(variant)[0]}"
        assert read_folder(tmp_path / "old").settings_of(run) == study.settings_of(run)


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
