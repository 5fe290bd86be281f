"""benchmarks/room.py: kinds of families, and the rules of docs/protocols/hard.md."""

from pathlib import Path

import numpy as np
import pytest

from sage_rlvr.stats.frontier import Frontier, Point
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.study.plan import Study, load_study

ROOT = Path(__file__).parents[2]
KINDS = {
    "GRPO": ["grpo_k3", "grpo_k3plus", "grpo_k1", "grpo_no_kl"],
    "control": ["low_rate", "entropy_bonus", "random_reward"],
    "guide": ["branch_k3", "tempered_k3plus", "verified_k1", "group_k1", "value_k1"],
    "cross": ["rarity_focal", "smooth_focal", "verified_focal", "rarity_tempered"],
    "advantage": [
        "rarity", "coverage", "unlikely", "smooth", "alike", "focal", "maxrl", "passk", "pkpo", "signed", "risk",
    ],
}  # fmt: skip


@pytest.fixture
def room(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import room

    return room


def test_every_family_of_the_search_has_its_kind(room):
    study = load_study("hard")
    families = dict.fromkeys(map(study.family_of, study.variants))
    assert {f: room.kind_of(study, f) for f in families} == {f: kind for kind, own in KINDS.items() for f in own}


def lines(heights, seeds=5, problems=40):
    """family → two arms each, over pass@1 of .1 to .2: at ``heights``, every seed a little off, all problems alike."""
    rng = np.random.default_rng(0)

    def arm(family, beta, x, y):
        noise = 1e-3 * rng.standard_normal((2, seeds, 1))
        return Point(
            f"{family}+beta{beta}", noise[0] + np.full((seeds, problems), x), noise[1] + np.full((seeds, problems), y)
        )

    return {
        family: [arm(family, 0.1, 0.1, 0.6 + height), arm(family, 0.2, 0.2, 0.5 + height)]
        for family, height in heights.items()
    }


def said(room, heights):
    """(rows, sentences) of a search whose families lie so high above GRPO."""
    study = load_study("hard")
    families = lines({"grpo_k3": 0.0, **heights})
    found = {f.family: f for f in room_frontiers(families, len(heights))}
    rows = room.families_of(study, families, found)
    return rows, room.rules(rows, families)


def room_frontiers(families, comparisons):
    from sage_rlvr.stats.frontier import frontiers

    return frontiers(families, "grpo_k3", comparisons, heights=False)


def test_the_best_of_each_kind_is_confirmed_and_only_a_gain_over_the_low_rate_counts(room):
    heights = {"low_rate": 0.05, "maxrl": 0.1, "passk": 0.02, "branch_k3": -0.1, "value_k1": 0.01, "verified_focal": 0.04,
               "grpo_k1": 0.3, "entropy_bonus": 0.2}  # fmt: skip
    rows, told = said(room, heights)
    assert {kind: row.name for kind, row in room.confirmed(rows).items()} == {
        "advantage": "maxrl", "guide": "value_k1", "cross": "verified_focal",
    }  # fmt: skip
    assert [line.split("`")[1] for line in told[:-1]] == ["entropy_bonus", "maxrl"]
    assert all("moves the frontier" in line and "over the low-rate control" in line for line in told[:-1])
    assert told[-1].startswith("- Rule 2: the confirmation takes `maxrl` (advantage, +0.1")
    _, none = said(room, heights | {"maxrl": 0.03, "entropy_bonus": 0.0})
    assert none[0] == "- Rule 1: none of 6 families moves the frontier."


def test_a_family_without_a_gain_is_last_and_never_confirmed(room):
    study = load_study("hard")
    families = lines({"grpo_k3": 0.0, "maxrl": 0.0, "signed": 0.0})
    gains = {"grpo_k3": None, "maxrl": Interval(-0.02, -0.03, -0.01), "signed": None}
    rows = room.families_of(study, families, {f: Frontier(f, {}, [], None, None, g, 5) for f, g in gains.items()})
    assert [row.name for row in rows] == ["maxrl", "signed"]


def test_the_highest_lower_end_is_first_not_the_highest_mean(room):
    study = load_study("hard")
    gains = {"grpo_k3": None, "passk": Interval(0.05, -0.01, 0.11), "maxrl": Interval(0.02, 0.01, 0.03)}
    families = lines(dict.fromkeys(gains, 0.0))
    rows = room.families_of(study, families, {f: Frontier(f, {}, [], None, None, g, 5) for f, g in gains.items()})
    assert [row.name for row in rows] == ["maxrl", "passk"]


def test_the_confirmation_has_the_searchs_settings_and_base():
    """What is confirmed is what was found: the same arms, on problems and at seeds that the search never had."""
    search, confirm = load_study("hard"), load_study("hard_confirm")
    assert (confirm.base, confirm.train) == (search.base, search.train)
    assert not set(confirm.seeds) & {s for v in search.variants for s in search.seeds_of(v)}
    assert confirm.evaluate == search.evaluate | {"tasks": ["countdown-hard-fresh"], "limit": 1000}
    own = {name: settings for name, settings in confirm.variants.items() if not name.startswith("maxrl_low")}
    named = {name.replace("reference+", "grpo_k3+"): settings for name, settings in own.items()}
    for name, settings in named.items():
        theirs = {key: value for key, value in search.variants[name].items() if key != "seeds"}
        assert settings == theirs, name
    for name, settings in confirm.variants.items():
        if name.startswith("maxrl_low"):
            twin = confirm.variants[name.replace("maxrl_low_rate", "maxrl")]
            assert settings == twin | {"learning_rate": search.variants["low_rate+beta0.05"]["learning_rate"]}


def test_the_change_differs_from_the_confirmation_by_problems_rate_and_seeds_alone():
    confirm, change = load_study("hard_confirm"), load_study("hard_once")
    assert (change.base, change.train, change.evaluate) == (confirm.base, confirm.train, confirm.evaluate)
    others = {s for v in confirm.variants for s in confirm.seeds_of(v)}
    assert not others & {s for v in change.variants for s in change.seeds_of(v)}
    trained = {name: own for name, own in change.variants.items() if change.blend_of(f"{name}-s200") is None}
    asked = {change.family_of(name): own.keys() - {"beta"} for name, own in trained.items()}
    assert asked == {
        "reference": set(), "no_kl": set(), "low_rate": {"learning_rate"}, "lower_rate": {"learning_rate"}, "once": {"rows"},
        "once_lower": {"rows", "learning_rate"}, "once_lower_maxrl": {"rows", "learning_rate", "advantage"},
    }  # fmt: skip
    once = change.settings_of("once_lower+beta0.0-s200")
    drawn = once["per_device_train_batch_size"] // once["num_generations"] * once["max_steps"]
    assert once["rows"] == drawn < confirm.base["demonstrations"]["after"], "each once, none of them demonstrated"


def test_the_confirmation_takes_what_the_search_named(room):
    """Once the search is whole. By the page's table, where each kind's best comes first: that the page is what the committed
    records give is asked in test_results_pages.py, from the records themselves."""
    page = (ROOT / "docs" / "evidence" / "index.md").read_text(encoding="utf-8")
    table = page.partition("<!-- made: room_families -->")[2].partition("<!-- /made -->")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:]] for line in table.splitlines() if line.startswith("| `")]
    named = {kind: next(row[0] for row in rows if row[1] == kind and row[3] != "–") for kind in room.CONFIRMED}
    search, confirm = load_study("hard"), load_study("hard_confirm")
    families = [search.family_of(variant) for variant in search.variants]
    swept = {family for family in families if families.count(family) > 1} - {room.GRPO}
    told = {row[0]: int(row[2]) for row in rows}
    assert told.keys() == swept
    assert min(told.values()) == len(search.seeds)
    assert set(named.values()) == {confirm.family_of(v) for v in confirm.variants} - {
        "reference", "low_rate", "maxrl_low_rate",
    }  # fmt: skip


def test_a_study_of_controls_alone_is_no_cross(room):
    parts = {"base": {"model_name_or_path": "m"}, "train": {}, "seeds": [0], "evaluate": {"tasks": ["t"]}}
    variants = {"x": {"advantage": ["group"]}, "y": {"advantage": ["group", "rarity"], "guide": "none"}}
    study = Study("s", variants=variants, **parts)
    assert (room.kind_of(study, "x"), room.kind_of(study, "y")) == ("control", "advantage")
