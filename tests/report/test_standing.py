"""The first screen's rows and verdict: against the paired formula, the studies' rules, and the page in Chromium."""

import json
import re

import numpy as np
import pytest

from sage_rlvr.report.find import find_runs
from sage_rlvr.report.page import build_report
from sage_rlvr.report.standing import anchor_words, grpo_of, standing, unhealthy, variants_of, verdict
from sage_rlvr.stats.counts import counts_of
from sage_rlvr.stats.intervals import student
from sage_rlvr.stats.pass_at_k import pass_at_k
from tests.report.browser import Browser, needs_browser
from tests.report.synthetic import write_log, write_store
from tests.slow import but_few

PROBLEMS, N = 60, 8


def chance(shift):
    return [min(0.95, max(0.0, 0.01 + 0.004 * p + shift)) for p in range(PROBLEMS)]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """base; grpo, better, low: three seeds each; study.json in another order than the alphabet's."""
    root = tmp_path_factory.mktemp("study")
    write_store(root / "base" / "eval", {"toy": chance(0.0)}, n=N)
    for arm, shift in {"grpo": 0.03, "better": 0.3, "low": -0.2}.items():
        for seed in range(3):
            folder = root / f"{arm}-s{seed}"
            write_store(folder / "eval", {"toy": chance(shift)}, n=N)
            write_log(folder / "train", guide="branch" if arm == "better" else "none", beta=0.05)
    order = {"variants": {"low": {}, "grpo": {}, "better": {}}}
    (root / "study.json").write_text(json.dumps(order))
    return root


@pytest.fixture(scope="module")
def first(study):
    found = find_runs([study])
    return standing(found.evals, found.trains)


def table(study, run, k):
    counts = counts_of(study / run / "eval").tasks["toy"]
    return pass_at_k(counts.totals, counts.rights, k)


def test_seeds_are_gathered_and_the_studys_order_is_kept(first):
    assert [(v["name"], v["seeds"]) for v in first["variants"]] == [("base", 1), ("low", 3), ("grpo", 3), ("better", 3)]
    assert first["references"] == {"base": 0, "GRPO": 2}
    assert first["groups"]["toy"]["problems"] == PROBLEMS


def test_rows_are_the_means_of_the_records(study, first):
    row = first["groups"]["toy"]["rows"][3]
    seeds = [table(study, f"better-s{s}", N).mean() for s in range(3)]
    assert row["ticks"][N] == pytest.approx(seeds)
    grpo = np.mean([table(study, f"grpo-s{s}", N).mean() for s in range(3)])
    assert row["minus"]["GRPO"][N][0] == pytest.approx(np.mean(seeds) - grpo)
    solved = [table(study, f"better-s{s}", N) > 0 for s in range(3)]
    before = table(study, "base", N) > 0
    assert row["lost"] == pytest.approx(np.mean([(before & ~s).sum() for s in solved]))
    assert row["gained"] == pytest.approx(np.mean([(s & ~before).sum() for s in solved]))


def test_with_one_seed_the_interval_is_the_paired_t(tmp_path):
    for name, shift in {"base": 0.0, "other": 0.1}.items():
        write_store(tmp_path / name / "eval", {"toy": chance(shift)}, n=N)
    found = find_runs([tmp_path])
    row = standing(found.evals, found.trains)["groups"]["toy"]["rows"][1]
    d = table(tmp_path, "other", 1) - table(tmp_path, "base", 1)
    half = student(0.975, PROBLEMS - 1) * d.std(ddof=1) / PROBLEMS**0.5
    assert row["minus"]["base"][1] == pytest.approx([d.mean(), d.mean() - half, d.mean() + half])


def test_the_verdict_of_a_study(first):
    said = first["groups"]["toy"]["verdict"]["GRPO"]
    row = first["groups"]["toy"]["rows"][3]["minus"]["GRPO"]
    assert said[0].startswith("better is better than grpo on both numbers: pass@1 +")
    numbers = [float(x.replace("−", "-")) for x in re.findall(r"[+−]\d\.\d+", said[0])]
    assert numbers == pytest.approx([*row[1], *row[N]], abs=6e-4)


GUIDED, PLAIN = {"guide": "branch", "beta": 0.05}, {"guide": "none", "beta": 0.05, "advantage": "group"}
NAMES = ["base", "grpo", "a", "b"]


