"""Studies: runs in real processes, killed and run again, failures that stay alone."""

import json
import os
import runpy
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from sage_rlvr import UserError, cli
from sage_rlvr.study import job
from sage_rlvr.study import run as study_run
from sage_rlvr.study.plan import load_study, open_folder, read_folder
from sage_rlvr.study.read import study_rows
from sage_rlvr.study.run import share_done, status_of
from sage_rlvr.tasks import generate_ltr, solutions
from sage_rlvr.tasks.countdown import DEVELOPMENT

from .. import forked
from . import forking
from .small import SMALL


@pytest.fixture
def study_file(tmp_path):
    def write(**changes):
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(SMALL | changes))
        return path

    return write


def table_of(folder):
    return json.loads((Path(folder) / "table.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One uninterrupted study, with a variant that cannot be trained."""
    place = tmp_path_factory.mktemp("whole")
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    broken = {"variants": SMALL["variants"] | {"broken": {"guide": "no-such-guide"}}}
    path = place / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | broken))
    done = forked.run(forking.study, "run", path, "--out", place / "out", "--jobs", "2", timeout=1200)
    assert (place / "out" / "table.json").is_file(), done.stderr
    return place, done.returncode


def test_one_failing_variant_leaves_the_others(whole, capsys):
    place, code = whole
    assert code == 1
    assert status_of(place / "out", "broken-s0")["state"] == "failed"
    assert "guide='no-such-guide' is unknown" in status_of(place / "out", "broken-s0")["error"]
    assert sorted(r["variant"] for r in table_of(place / "out")) == ["base", "branch", "grpo"]
    assert cli.main(["study", "status", str(place / "out")]) == 0
    printed = capsys.readouterr().out
    assert "3 of 4 runs done" in printed
    assert "failed" in printed


def test_the_table_is_plain_arithmetic_on_the_store(whole):
    import pandas as pd

    place, _ = whole
    for row in table_of(place / "out"):
        run = row["variant"] if row["variant"] == "base" else f"{row['variant']}-s0"
        frame = pd.read_parquet(place / "out" / run / "eval" / "samples")
        per_problem = frame.groupby("problem")["verdict"].mean()
        assert row["pass_at"]["1"][0] == pytest.approx(per_problem.mean())
        assert row["pass_at"]["4"][0] == pytest.approx((per_problem > 0).mean())
        right = frame[frame["verdict"] == 1].groupby("problem")["solution"].nunique()
        if row["solutions"]:
            assert row["solutions"][0] == pytest.approx(right.reindex(per_problem.index).fillna(0).mean())


def test_what_each_variant_has_more_than_one_of_them(whole, capsys):
    place, _ = whole
    assert cli.main(["study", "table", str(place / "out"), "--reference", "grpo"]) == 0
    assert "each variant minus grpo" in capsys.readouterr().out
    rows = {r["variant"]: r["pass_at"] for r in table_of(place / "out")}
    (less,) = json.loads((place / "out" / "against.json").read_text())
    assert (less["variant"], less["task"]) == ("branch", "countdown-ltr")
    for name, k in (("pass_1", "1"), ("pass_n", "4")):
        assert less[name][0] == pytest.approx(rows["branch"][k][0] - rows["grpo"][k][0])
    assert cli.main(["study", "table", str(place / "out"), "--reference", "tempered"]) == 2
    assert "no run of tempered is finished; there are base, branch, grpo" in capsys.readouterr().err


def test_an_evaluation_says_what_was_asked_and_where_it_was_made(whole):
    place, _ = whole
    folder = place / "out" / "base" / "eval"
    asked = json.loads((folder / "problems.json").read_text())["countdown-ltr"]
    assert len(asked) == 12
    assert all("each exactly once" in p["question"] for p in asked.values())
    assert json.loads((folder / "made.json").read_text())["machine"]
    record = json.loads((place / "out" / "grpo-s0" / "train" / "run.json").read_text())
    assert record["finished"] is True
    assert record["machine"]


def test_done_runs_are_not_run_again(whole, study_file):
    place, _ = whole
    before = (place / "out" / "grpo-s0" / "status.json").stat().st_mtime_ns
    done = forked.run(forking.study, "run", place / "small.yaml", "--out", place / "out", "--jobs", "1")
    assert (done.returncode, status_of(place / "out", "broken-s0")["state"]) == (1, "failed")
    assert (place / "out" / "grpo-s0" / "status.json").stat().st_mtime_ns == before


