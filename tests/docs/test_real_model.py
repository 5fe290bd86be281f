"""What docs/evidence and the FAQ say of the real model is what its records have."""

import gzip
import json
import lzma
import math
import tarfile

import numpy as np

from sage_rlvr.launch.reach import tallies
from sage_rlvr.study.plan import load_study
from sage_rlvr.study.records import RUNS as RUNS_FILE

from .told import PAGE, ROOT, needs_records, short

pytestmark = needs_records

REAL = (ROOT / "docs" / "evidence" / "real_model.md").read_text(encoding="utf-8")
FAQ = next((ROOT / "docs").rglob("faq.md")).read_text(encoding="utf-8")
LOOKED = ROOT / "results" / "gpu" / "qwen1.5b"
NOTES = " ".join(PAGE.split("### The real model")[1].split())


def test_the_real_models_first_attempt_is_told_as_its_logs_have_it():
    said = NOTES.split("the first attempt stops")[1].split("the second attempt, before any")[0]
    rewards, still = [], []
    for arm in ("grpo", "branch", "tempered"):
        with gzip.open(ROOT / "results" / "gpu" / "stopped" / "qwen1.5b_lr6e-5" / f"{arm}-s0.jsonl.gz", "rt") as f:
            log = [json.loads(line) for line in f]
        assert len(log) == 80
        halves = [short(np.mean([e["reward"] for e in log[part]])) for part in (slice(40), slice(40, 80))]
        rewards.append(", ".join(halves))
        still.append(np.mean([e["frac_reward_zero_std"] for e in log]))
        assert f"{np.mean([e['kl_ref'] for e in log[-10:]]):.4f}" == "0.0003"
    assert "; ".join(rewards) in said
    assert "ends at .0003 per token" in said
    assert f"In {min(still):.0%} to {max(still):.0%} of the groups" in said


def test_the_real_models_rate_is_chosen_as_the_protocol_says_and_told_as_its_logs_have_it():
    said = NOTES.split("389 problems, 6e-4.")[1]
    reach = json.loads(ROOT.joinpath("src", "sage_rlvr", "studies", "qwen1.5b_reach.json").read_text())
    right = [r for r, n in reach["problems"].values() if n == 8]
    some, never = sum(0 < r < 8 for r in right), right.count(0)
    assert (len(right), right.count(8)) == (2000, 0)
    assert f"on {some} of 2,000 problems, never on {never:,}; {sum(right) / 16000:.1%} of its samples are right" in said
    halves = {}
    for rate in ("2e-4", "6e-4"):
        file = ROOT / "results" / "gpu" / "qwen1.5b" / "rates" / f"grpo-s0_lr{rate}.jsonl.gz"
        with gzip.open(file, "rt") as f:
            log = [e for e in map(json.loads, f) if "loss" in e]
        assert len(log) == 80
        halves[rate] = [np.mean([e["reward"] for e in part]) for part in (log[:40], log[40:])]
    assert "; ".join(f"{', '.join(map(short, h))} at {rate}" for rate, h in halves.items()) in said
    assert halves["6e-4"][1] - halves["2e-4"][1] > 0.01
    assert halves["6e-4"][1] - halves["6e-4"][0] > 0.02
    train = load_study("qwen1.5b").train
    assert train["learning_rate"] == 6e-4
    taken = tallies(train["within_reach"], train["task"])
    assert sum(0 < r < n for r, n in taken.values()) == some


def test_the_arm_that_got_more_seeds_is_the_one_the_rule_names():
    """The SAGE arm with the highest sum of pass@1 and pass@64 at seed 0, means of AMC23 and MATH-500 level 5."""
    records = read_records("qwen1.5b")
    sums = dict.fromkeys(("branch_exact", "branch", "tempered"), 0.0)
    for arm in sums:
        for task in ("amc23", "math500-l5"):
            cells = records[f"{arm}-s0"]["counts"]["tasks"][task]["problems"].values()
            right = np.array([64 - cell[0][0] for cell in cells])
            sums[arm] += ((right / 64).mean() + (right > 0).mean()) / 2
    assert max(sums, key=sums.get) == "branch_exact"
    assert load_study("qwen1.5b").seeds_of("branch_exact") == [0, 1, 2]
    assert "add up to {}; Branch's to {}, Tempered's to {}".format(*map(short, sums.values())) in PAGE


def test_how_far_grpo_went_is_what_its_logs_have():
    logs = [r["log"] for name, r in read_records("qwen1.5b").items() if name.startswith("grpo-s")]
    far = np.mean([[e["kl_ref"] for e in log if "loss" in e][40:] for log in logs])
    assert f"80 steps moved it {short(far)} nats per token from the base" in REAL


def read_records(study):
    with lzma.open(ROOT / "results" / "gpu" / study / RUNS_FILE, "rt") as f:
        return {record["name"]: record for record in list(map(json.loads, f))[1:]}


def looked_log(run):
    with tarfile.open(LOOKED / "look" / f"{run}.tar.gz") as tar:
        entries = [json.loads(line) for line in tar.extractfile(f"{run}/train/log.jsonl")]
    return [entry for entry in entries if "reward" in entry]