def group(moves, seeds=3, k=8):
    """Rows whose differences, plain and judged, are those of ``moves``: name → ((low, high) at 1, (low, high) at k)."""
    rows = []
    for name in NAMES:
        own = [[(low + high) / 2, low, high] for low, high in moves.get(name, ((-0.1, 0.1),) * 2)]
        minus = {ref: {1: own[0], k: own[1]} for ref in ("base", "GRPO")}
        rows.append(
            {"pass": {1: own[0], k: own[1]}, "ticks": {1: [0.0] * seeds}, "minus": minus, "judged": minus, "flags": []}
        )
    return {"k": k, "rows": rows}


UP, DOWN, NO = (0.01, 0.03), (-0.03, -0.01), (-0.01, 0.02)


@pytest.mark.parametrize(
    ("moves", "seeds", "wanted"),
    [
        ({"a": (UP, UP)}, 3, "a is better than grpo on both numbers"),
        ({"a": (UP, UP), "b": (UP, UP)}, 5, "So is b."),
        ({"a": (UP, NO)}, 3, "No variant is better than grpo on both pass@1 and pass@8. Against it, pass@1 is higher for a."),
        ({"a": (UP, DOWN), "b": (NO, DOWN)}, 3, "pass@8 is lower for a, b."),
        ({}, 3, "No variant is better than grpo on both pass@1 and pass@8. Against it, no difference is detected."),
        ({"a": (UP, UP)}, 2, "Not judged: 2 seeds per variant, and 3 are needed. In these runs, against grpo: pass@1 is"),
        ({"a": (UP, UP)}, 1, "Not judged: 1 seed per variant"),
    ],
)  # fmt: skip
def test_verdicts(moves, seeds, wanted):
    said = " ".join(verdict(NAMES, "GRPO", 1, group(moves, seeds))).strip()
    assert wanted in said
    assert said.count(". ") <= 1  # two sentences at most


@pytest.mark.parametrize(
    ("moves", "wanted"),
    [
        ({"a": (UP, UP), "b": (UP, UP)}, " So is b; flagged: b (truncated)."),
        ({"a": (NO, NO), "b": (UP, UP)}, " Flagged: b (truncated)."),
        ({"a": (UP, NO), "b": (UP, DOWN)}, " Against it, pass@1 is higher for a, b (flagged); pass@8 is lower for b."),
    ],
)
def test_a_gain_of_a_broken_run_is_never_told_without_its_flag(moves, wanted):
    numbers = group(moves)
    numbers["rows"][NAMES.index("b")]["flags"] = ["truncated"]
    assert " ".join(verdict(NAMES, "GRPO", 1, numbers)).endswith(wanted)


def test_more_variants_make_the_verdict_stricter(study, first):
    for row in first["groups"]["toy"]["rows"][1:2]:
        plain, strict = (np.diff(row[which]["GRPO"][N][1:])[0] for which in ("minus", "judged"))
        assert strict > plain


def test_grpo_is_found_by_its_settings_where_no_name_says_so(tmp_path):
    for name, settings in {"base": None, "x": GUIDED, "y": {"guide": "none", "beta": 0.0}, "z": PLAIN}.items():
        write_store(tmp_path / name / "eval", {"toy": [0.5]}, n=2)
        if settings:
            write_log(tmp_path / name / "train", steps=2, **settings)
    found = find_runs([tmp_path])
    variants = variants_of(found.evals, found.trains)
    assert variants[grpo_of(variants)].name == "z"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beta": 0.0}, "no KL"),
        ({"guide": "none", "beta": 0.05, "advantage": "group"}, "KL to π_ref (k3), β 0.05"),
        ({"guide": "branch", "beta": 0.1, "anchor_estimator": "k1-reward"}, "KL to branch q·π_ref (k1-reward), β 0.1"),
        (
            {"guide": "none", "beta": 0.05, "advantage": ["rarity", "focal"]},
            "KL to π_ref (k3), β 0.05; rarity + focal advantage",
        ),
    ],
)
def test_words(settings, words):
    assert anchor_words(settings) == words


