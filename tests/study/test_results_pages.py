"""make results: pages and figures from records alone, the same bytes each time, and those of this repository are up to date."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.beside import support_rows
from benchmarks.gpu.records import RUNS, pack
from sage_rlvr.models import write_whole
from sage_rlvr.stats.against import Standing
from sage_rlvr.stats.counts import LENGTH, counts_of
from sage_rlvr.stats.distance import excesses
from sage_rlvr.stats.frontier import Frontier, Point, frontiers
from sage_rlvr.stats.intervals import Interval
from sage_rlvr.study.console import show_frontier
from sage_rlvr.study.job import STATUS
from sage_rlvr.study.plan import Study, open_folder
from sage_rlvr.study.read import read_planes, read_runs, study_rows
from tests.evaluate.runs import make_run

ROOT = Path(__file__).parents[2]
SCRIPT, PLANES = ROOT / "benchmarks" / "results.py", ROOT / "benchmarks" / "planes.py"
SWEPT = ("grpo_k3+beta0.1", "grpo_k3+beta0.4", "sage+beta0.1", "sage+beta0.4", "alone")
PARTS = {"base": {"model_name_or_path": "m"}, "train": {"max_steps": 20}, "seeds": [0, 1]}
MACHINE = {"release": "1.0", "libraries": {"torch": "2.11", "trl": "1.16"}}
SESSIONS = [
    {"wall_s": 90.0, "machine": "eight cores, a card", "commit": "abc", **MACHINE},
    {"wall_s": 60.0, "machine": "eight cores, a card", "commit": "def", **MACHINE},
    {"wall_s": 30.0, "machine": "two cores", "commit": None, **MACHINE},
]
RATES = {  # share of easy problems, chance of a right sample on those and on the others: a trade-off over each sweep
    "base": (0.10, 0.10), "grpo_k3+beta0.1": (0.6, 0.0), "grpo_k3+beta0.4": (0.2, 0.1), "sage+beta0.1": (0.5, 0.05),
    "sage+beta0.4": (0.25, 0.12), "alone": (0.4, 0.04), "grpo_k3+beta0.05": (0.5, 0.02),
    "grpo_k3+beta0.2": (0.4, 0.05), "grpo_k3+beta0.3": (0.3, 0.08),
}  # fmt: skip


def finish(out, run, rng, tasks):
    """As a run that is done leaves it: 24 problems, 8 samples each, a training log of two entries, a status."""
    variant = run.rpartition("-s")[0] or "base"
    easy, hard = RATES[variant]
    made = {}
    for task in tasks:
        words = ["".join(rng.choice(["1", "0"], 8, p=[r, 1 - r])) for r in [easy] * 12 + [hard] * 12]
        made[task] = {
            f"p{i}": [word.replace("00", "0t")] for i, word in enumerate(words)
        }  # t: wrong as well, truncated
    make_run(out / run / "eval", made, solutions=True)
    (out / run / "train").mkdir()
    if variant != "base":
        more = {"sage/q_mean": 1.25} if "sage" in variant else {}
        log = [{"step": at, "reward": at / 40, "entropy": 1 / at, "kl_ref": at / 1000, **more} for at in (10, 20)]
        (out / run / "train" / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    now = {"state": "done", "stage": "eval", "pid": 1, "started": 10.0, "updated": 70.0, "model": "m"}
    write_whole(out / run / STATUS, json.dumps(now))


def make_study(root, name, variants=SWEPT, tasks=("t",), left_out=1, kl=None, **evaluate):
    """A study with all but its last runs done, and its records where the script looks; its own folder is answered. ``kl``: of
    each run, in place of what all of them log. ``evaluate``: more of that part."""
    out, rng = root / "runs" / name, np.random.default_rng(0)
    settings = variants if isinstance(variants, dict) else {v: {} for v in variants}
    study = Study(name, variants=settings, evaluate={"tasks": list(tasks), "n": 8, **evaluate}, **PARTS)
    open_folder(study, out)
    (out / "base").mkdir()
    write_whole(out / "base" / "start.json", json.dumps({"model": "m"}))
    for run in study.runs()[: len(study.runs()) - left_out]:
        finish(out, run, rng, tasks)
        if run in (kl or {}):
            log = [{"step": 10, "kl_ref": 5.0}, {"step": 20, "kl_ref": kl[run]}]  # the last fifth of two is the last
            (out / run / "train" / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    pack(out, root / "results" / "gpu" / name)
    (root / "results" / "gpu" / name / "sessions.json").write_text(json.dumps(SESSIONS))
    return out


@pytest.fixture
def neighbours(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)  # as Python itself does for a script


@pytest.fixture
def script(monkeypatch, capsys, neighbours):
    """Runs benchmarks/results.py in this process: (exit code, what it printed)."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["results.py", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return end.value.code, capsys.readouterr().out

    return run


