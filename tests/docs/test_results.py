"""What docs/evidence/notebook.md says of the miniature world is what its records and scripts have."""

import json
import lzma
import runpy
import sys

import numpy as np

from sage_rlvr.anchor.guides import guide_class
from sage_rlvr.evaluate.results import results
from sage_rlvr.study.plan import load_study
from sage_rlvr.study.records import RUNS as RUNS_FILE
from sage_rlvr.study.records import unpack

from .told import PAGE, RECORD, ROOT, needs_records, rows_under, short

pytestmark = needs_records

WORDS = " ".join(PAGE.split())


def test_the_base_that_was_taken_and_its_run():
    record = json.loads(RECORD.read_text())
    bases, runs = ({row["name"]: row for row in record[what]} for what in ("bases", "runs"))
    base, run = bases["q12d"], runs["rl_q12d_0.0002_still"]
    k1, k16, k256 = (short(base[f"pass@{k}"]) for k in (1, 16, 256))
    assert f"pass@1 {k1}, pass@16 {k16}, pass@256 {k256}, {base['distinct']:.2f} distinct right answers" in WORDS
    ends = ", ".join(short(run[f"pass@{k}"]) for k in (1, 16, 256))
    assert f"250 steps at 2e-4, ends at {ends}" in WORDS
    assert run["settings"]["learning_rate"] == 2e-4
    assert f"{len(bases)} bases and {len(runs)} RL runs" in WORDS


def test_the_script_would_make_them_again(monkeypatch):
    folder = ROOT / "benchmarks" / "gpu"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    script, record = runpy.run_path(str(folder / "bases.py")), json.loads(RECORD.read_text())
    assert {row["name"]: row["settings"] for row in record["bases"]} == json.loads(json.dumps(script["BASES"]))
    runs = {name: run for name, run in script["RUNS"].items() if run[0] != script["STUDY"]}
    assert {row["name"]: (row["base"], row["settings"]) for row in record["runs"]} == runs


def test_the_rewards_at_three_rates():
    record = json.loads((ROOT / "results" / "cpu" / "rates.json").read_text())
    high, mid, low = (
        [short(row[i]) for i in (0, -1)] for row in map(record["reward_every_10_steps"].get, ("2e-4", "1e-4", "5e-5"))
    )
    assert f"the reward goes from {high[0]} (steps 1–10) to {high[1]} (steps 51–60)" in WORDS
    assert f"at 1e-4 from {mid[0]} to {mid[1]}, at 5e-5 from {low[0]} to {low[1]}" in WORDS
    last = record["k1_reward_0.05_at_2e-4"]
    said = f"the latest of {last['step']} steps on a CPU: `kl_ref` {last['kl_ref']}, mean log-ratio {last['mean_log_ratio']}"
    assert said in WORDS


def test_the_rate_is_the_one_the_rule_takes():
    """Of the settings without KL whose reward never falls below .9 of its first ten steps, the highest pass@1."""
    record = json.loads((ROOT / "results" / "gpu" / "rates.json").read_text())
    runs = {row["name"]: row for row in record["runs"]}
    held = {n: min(r["rewards"]) / r["rewards"][0] for n, r in runs.items() if not r["settings"].get("beta")}
    steady = sorted((name for name in held if held[name] >= 0.9), key=lambda name: -runs[name]["pass@1"])
    assert runs[steady[0]]["pass@1"] - runs[steady[1]]["pass@1"] > 0.005, "no cheaper one is as good"
    first, second = (runs[name] for name in steady[:2])
    passes = ", ".join(f"pass@{k} {short(first[f'pass@{k}'])}" for k in (1, 16, 256))
    assert f"{passes}; its lowest reward is {short(held[steady[0]], 2)} of the first ten steps'" in WORDS
    assert f"has pass@1 {short(second['pass@1'])}. All {len(runs)} runs" in WORDS
    for name in ("frontier", "confirm"):
        train = load_study(name).train
        taken = {key: train[key] for key in ("learning_rate", "per_device_train_batch_size", "disable_dropout")}
        assert taken == runs[steady[0]]["settings"]


def test_rule_1_at_seed_0(tmp_path):
    unpack([ROOT / "results" / "gpu" / "frontier"], tmp_path)
    names = ["base", "grpo_no_kl-s0", "grpo_k3+beta0.05-s0", "grpo_k3+beta0.2-s0"]
    tasks = [results(tmp_path / name / "eval").tasks["countdown-ltr"] for name in names]
    found = [[task.pass_at[k].value for k in (1, 256)] for task in tasks]
    assert [row[1:3] for row in rows_under("seed 0 | pass@1")] == [[short(x) for x in row] for row in found]
    base, without, weak, strong = found
    assert without[0] >= base[0] + 0.03
    assert without[1] <= base[1] - 0.1
    assert without[1] < weak[1] < strong[1]
    assert strong[0] < without[0]