def test_killed_and_run_again_gives_the_same_table(whole, tmp_path):
    place, _ = whole
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    command = (forking.study, "run", path, "--out", tmp_path / "out", "--jobs", "2")
    first = forked.Started(*command)
    first.wait_for(lambda: status_of(tmp_path / "out", "grpo-s0").get("step"), "the training")
    first.send_signal(signal.SIGKILL)
    assert first.end().returncode == -signal.SIGKILL, "the study was killed while it trained"
    again = forked.run(*command, timeout=1200)
    assert again.returncode == 0, again.stderr
    uninterrupted = {r["variant"]: r for r in table_of(place / "out")}
    for row in table_of(tmp_path / "out"):
        assert row == uninterrupted[row["variant"]]


def test_blends_are_made_of_what_was_trained(whole, tmp_path, capsys):
    """With weight 1 one answers as what it is made of, with 0 as the base; of a run that failed there is none."""
    place, _ = whole
    out = shutil.copytree(place / "out", tmp_path / "out")
    path, blends = tmp_path / "small.yaml", {"end": ("grpo", 1.0), "start": ("grpo", 0.0), "none": ("broken", 0.5)}
    more = {name: {"blend_of": of, "weight": weight} for name, (of, weight) in blends.items()}
    path.write_text(
        yaml.safe_dump(SMALL | {"variants": SMALL["variants"] | {"broken": {"guide": "no-such-guide"}} | more})
    )
    done = forked.run(forking.study, "run", path, "--out", out, "--jobs", "2", timeout=1200)
    assert done.returncode == 1, done.stderr
    rows = {r["variant"]: r["pass_at"] for r in table_of(out)}
    assert rows.keys() == {"base", "grpo", "branch", "end", "start"}
    assert rows["end"] == rows["grpo"]
    assert rows["start"] == rows["base"]
    assert status_of(out, "none-s0")["state"] == "waiting"
    with pytest.raises(UserError, match=r"end-s0, which has other settings \(blend_of\)"):
        open_folder(replace(study := load_study(path), variants=study.variants | {"end": more["start"]}), out)


def test_a_blend_waits_for_what_it_is_made_of(study_file, tmp_path, monkeypatch):
    """However many may run at once. The runs are stood in for: each is done when it is looked at for the second time."""
    begun = []

    class Run:
        def __init__(self, out, run, *rest):
            begun.append((run, status_of(out, "grpo-s0")["state"]))
            self.status, self.looks, self.returncode = Path(out, run, "status.json"), 0, 0
            self.status.parent.mkdir(parents=True, exist_ok=True)
            if run == "base":
                (Path(out) / "base" / job.START).write_text(json.dumps({"model": "m"}))

        def poll(self):
            self.looks += 1
            if self.looks < 2:
                return None
            self.status.write_text(json.dumps({"state": "done", "stage": "eval"}))
            return 0

    monkeypatch.setattr(study_run, "_start", Run)
    monkeypatch.setattr(study_run.time, "sleep", lambda seconds: None)
    file = study_file(variants={"part": {"blend_of": "grpo", "weight": 0.5}, "grpo": {}})
    assert study_run.run_study(file, tmp_path / "out", jobs=4)[1] == []
    assert [run for run, _ in begun] == ["base", "grpo-s0", "part-s0"]
    assert dict(begun)["part-s0"] == "done"


def test_rows_pool_seeds(whole):
    place, _ = whole
    rows = {r.variant: r for r in study_rows(place / "out")}
    assert rows["base"].seeds == 1
    assert np.isnan(rows["grpo"].std[1])
    assert rows["grpo"].problems == 12


def test_the_demo_ends_with_a_table_traces_and_a_page(whole):
    """The demo's way over a small study: what is done is kept, what failed is named, the page is made of the rest."""
    place, _ = whole
    done = forked.run(forking.demo, place / "out", place / "small.yaml")
    assert done.returncode == 1, done.stderr
    printed = done.stdout
    assert "broken-s0 failed" in printed
    assert "pass@4" in printed
    assert "paired differences" in printed
    assert f"the picture: {place / 'out' / 'plane.png'}" in printed
    assert (
        max(map(len, printed[printed.index("95% intervals over problems") :].split("the picture:")[0].splitlines()))
        <= 80
    )
    record = json.loads((place / "out" / "demo.json").read_text())
    assert record["sentence"] in " ".join(printed.split())
    assert {(d["variant"], d["reference"]) for d in record["differences"]} == {("grpo", "base"), ("branch", "base")}
    assert f"the page: {place / 'out' / 'report.html'}" in printed
    page = (place / "out" / "report.html").read_text()
    assert "branch-s0/eval" in page
    assert list((place / "out" / "branch-s0" / "eval" / "trace").rglob("*.parquet"))
    assert not (place / "out" / "grpo-s0" / "eval" / "trace").exists()