def test_the_run_that_rambles_is_told_as_its_log_has_it():
    log = looked_log("branch_exact-s3")

    def mean(key, part):
        return float(np.mean([entry[key] for entry in part]))

    before, last = log[40:48], log[72:]
    for name, key, form in (
        ("reward", "reward", short),
        ("truncated", "completions/clipped_ratio", "{:.1%}".format),
        ("entropy, nats", "entropy", lambda x: short(x, 2)),
        ("q ≠ 1, share of tokens", "sage/active", "{:.1%}".format),
        ("KL to the base, nats per token", "kl_ref", short),
    ):
        assert f"| {name} | {form(mean(key, before))} | {form(mean(key, last))} |" in REAL
    length, beta = mean("completions/mean_length", last), load_study("qwen1.5b").settings_of("branch_exact-s0")["beta"]
    log_q, kl = mean("kl_ref", last) - mean("sage/pseudo_kl", last), mean("kl_ref", last)
    said = " ".join(REAL.split())
    assert (
        f"last eight steps {beta * log_q * length:.1f} per completion, where the KL costs {beta * kl * length:.1f} "
        in said
    )
    begins = next(e for e in log if e["sage/bonus_abs"] > 1 and e["sage/pseudo_kl"] < 0)
    assert f"(here at step {begins['step']})" in said


def test_what_theory_says_of_that_run():
    log = looked_log("branch_exact-s3")

    def mean(key, part):
        return float(np.mean([entry[key] for entry in part]))

    first, beta = log[:8], load_study("qwen1.5b").settings_of("branch_exact-s0")["beta"]
    theory = ROOT.joinpath("docs", "theory.md").read_text(encoding="utf-8")
    h = (1 - mean("completions/clipped_ratio", first)) / mean("completions/mean_length", first)
    log_q = mean("kl_ref", first) - mean("sage/pseudo_kl", first)
    q = math.exp(log_q)
    assert f"ends with h = {short(h, 4)}, and Branch gives it log q = {short(log_q, 4)} per token" in theory
    assert (
        f"$(1-h)\\,q$ = {(1 - h) * q:.3f}: in this picture the optimum of Eq. 6 cuts {((1 - h) * q - 1) / (q - 1):.0%}"
        in theory
    )
    assert f"the model itself, {mean('completions/clipped_ratio', first):.0%} at 1,024 tokens" in theory
    assert f"are then worth {1000 * math.log(1.4):.0f} nats, and a right answer is worth 1/β = {1 / beta:.0f}" in theory


def test_the_heaviest_tails_are_those_of_the_runs_that_lose_most():
    """Perplexity under the base, MATH-500 level 5: the order that the page draws its sentence from."""
    found = json.loads((LOOKED / "look.json").read_text())
    of = {
        run: np.concatenate([np.array(x) for x in by["math500-l5"].values()]) for run, by in found["perplexity"].items()
    }
    mark = np.quantile(of["base"], 0.9)
    heaviest = sorted(of, key=lambda run: -(of[run] > mark).mean())[:2]
    right = {run: by["math500-l5"]["solutions"] for run, by in found["patterns"].items()}
    assert heaviest == ["branch_exact-s3", "grpo_no_kl-s3"]
    assert sorted(right, key=right.get)[:2] == heaviest
    collapsed, drawn = found["patterns"]["branch_exact-s3"], found["perplexity"]["base"]
    mean = np.mean([own["solutions"] / sum(map(len, drawn[task].values())) for task, own in collapsed.items()])
    assert f"its pass@1, mean of the four tasks, is {short(mean)}, where" in NOTES


def test_the_shares_of_a_gpu_that_compute_wrongly_are_told_as_they_were_found():
    shares = json.loads(ROOT.joinpath("results", "gpu", "mps_share.json").read_text())["shares"]
    faq = FAQ
    sound = [share for share, found in shares.items() if not found["wrong"]]
    wrong = {share: len(found["wrong"]) for share, found in shares.items() if found["wrong"]}
    *others, last = wrong
    assert f"with a share of {' or '.join(sound)} all 26 were right, with {', '.join(others)} or {last} between " in faq
    assert f"between {min(wrong.values())} and {max(wrong.values())} of them were not" in faq


def test_the_engine_that_was_broken_is_told_as_it_was_read_again():
    found, again = (
        json.loads(ROOT.joinpath("results", "gpu", f"{x}.json").read_text()) for x in ("reread_broken", "reread_no_kl")
    )
    own, bare = (again["gap a token"][kind] for kind in ("model", "without its adapter"))
    assert f"the new ones agree with transformers to {short(own['largest'])} nats per token" in NOTES
    assert bare["mean"] < -1, "the text is the adapter's, not the base's"
    assert f"{-found['gap a token']['model']['mean']:.0f} nats where it was not" in FAQ


def test_what_guessing_gives_on_knights_and_knaves_and_what_the_base_has():
    cells = read_records("qwen1.5b")["base"]["counts"]["tasks"]["knights-knaves"]["problems"]
    right = {people: [] for people in (3, 4)}
    for problem, ((_, times, _),) in cells.items():
        right[int(problem[3])].append(sum(times.values()))
    rates = [np.mean(right[people]) / 64 for people in (3, 4)]
    assert [len(r) for r in right.values()] == [100, 100]
    said = "right in {:.1%} (three people) and {:.1%} (four) of its samples; guessing in {:.1%} and {:.1%}"
    assert said.format(*rates, *(0.5**people for people in (3, 4))) in NOTES