def tables(text):
    """Every table of a page: head → first cell (or the second, after the task) → the row."""
    found = {}
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        head, _, *rows = ([c.strip() for c in line.strip("|\n").split("|")] for line in block.splitlines())
        key = head.index("variant" if "variant" in head else "family")
        found[tuple(head)] = {row[key]: dict(zip(head, row, strict=True)) for row in rows}
    return found


def numbers(cell):
    return [float(x) for x in re.findall(r"[+-]?\d+\.\d+", cell)]


def made_in(root):
    return {f.relative_to(root).as_posix(): f.read_bytes() for f in sorted((root / "docs").rglob("*")) if f.is_file()}


def test_a_page_says_what_the_study_says(tmp_path, script):
    folder = make_study(tmp_path, "swept")
    assert script("--root", tmp_path)[0] == 0
    assert set(made_in(tmp_path)) == {
        "docs/results/swept.md", "docs/img/results/swept-t-grpo_k3.svg", "docs/img/results/swept-training.svg",
    }  # fmt: skip
    page = (tmp_path / "docs" / "results" / "swept.md").read_text()
    assert re.match(r"<!-- Generated by `make results` .*not to be edited\. -->\n\n# Study swept\n", page)
    for said in (
        "10 of 11 done: the base, and 5 variants at seeds 0, 1.", "t 24 (n = 8)", "3.0 minutes of wall time in 3 sessions",
        "2.5 minutes: eight cores, a card; sage-rlvr 1.0, torch 2.11, trl 1.16 (commits: abc, def)",
        "0.5 minutes: two cores; sage-rlvr 1.0, torch 2.11, trl 1.16 (commits: unknown)",
    ):  # fmt: skip
        assert said in page, said
    results, gains, alone, support, training = tables(page).values()
    for row in study_rows(folder):
        shown = results[row.variant]
        for k, interval in row.pass_at.items():
            assert numbers(shown[f"pass@{k}"]) == pytest.approx(list(interval), abs=0.00051)
        assert numbers(shown["distinct right"]) == pytest.approx(list(row.solutions), abs=0.0051)
        own = (f for f in folder.glob("*/eval") if (f.parent.name.rpartition("-s")[0] or "base") == row.variant)
        runs = [counts_of(f).tasks["t"] for f in own]
        assert len(runs) == row.seeds
        assert shown["tokens"] == f"{np.mean([run.tokens.sum() / 24 / 8 for run in runs]):.0f}"
        assert shown["truncated"] == f"{np.mean([(run.finish == LENGTH).mean() for run in runs]):.1%}"
        assert row.variant == "base" or numbers(shown["lost"]) + numbers(shown["gained"]) == [row.lost, row.gained]
    families = read_planes(folder, "t").families()
    found = {f.family: f for f in frontiers(families, "grpo_k3")}
    assert list(gains) == ["grpo_k3", "sage"]
    assert numbers(gains["sage"]["gain over grpo_k3"].replace("–", " ")) == pytest.approx(
        [*found["sage"].gain, *found["sage"].over], abs=0.00051
    )
    x = {v: p[0] for f in found.values() for v, p in f.points.items()}  # both sweeps are wholly on their frontiers
    low, high = max(x["grpo_k3+beta0.4"], x["sage+beta0.4"]), min(x["grpo_k3+beta0.1"], x["sage+beta0.1"])
    assert found["sage"].over == (low, high)
    assert list(alone) == ["alone"]
    for row in support_rows(folder, "t"):
        assert numbers(support[row["variant"]]["SRR"])[0] == pytest.approx(row["SRR"], abs=0.00051)
    assert training["grpo_k3+beta0.1"] == {
        "variant": "grpo_k3+beta0.1", "step": "20", "reward": "0.5", "entropy": "0.05", "kl_ref": "0.02", "sage/q_mean": "–",
    }  # fmt: skip
    assert training["sage+beta0.4"]["sage/q_mean"] == "1.25"