def test_why_the_guides_change_nothing_is_what_the_logs_say():
    """Awake, weightless, and not held by the clamp: the numbers of rule 5, from the records."""
    logs = {}
    with lzma.open(ROOT / "results" / "gpu" / "frontier" / RUNS_FILE, "rt", encoding="utf-8") as f:
        for record in map(json.loads, f):
            variant, _, seed = record.get("name", "").rpartition("-s")
            if seed and variant.endswith("beta0.1"):
                logs.setdefault(variant.removesuffix("+beta0.1"), []).append(record["log"])

    def last(family, name):
        return np.mean([[e[name] for e in log if name in e][-1] for log in logs[family]])

    said = PAGE.split("**Rule 5, why")[1].split("### Confirmation")[0]
    awake = [
        f"{last(f, 'sage/active'):.0%} {how}(`{f}`)"
        for f, how in (("branch_k3", "of the tokens "), ("tempered_k3plus", ""))
    ]
    assert " and ".join(awake) in said
    weights = [short(last(f, "sage/bonus_to_reward")) for f in ("grpo_k1", "branch_k1", "tempered_k1")]
    assert "({} without, {} with Branch, {} with Tempered)".format(*weights) in said
    kl, log_q = {}, {}
    for f in ("grpo_k1", "branch_k1", "tempered_k1"):
        kl[f], shaped = (
            np.mean([[e[k] for e in log if k in e][-5:] for log in logs[f]]) for k in ("kl_ref", "sage/pseudo_kl")
        )
        log_q[f] = kl[f] - shaped
    assert abs(log_q["grpo_k1"]) < 0.001, "k3 and k1 agree where there is no q"
    assert f"{short(log_q['branch_k1'])} nats per token (`branch_k1`" in said
    assert (
        f"KL to π_ref is {short(kl['branch_k1'])}. Tempered does not: {short(log_q['tempered_k1'])} of {short(kl['tempered_k1'])}"
        in said
    )
    ends = [
        max(e["sage/q_max"] for log in logs[f"branch{x}"] for e in log if "sage/q_max" in e) for x in ("_k1", "_k3")
    ]
    assert f"at most {max(ends):.2f} at β 0.1" in said


def test_coverage_was_not_paid_for_spelling():
    """A respelt right answer is longer than 8 tokens; many of them would show in the lengths."""
    lengths = {}
    with lzma.open(ROOT / "results" / "gpu" / "frontier" / RUNS_FILE, "rt", encoding="utf-8") as f:
        for record in map(json.loads, f):
            family = record.get("name", "").partition("+")[0]
            if family in ("coverage", "grpo_k3"):
                name = "completions/mean_length"
                lengths.setdefault(family, []).append([e[name] for e in record["log"] if name in e])
    ends = {family: f"{np.mean([run[-1] for run in runs]):.3f}" for family, runs in lengths.items()}
    most = {family: f"{max(map(max, runs)):.3f}" for family, runs in lengths.items()}
    runs = lengths["coverage"]
    assert (
        f"of the {len(runs)} `coverage` runs is {ends['coverage']} tokens at the end of training and at most "
        f"{most['coverage']} in any of their {sum(map(len, runs))} log lines (GRPO's, k3, the same six β: "
        f"{ends['grpo_k3']} and {most['grpo_k3']})"
    ) in PAGE


def test_no_published_run_had_a_quantile_of_less_than_its_rollout_batch():
    """One process and one slice a batch, or a guide that does not look across rows: what was said of the search."""
    found = 0
    assert "these runs' slice was the whole rollout batch, 1,536 rows on one process and without accumulation" in PAGE
    for name in ("frontier", "confirm", "mini", "qwen1.5b"):
        study = load_study(name)
        for variant in study.variants:
            settings = study.train | study.variants[variant]
            if settings.get("guide", "none") == "none" or not guide_class(settings["guide"]).across_rows:
                continue
            assert name == "frontier"
            assert settings["per_device_train_batch_size"] == 1536
            assert not {"gradient_accumulation_steps", "steps_per_generation", "tokens_per_microbatch"} & set(settings)
            found += 1
    assert found == 18
