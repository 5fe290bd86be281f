"""docs/reliability.md is what its records give, and they say what the issue asks of them."""

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def record(name):
    return json.loads((ROOT / "results" / "cpu" / f"{name}.json").read_text())


def test_the_page_is_made_from_the_records(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["reliability.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / "reliability.py"), run_name="__main__")
    assert ended.value.code == 0


def test_what_the_records_hold():
    assert all(found["exceptions"] == 0 for found in record("scorers")["tried"].values())
    kills = record("kills")
    for kind in ("training", "sft", "evaluation", "studies"):
        found = kills[kind]
        assert found["kills"] >= 20
        assert found["identical"] == found["runs"]
        assert found["leaked"] == found["lost"] == found["doubled"] == 0
    assert all(race["second_writers_accepted"] == 0 for race in kills["races"].values())
    right = record("verdicts")["right"]
    assert all(r["after"] == r["judged"] for name, r in right.items() if name.startswith("gold"))