@pytest.mark.parametrize(
    ("name", "values", "settings", "flags"),
    [
        ("completions/clipped_ratio", [0.0, 0.5], {}, ["truncated"]),
        ("completions/clipped_ratio", [0.5, 0.0], {}, []),
        ("sage/active", [0.0, 0.0], GUIDED, ["idle guide"]),
        ("sage/active", [0.0, 0.0], PLAIN, []),
        ("sage/bonus_to_reward", [0.1, 2.0], {}, ["bonus above reward"]),
        ("frac_reward_zero_std", [0.1, 0.9], {}, ["no variance in groups"]),
        ("entropy", [0.3, 1.5], {}, ["entropy run-away"]),
        ("entropy", [0.3, 0.1], {}, []),
        ("reward", [0.3, 0.1], {}, ["reward fell"]),
        ("reward", [float("nan"), None], {}, []),
    ],
)
def test_health_by_name(name, values, settings, flags):
    assert unhealthy([{"step": i, name: v} for i, v in enumerate(values)], settings) == flags


def test_runs_that_share_no_problem_have_no_first_screen(tmp_path):
    write_store(tmp_path / "a" / "eval", {"one": [0.5]}, n=2)
    write_store(tmp_path / "b" / "eval", {"two": [0.5]}, n=2)
    found = find_runs([tmp_path])
    assert standing(found.evals, found.trains) is None


@needs_browser
def test_the_page_says_the_verdict_of_the_records(study, first, tmp_path):
    b = Browser()
    try:
        b.size(1440)
        b.open(build_report(study, tmp_path / "out.html", resamples=50))
        rows = first["groups"]["toy"]["rows"]
        for label, ref in (("against GRPO", "GRPO"), ("against base", "base")):
            b.js(
                "[...document.querySelectorAll('#first label')].find((l) => l.textContent === arguments[0]).click()",
                label,
            )
            assert b.text("#first .answer") == " ".join(x for x in first["groups"]["toy"]["verdict"][ref] if x)
            shown = [(r["minus"][ref][k], len(r["ticks"][k])) for r in rows if ref in r["minus"] for k in (1, N)]
            assert len(b.all("#first .dot .full")) == sum(t[1] > 0 or t[2] < 0 for t, _ in shown)
            assert len(b.all("#first .dot .seed")) == sum(seeds for _, seeds in shown if seeds > 1)
            for dot, ticks in b.js(
                "return [...document.querySelectorAll('#first .dot')].map((d) => [d.querySelector('circle').cx.baseVal.value,"
                " [...d.querySelectorAll('.seed')].map((s) => s.x1.baseVal.value)])"
            ):
                assert not ticks or np.mean(ticks) == pytest.approx(dot, abs=0.1)
        names = b.js(
            "return [...document.querySelectorAll('#first tbody th bdi:first-of-type')].map((x) => x.textContent)"
        )
        assert [n for n in names if n in ("base", "low", "grpo", "better")] == ["base", "low", "grpo", "better"]
        assert b.js("return document.querySelector('#first').getBoundingClientRect().bottom") < 900
        assert "too few" not in b.text("#first h1")
        assert "✓" not in b.text("#overview table")  # "low" lost reward: a finished run need not be a good one
        grid = "return [...document.querySelectorAll('#first canvas')].map((c) => [c.width, c.parentNode.clientWidth])"
        width, room = b.wait(f"{grid}.find(([w]) => w > 300)")
        assert width <= room  # every problem is in view

        b.open(build_report(study / "base", tmp_path / "one.html", resamples=50))  # an evaluation alone
        assert b.text("#first .answer").endswith("There is nothing to compare it with.")
        assert b.js("return document.querySelectorAll('#first .plane, #first .dot').length") == 0
        own = table(study, "base", N)
        said = b.wait("return document.querySelector('#first .support figcaption').textContent")
        assert f"solves {(own > 0).sum()} of {PROBLEMS} problems" in said
        assert b.errors() == []
    finally:
        b.close()


@pytest.mark.parametrize(("runs", "mb"), but_few([(5, 3), (25, 5)], fast=[0]))
def test_a_page_of_25_runs_and_1000_problems_is_under_5_mb(tmp_path, runs, mb):
    for i in range(runs):
        write_store(tmp_path / "runs" / f"run-{i:02d}", {"toy": [0.001 * p for p in range(1000)]}, n=1, words=60)
    page = build_report(tmp_path / "runs", tmp_path / "out.html", resamples=50)
    assert 1_000_000 < page.stat().st_size < mb * 1_000_000