def test_report_and_frontier_by_command(whole, tmp_path, capsys):
    place, _ = whole
    assert cli.main(["study", "report", str(place / "out"), "--out", str(tmp_path / "page.html")]) == 0
    assert "grpo-s0/eval" in (tmp_path / "page.html").read_text()
    assert cli.main(["study", "frontier", str(place / "out"), "--reference", "grpo"]) == 0
    assert "gain over grpo" in capsys.readouterr().out
    found = {f["family"]: f for f in json.loads((place / "out" / "frontier.json").read_text())}
    rows = {r["variant"]: r["pass_at"] for r in table_of(place / "out")}
    assert found["branch"]["points"]["branch"] == pytest.approx([rows["branch"]["1"][0], rows["branch"]["4"][0]])
    assert cli.main(["study", "frontier", str(place / "out"), "--reference", "none"]) == 2


def test_a_sweep_becomes_a_variant_each(study_file):
    study = load_study(study_file(variants={"grpo": {"beta": 1.0, "sweep": {"beta": [0.01, 0.2]}}, "one": {}}))
    assert study.runs() == ["base", "grpo+beta0.01-s0", "grpo+beta0.2-s0", "one-s0"]
    assert study.settings_of("grpo+beta0.2-s0")["beta"] == 0.2
    assert [study.family_of(v) for v in study.variants] == ["grpo", "grpo", "one"]
    with pytest.raises(UserError, match="sweep names one setting and a list"):
        load_study(study_file(variants={"grpo": {"sweep": {"beta": 0.1}}}))


def test_the_share_that_is_done(whole, study_file, tmp_path):
    place, _ = whole
    study = read_folder(place / "out")
    assert share_done(study, place / "out") == 1.0  # a failed run has nothing left to do
    fresh = load_study(study_file())
    open_folder(fresh, tmp_path / "out")
    assert share_done(fresh, tmp_path / "out") == 0.0
    folder = tmp_path / "out" / "grpo-s0"
    (folder / "train").mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({"state": "running", "stage": "train", "pid": os.getpid()}))
    (folder / "train" / "log.jsonl").write_text('{"step": 2, "loss": 0.1}\n')  # of 4
    assert share_done(fresh, tmp_path / "out") == pytest.approx(study_run.TRAINING * 0.5 / 3)


def test_a_run_gets_the_gpu_that_is_free(study_file, tmp_path, monkeypatch):
    """Three runs on two places: the third takes the place of the one that ended, not the next number."""
    study = load_study(study_file(variants={"a": {}, "b": {}, "c": {}}))
    open_folder(study, tmp_path / "out")
    polls = {"a-s0": 1, "b-s0": 4, "c-s0": 1}  # looks until it has ended
    places = {}

    class Process:
        returncode = 0

        def __init__(self, run):
            self.run = run

        def poll(self):
            polls[self.run] -= 1
            return 0 if polls[self.run] < 0 else None

    def start(out, run, place, jobs, engine):
        places[run] = place
        return Process(run)

    monkeypatch.setattr(study_run, "_start", start)
    monkeypatch.setattr(study_run.time, "sleep", lambda s: None)
    assert study_run._run(study, tmp_path / "out", ["a-s0", "b-s0", "c-s0"], 2) == []
    assert places == {"a-s0": 0, "b-s0": 1, "c-s0": 0}


# ---- the demo's base -----------------------------------------------------------------------------------------------


def test_the_demos_base_is_what_its_script_makes(tmp_path):
    script = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "make_demo_base.py"))
    made = json.loads((job.packaged("demo-base") / "made.json").read_text())
    demo = load_study("demo")
    for stage in ("base", "habit"):
        assert made[stage] == script[stage.upper()]
        assert made[stage]["demonstrations"]["after"] >= demo.train["rows"], "RL's problems were not demonstrated"
    assert sum(f.stat().st_size for f in job.packaged("demo-base").iterdir()) < 2e6
    folder = Path(job.build_base(demo.base, tmp_path / "base"))
    assert folder == tmp_path / "base" / "model", "a study keeps its own copy"
    assert job.build_base(demo.base, tmp_path / "base") == str(folder)


def test_the_demos_base_solves_some_and_guesses():
    """The 128 problems on which the demo's settings were chosen, four samples each: some are right, most begin with the last
    number, which is the habit that RL can unlearn."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = job.packaged("demo-base")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    problems = [p for p in generate_ltr(DEVELOPMENT, split="test", count=3) for _ in range(4)]
    prompts = [f"{' '.join(map(str, p.meta['numbers']))}={p.meta['target']}:" for p in problems]
    torch.manual_seed(0)
    rows = tokenizer(prompts, return_tensors="pt", padding=True)
    with torch.no_grad():
        out = model.generate(**rows, max_new_tokens=6, do_sample=True, top_k=0)
    said = tokenizer.batch_decode(out[:, rows["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [s in solutions(p.meta["numbers"], p.meta["target"]) for s, p in zip(said, problems)]
    assert 0.04 < np.mean(right) < 0.2
    assert np.mean([s[:1] == str(p.meta["numbers"][-1]) for s, p in zip(said, problems)]) > 0.5