def test_a_page_says_who_lies_above_the_references_at_the_same_distance(tmp_path, script, capsys):
    betas = [f"grpo_k3+beta{beta}" for beta in (0.05, 0.1, 0.2, 0.3, 0.4)]
    kl = {f"{v}-s{seed}": 0.2 / (i + 1) + 0.01 * seed for i, v in enumerate(betas) for seed in (0, 1)}
    kl |= {"sage+beta0.1-s0": 0.12, "sage+beta0.1-s1": 0.5}
    folder = make_study(tmp_path, "swept", (*betas, "sage+beta0.1", "alone"), left_out=2, kl=kl)  # "alone" has none
    runs = read_runs(folder, "t")
    assert {(r.variant, r.kl) for r in runs} == {(name[:-3], x) for name, x in kl.items()}
    found = {f.family: f for f in excesses(runs, ["grpo_k3"])}
    assert (found["sage"].runs, found["sage"].kl) == (1, (pytest.approx(0.12),) * 2)
    assert script("--root", tmp_path)[0] == 0
    assert "docs/img/results/swept-t-distance.svg" in made_in(tmp_path)
    shown = tables((tmp_path / "docs" / "results" / "swept.md").read_text())[
        ("family", "curve of", "runs", "KL", "pass@1", "pass@8")
    ]
    assert {family: row["curve of"] for family, row in shown.items()} == {"sage": "grpo_k3"}
    for k, above in found["sage"].above.items():
        assert numbers(shown["sage"][f"pass@{k}"]) == pytest.approx(list(above), abs=0.00051)
    show_frontier(folder, "grpo_k3")  # the same by command
    assert "at the same KL to the reference policy" in " ".join(capsys.readouterr().out.split())
    told = json.loads((folder / "frontier_distance.json").read_text())
    assert told[1]["above"]["8"] == pytest.approx(list(found["sage"].above[8]))


def test_rule_3_takes_the_highest_lower_end_and_does_without_guides(tmp_path, neighbours):
    """A wild guide has the higher mean and the lower end below 0; a study without guides names the best of all alone."""
    script = runpy.run_path(str(SCRIPT)) | runpy.run_path(str(PLANES))
    flat = {
        f: [Point(f"{f}+beta0.1", np.full((2, 4), 0.2), np.full((2, 4), 0.5))] for f in ("grpo_k3", "wild", "steady")
    }

    def said(guide):
        gains = {"grpo_k3": None, "wild": Interval(0.05, -0.1, 0.2), "steady": Interval(0.02, 0.01, 0.03)}
        found = {f: Frontier(f, {}, [], None, None, gain, 5) for f, gain in gains.items()}
        variants = {f"{f}+beta0.1": {"guide": guide} for f in ("wild", "steady")}
        page = script["Page"]("search", tmp_path / "search")
        study = Study("search", variants=variants, evaluate={"tasks": ["t"]}, **PARTS)
        script["rules_part"](page, study, flat, {"grpo_k3": found}, 8)
        return "\n".join(page.text)

    assert "Rule 3: of the guides the highest lower end has `steady`" in said("branch")
    assert re.search(r"Of all families.* the highest gain has `wild`", said("branch"))
    assert "of the guides" not in said("none")
    assert re.search(r"Of all families.* the highest gain has `wild`", said("none"))


def test_who_was_tried_at_fewer_settings_than_the_reference_is_not_ranked(tmp_path, neighbours):
    """However high its gain. As many are enough (the highest mean), and more are no fault (the highest lower end)."""
    script = runpy.run_path(str(SCRIPT)) | runpy.run_path(str(PLANES))
    settings = {"grpo_k3": 2, "few": 1, "as_many": 2, "more": 3}
    gains = {"grpo_k3": None, "few": Interval(0.5, 0.4, 0.6), "as_many": Interval(0.05, -0.1, 0.2),
             "more": Interval(0.02, 0.01, 0.03)}  # fmt: skip
    flat = np.full((2, 4), 0.2), np.full((2, 4), 0.5)
    families = {f: [Point(f"{f}+beta0.{i}", *flat) for i in range(1, n + 1)] for f, n in settings.items()}
    variants = {p.variant: {"guide": "branch"} for f in ("few", "as_many", "more") for p in families[f]}
    study = Study("search", variants=variants, evaluate={"tasks": ["t"]}, **PARTS)
    found = {f: Frontier(f, {}, [], None, None, gain, 5) for f, gain in gains.items()}
    page = script["Page"]("search", tmp_path / "search")
    script["rules_part"](page, study, families, {"grpo_k3": found}, 8)
    said = page.text[1]
    assert "Rule 3: of the guides the highest lower end has `more`" in said
    assert re.search(r"Of all families.* the highest gain has `as_many`", said)


def test_a_confirmation_is_looked_at_once(tmp_path, script, monkeypatch):
    """Before its last run is done, its page has the base and how far it is."""
    variants = {f"{family}+beta{beta}": {} for family in ("reference", "grpo_k1") for beta in ("0.1", "0.4")}
    for v in variants:
        monkeypatch.setitem(RATES, v, RATES[f"grpo_k3+{v.split('+')[1]}"])
    make_study(tmp_path, "confirm", variants, left_out=1)
    assert script("--root", tmp_path)[0] == 0
    (page,) = made_in(tmp_path).values()
    assert "8 of 9 done" in page.decode()
    assert "| base |" in page.decode()
    assert not re.search(r"\+beta|Rule|## Training", page.decode())


@pytest.mark.parametrize(("study", "block"), [("hard_confirm", "room_confirmed"), ("hard_once", "room_once")])
def test_the_room_s_confirmation_is_told_once_it_is_whole(tmp_path, script, monkeypatch, study, block):
    """On the evidence page: how far it is, then every family with its gain, its control's and its verdict by rule 1."""
    variants = {f"{family}+beta{beta}": {} for family in ("reference", "maxrl", "low_rate") for beta in ("0.1", "0.4")}
    for v in variants:
        monkeypatch.setitem(RATES, v, RATES[f"{'sage' if v.startswith('maxrl') else 'grpo_k3'}+{v.split('+')[1]}"])
    index = tmp_path / "docs" / "evidence" / "index.md"
    index.parent.mkdir(parents=True)
    index.write_text(f"Before.\n\n<!-- made: {block} -->\n\n<!-- /made -->\n\nAfter.\n")
    make_study(tmp_path, study, variants, left_out=1, primary={"k": 4})
    assert script("--root", tmp_path)[0] == 0
    of = len(variants) * len(PARTS["seeds"])
    assert f"{of - 1} of {of} runs are done. No arm is shown before the last one." in index.read_text()
    shutil.rmtree(tmp_path / "runs")
    folder = make_study(tmp_path, study, variants, left_out=0, primary={"k": 4})
    assert script("--root", tmp_path)[0] == 0
    said = index.read_text()
    assert said.startswith("Before.")
    assert said.endswith("After.\n")
    (rows,) = tables(said).values()
    found = {f.family: f for f in frontiers(read_planes(folder, "t").families(), "reference")}
    assert set(rows) == {"`maxrl`", "`low_rate`"}
    assert numbers(rows["`maxrl`"]["gain over GRPO"])[0] == pytest.approx(found["maxrl"].gain.mean, abs=5e-4)
    assert numbers(rows["`maxrl`"]["gain over the low rate, corrected for 1"])[0] == pytest.approx(
        frontiers(read_planes(folder, "t").families(), "low_rate")[1].gain.mean, abs=5e-4
    )
    assert "\n- `maxrl`: is not judged (2 seeds of 3).\n" in said
    page = (tmp_path / "docs" / "results" / f"{study}.md").read_text()
    assert "- Rule 1: `maxrl`: is not judged (2 seeds of 3)." in page


def test_what_is_said_of_a_real_models_variant(neighbours):
    """Both numbers, the verdict, and of what was not detected what could have been."""
    said = runpy.run_path(str(SCRIPT))["_said"]
    up, unsure = Interval(0.05, 0.02, 0.08), Interval(0.01, -0.02, 0.04)
    assert said(Standing("u", "branch", 3, up, up), 64) == (
        "`branch`, u: pass@1 +0.050 [+0.020, +0.080], pass@64 +0.050 [+0.020, +0.080]: better on both."
    )
    assert said(Standing("u", "branch", 3, up, unsure), 64).endswith(
        ": not better on both: pass@1 above, pass@64 not detected; minimum detectable effect (80% power) 0.043 in pass@64."
    )
    assert said(Standing("u", "branch", 3, unsure, unsure), 64).endswith(
        ": no detectable difference; minimum detectable effect (80% power) 0.043 in pass@1, 0.043 in pass@64."
    )


def test_the_same_records_give_the_same_bytes_and_check_finds_what_differs(tmp_path, script):
    make_study(tmp_path, "swept")
    assert "3 written" in script("--root", tmp_path)[1]
    first = made_in(tmp_path)
    assert script("--root", tmp_path, "--check")[0] == 0
    page = tmp_path / "docs" / "results" / "swept.md"
    page.write_text(page.read_text().replace("| base |", "| Base |"))
    figures = tmp_path / "docs" / "img" / "results"
    (figures / "gone-t-grpo_k3.svg").write_text("<svg/>")
    (figures / "swept-training.svg").unlink()
    before = made_in(tmp_path)
    code, said = script("--root", tmp_path, "--check")
    assert code == 1
    assert made_in(tmp_path) == before, "a check writes nothing"
    assert said.splitlines() == [
        "docs/results/swept.md: not what the records give",
        "docs/img/results/swept-training.svg: not what the records give",
        "docs/img/results/gone-t-grpo_k3.svg: no records give it",
        "run make results",
    ]
    assert "2 written, 1 removed" in script("--root", tmp_path)[1]
    assert made_in(tmp_path) == first


def test_without_records_it_says_so(tmp_path, script):
    code, said = script("--root", tmp_path)
    assert (code, said.count("\n")) == (0, 1)
    assert "holds no records of a study yet" in said
    assert made_in(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.skipif(not [*ROOT.glob(f"results/gpu/*/{RUNS}")], reason="this repository holds no records of a study yet")
def test_the_committed_pages_are_what_the_committed_records_give(script):
    code, said = script("--check")
    assert code == 0, said
