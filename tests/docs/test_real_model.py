"""What docs/results.md, README and FAQ say of the real model is what its records have."""

import gzip
import json
import math
import re
import tarfile

import numpy as np

from sage_rlvr.study.plan import load_study
from sage_rlvr.study.records import RUNS as RUNS_FILE
from sage_rlvr.train.reach import tallies

from .told import PAGE, ROOT, as_told, ends, needs_records, rows_under, short

pytestmark = needs_records


def test_the_real_models_first_attempt_is_told_as_its_logs_have_it():
    said = PAGE.split("the real model's first attempt stops")[1].split("the second attempt, before any")[0]
    rewards, still, groups = [], [], []
    for arm in ("grpo", "branch", "tempered"):
        with gzip.open(ROOT / "results" / "gpu" / "stopped" / "qwen1.5b_lr6e-5" / f"{arm}-s0.jsonl.gz", "rt") as f:
            log = [json.loads(line) for line in f]
        assert len(log) == 80
        name = {"grpo": "GRPO"}.get(arm, arm.capitalize())
        halves = [short(np.mean([e["reward"] for e in log[part]])) for part in (slice(40), slice(40, 80))]
        rewards.append(f"{name} {', '.join(halves)}")
        still.append(np.mean([e["frac_reward_zero_std"] for e in log]))
        groups.append((1 - still[-1]) * 8 * 80)
        assert f"{np.mean([e['kl_ref'] for e in log[-10:]]):.4f}" == "0.0003"
        assert round(np.median([e["step_time"] for e in log])) == 13
    assert "; ".join(rewards) in said
    assert "ends at .0003 a token in all three" in said
    assert "In {:.0%}, {:.0%} and {:.0%} of the groups".format(*still) in said
    assert 115 < min(groups) < max(groups) < 140, "some 120 to 135"
    assert "KL .0003 for GRPO; no advantage in 81% of its groups" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_real_models_rate_is_chosen_as_the_protocol_says_and_told_as_its_logs_have_it():
    said = PAGE.split("the second attempt: 389 problems, 6e-4.")[1]
    reach = json.loads(ROOT.joinpath("src", "sage_rlvr", "studies", "qwen1.5b_reach.json").read_text())
    right = [r for r, n in reach["problems"].values() if n == 8]
    some, never = sum(0 < r < 8 for r in right), right.count(0)
    assert (len(right), right.count(8)) == (2000, 0)
    assert f"on {some}, never right on {never:,}, always right on none; {sum(right) / 16000:.1%} of the 16,000" in said
    assert f"{reach['wall_s'] / 60:.1f} minutes, {['', 'one', 'two', 'three', 'four'][reach['jobs']]} engines" in said
    halves, still, kl = {}, [], []
    for rate in ("2e-4", "6e-4"):
        file = ROOT / "results" / "gpu" / "qwen1.5b" / "rates" / f"grpo-s0_lr{rate}.jsonl.gz"
        with gzip.open(file, "rt") as f:
            log = [e for e in map(json.loads, f) if "loss" in e]
        assert len(log) == 80
        halves[rate] = [np.mean([e["reward"] for e in part]) for part in (log[:40], log[40:])]
        still.append(np.mean([e["frac_reward_zero_std"] for e in log]))
        kl.append(np.mean([e["kl_ref"] for e in log[-10:]]))
    assert "; ".join(f"{', '.join(map(short, h))} at {rate}" for rate, h in halves.items()) in said
    above, gained = halves["6e-4"][1] - halves["2e-4"][1], halves["6e-4"][1] - halves["6e-4"][0]
    assert above > 0.01
    assert gained > 0.02
    assert f"which is {short(above)} above" in said
    assert f"last 40 steps are {short(gained)} above its first" in said
    train = load_study("qwen1.5b").train
    assert train["learning_rate"] == 6e-4
    taken = tallies(train["within_reach"], train["task"])
    assert sum(0 < r < n for r, n in taken.values()) == some
    assert "ends at {} and {} a token".format(*(f"{x:.4f}"[1:] for x in kl)) in said
    assert "{:.0%} and {:.0%} of the groups".format(*still) in said

    def mean(key, part):
        return np.mean([e[key] for e in part])

    length = [mean("completions/mean_length", part) for part in (log[:10], log[-10:])]
    assert "from {:.0f} tokens (first 10 steps) to {:.0f} (last 10)".format(*length) in said
    silent = [mean("verifier/no_answer", part) for part in (log[:10], log[-10:])]
    assert "without an answer from {:.0%} to {:.0%}".format(*silent) in said
    answered = [1 - mean("verifier/no_answer", part) for part in (log[:40], log[40:])]
    of_answers = [h / a for h, a in zip(halves["6e-4"], answered)]
    assert "{:.1%} and {:.1%} were right".format(*of_answers) in said
    assert (answered[1] - answered[0]) * of_answers[0] < gained / 2, "most of the gain is not that more are answered"


def test_the_real_models_runs_are_told_as_their_page_has_them():
    page = ROOT.joinpath("docs", "results", "qwen1.5b.md").read_text(encoding="utf-8")
    readme = ROOT.joinpath("README.md").read_text(encoding="utf-8")

    def row(part, start):
        table = page.split(f"# {part}\n")[1].split("\n#")[0]
        line = next(line for line in table.splitlines() if line.startswith(start))
        return [as_told(cell) for cell in line.split("|")[1:-1]]

    with gzip.open(ROOT / "results" / "gpu" / "qwen1.5b" / RUNS_FILE, "rt") as f:
        records = {record["name"]: record for record in list(map(json.loads, f))[1:]}
    arms = {
        "base": "base",
        "GRPO": "grpo",
        "GRPO without KL": "grpo_no_kl",
        "Branch (k3)": "branch",
        "Branch (exact)": "branch_exact",
        "Tempered": "tempered",
    }
    said = {
        first: others
        for first, *others in rows_under("arm | seeds | reward in training, first 40 and last 40 steps | pass@1")
    }
    assert list(said) == list(arms)
    levels = {}
    for title, arm in arms.items():
        seeds, reward, *numbers = said[title]
        runs = {name: record for name, record in records.items() if re.fullmatch(rf"{arm}-s\d", name)}
        assert seeds == (", ".join(name[-1] for name in sorted(runs)) or "–")
        logs = np.array([[e["reward"] for e in record["log"] if "loss" in e] for record in runs.values()])
        assert logs.shape[1:] == (() if arm == "base" else (80,))
        assert reward == (", ".join(short(half.mean()) for half in (logs[:, :40], logs[:, 40:])) if runs else "–")
        if arm == "grpo":
            assert "its training reward went from {} to {} in 80 steps".format(*reward.split(", ")) in readme
        levels[arm] = row("All tasks", f"| {arm} ")[-2:]
        less = ["–", "–"] if arm in ("base", "grpo") else row("Less grpo", f"| {arm} ")[-2:]
        assert numbers == levels[arm] + less
        if arm == "grpo_no_kl":
            assert f"Less GRPO, without KL (one seed): {less[0]} and {less[1]}" in readme
            assert all(high < 0 for _, high in map(ends, less))
        elif less[0] != "–":
            assert f"{title.removesuffix(' (k3)')} {less[0]} and {less[1]}" in readme
            assert all(low < 0 < high for low, high in map(ends, less)), "every interval holds 0"
    over = row("Less base", "| grpo ")[-2:]
    assert all(low < 0 < high for low, high in map(ends, over))
    assert "three seeds: no detectable difference.** {} in pass@1 and {} in pass@64".format(*over) in PAGE
    assert "Nor can it be told from the base: {} and {}".format(*row("Less base", "| branch_exact ")[-2:]) in PAGE
    for part, arm in (("Less base", "grpo"), ("Less grpo", "branch_exact")):
        both = page.split(f"# {part}\n")[1].split("\n#")[0]
        whole, three = re.findall(rf"`{arm}`, mean of tasks: (pass@1 .*): no detectable difference; (.*)", both)
        sizes = re.findall(r"of 0(\.\d+) in", whole[1])
        for text in (PAGE, readme):
            assert "{} and {} would have been found four times in five".format(*sizes) in text
    assert (
        "Without Knights & Knaves the same: {} and {}.".format(
            *(x.replace("0.", ".").replace("-", "−") for x in re.findall(r"\S+ \[.*?\]", three[0]))
        )
        in PAGE
    )
    assert (
        "no detectable difference.** {} in pass@1 and {} in pass@64".format(*row("Less grpo", "| branch_exact ")[-2:])
        in PAGE
    )
    lost = [row("Less base", f"| {arm} ")[9].replace("+", "") for arm in ("grpo", "branch_exact")]
    fallen = [re.sub(r"(\S+) \[(\S+), (\S+)\]", r"\1 [\3, \2]", x).replace("−", "") for x in lost]
    assert "pass@64 falls by {} with GRPO and by {} with Branch (exact), three seeds each".format(*fallen) in PAGE
    problems = sum(
        int(re.search(rf"{task} (\d+) \(n = 64\)", page)[1]) for task in load_study("qwen1.5b").evaluate["tasks"]
    )
    assert "the base has pass@1 {} and pass@64 {}".format(*levels["base"]) in readme
    assert (
        f"(mean of four tasks, {problems} problems, n = 64), GRPO (seeds 0, 1 and 2) {' and '.join(levels['grpo'])}"
        in readme
    )
    every = [
        np.mean(
            [
                np.mean([cell[0][0] < 64 for cell in task["problems"].values()])
                for task in of["counts"]["tasks"].values()
            ]
        )
        for of in (records[f"{arm}-s{seed}"] for arm in ("grpo", "branch_exact") for seed in range(3))
    ]
    assert "GRPO's three have pass@64 {}, {} and {}".format(*map(short, every[:3])) in PAGE
    assert (
        "its three have pass@64 {}, {} and {}. It was chosen by seed 0, its best".format(*map(short, every[3:])) in PAGE
    )
    assert max(every[3:]) == every[3]
    assert f"{problems} problems with 64 samples each" in PAGE

    hard = {arm: row("math500-l5", f"| math500-l5 | {arm} ") for arm in arms.values()}
    cut = sorted((hard[arm][-1] for arm in ("branch", "branch_exact", "tempered")), key=lambda x: float(x[:-1]))
    assert f"({hard['base'][-1]} of MATH-500 level 5's for the base, {hard['grpo'][-1]} for GRPO, " in PAGE
    assert f"{cut[0]} to {cut[-1]} for the guides" in PAGE
    assert "is {} for the base and {} for GRPO".format(*(hard[arm][3].split()[0] for arm in ("base", "grpo"))) in PAGE

    logs = {name: [e for e in records[name]["log"] if "loss" in e] for name in ("grpo-s0", "grpo_no_kl-s0")}

    def tens(name, key, *starts):
        return [np.mean([e[key] for e in logs[name][at : at + 10]]) for at in starts]

    length = tens("grpo_no_kl-s0", "completions/mean_length", 0, 40, 70)
    assert "from {:.0f} tokens (steps 1–10) to {:.0f} (41–50) and come back to {:.0f} (71–80)".format(*length) in PAGE
    answers = [x for name in ("grpo_no_kl-s0", "grpo-s0") for x in tens(name, "sage/distinct_answers", 0, 70)]
    assert "fall from {:.1f} to {:.1f} (GRPO's, seed 0: {:.1f} and {:.1f})".format(*answers) in PAGE
    free = hard["grpo_no_kl"]
    assert (
        f"a sample has {free[-2]} tokens where GRPO's have {hard['grpo'][-2]}, and {free[-4][:-2]} of the problems"
        in PAGE
    )

    def late(arm, key):
        runs = [record["log"] for name, record in records.items() if re.fullmatch(rf"{arm}-s\d", name)]
        return np.mean([[e[key] for e in log if "loss" in e][40:] for log in runs])

    guides = ("branch", "branch_exact", "tempered")
    active, kl, mean = ([late(arm, key) for arm in guides] for key in ("sage/active", "kl_ref", "sage/pseudo_kl"))
    log_q = [short(a - b) for a, b in zip(kl, mean)]
    assert "q ≠ 1 on {:.1%}, {:.1%} and {:.1%} of the tokens".format(*active) in PAGE
    assert "log q is some {}, {} and {} nats a token".format(*log_q) in PAGE
    assert "where the KL to π_ref is {}, {} and {}.".format(*map(short, kl)) in PAGE
    for arm in ("branch", "branch_exact"):
        assert round(late(arm, "sage/q_max"), 3) == 1.4
        assert f"(its mean q is {late(arm, 'sage/q_mean'):.2f})" in PAGE
    assert f"have moved GRPO {short(late('grpo', 'kl_ref'))} nats a token from π_ref" in PAGE

    sums = dict.fromkeys(("branch_exact", "branch", "tempered"), 0.0)  # of pass@1 and pass@64, means of the two tasks
    for arm in sums:
        for task in ("amc23", "math500-l5"):
            right = np.array(
                [64 - cell[0][0] for cell in records[f"{arm}-s0"]["counts"]["tasks"][task]["problems"].values()]
            )
            sums[arm] += ((right / 64).mean() + (right > 0).mean()) / 2
    assert max(sums, key=sums.get) == "branch_exact"
    assert load_study("qwen1.5b").seeds_of("branch_exact") == [0, 1, 2]
    assert "add up to {}; Branch's to {}, Tempered's to {}".format(*map(short, sums.values())) in PAGE
    sessions = json.loads(ROOT.joinpath("results", "gpu", "qwen1.5b", "sessions.json").read_text())
    for session in sessions[2:]:
        assert f"in {session['wall_s'] / 60:.1f} minutes of the card" in PAGE


LOOKED = ROOT / "results" / "gpu" / "qwen1.5b"


def looked_log(run):
    with tarfile.open(LOOKED / "look" / f"{run}.tar.gz") as tar:
        entries = [json.loads(line) for line in tar.extractfile(f"{run}/train/log.jsonl")]
    return [entry for entry in entries if "reward" in entry]


def test_the_run_that_rambles_is_told_as_its_log_has_it():
    log = looked_log("branch_exact-s3")

    def mean(key, part):
        return float(np.mean([entry[key] for entry in part]))

    first, before, last = log[:8], log[40:48], log[72:]
    said = PAGE.split("Branch (exact) can end in rambling")[1].split("\n- **")[0]
    for name, key, form in (
        ("reward", "reward", short),
        ("truncated", "completions/clipped_ratio", "{:.1%}".format),
        ("entropy", "entropy", lambda x: short(x, 2)),
        ("q ≠ 1 on", "sage/active", "{:.1%}".format),
        ("near π_ref all\n  the while, at", "kl_ref", short),
    ):
        assert f"{name} {form(mean(key, before))} and {form(mean(key, last))}" in said
    length, beta = mean("completions/mean_length", last), load_study("qwen1.5b").settings_of("branch_exact-s0")["beta"]
    log_q, kl = mean("kl_ref", last) - mean("sage/pseudo_kl", last), mean("kl_ref", last)
    assert (
        f"the guide pays {beta * log_q * length:.1f} a completion (β·Σ log q), the KL costs {beta * kl * length:.1f}"
        in said
    )
    assert f"are the trainer's to {short(mean('sampling/sampling_logp_difference/mean', last))} a token" in said
    begins = next(e for e in log if e["sage/bonus_abs"] > 1 and e["sage/pseudo_kl"] < 0)
    assert f"here at step {begins['step']}, with {begins['completions/clipped_ratio']:.0%} truncated" in said
    readme = ROOT.joinpath("README.md").read_text(encoding="utf-8")
    cut, reward = mean("completions/clipped_ratio", last), mean("reward", last)
    assert f"({cut:.0%} of its completions truncated, reward {short(reward)})" in readme

    theory = ROOT.joinpath("docs", "theory.md").read_text(encoding="utf-8")
    h = (1 - mean("completions/clipped_ratio", first)) / mean("completions/mean_length", first)
    log_q = mean("kl_ref", first) - mean("sage/pseudo_kl", first)
    q = math.exp(log_q)
    assert f"ends with h = {short(h, 4)}, and Branch gives it log q = {short(log_q, 4)} a token" in theory
    assert (
        f"(1 − h)·q = {(1 - h) * q:.3f}: in this picture the optimum of Eq. 6 cuts {((1 - h) * q - 1) / (q - 1):.0%}"
        in theory
    )
    assert f"the model itself, {mean('completions/clipped_ratio', first):.0%} at 1,024 tokens" in theory
    assert f"are then worth {1000 * math.log(1.4):.0f} nats, and a right answer is worth 1/β = {1 / beta:.0f}" in theory


def test_the_look_is_told_as_its_page_has_it():
    page = (
        ROOT.joinpath("docs", "results", "qwen1.5b.md").read_text(encoding="utf-8").split("# A look at the samples")[1]
    )
    said = " ".join(PAGE.split("**A look at the samples**")[1].split("\n- **")[0].split())
    found = json.loads((LOOKED / "look.json").read_text())
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]

    tails = {cell[0]: as_told(cell[6]) for cell in cells if len(cell) == 8 and cell[1] == "math500-l5"}
    for arm, run in {
        "GRPO": "grpo",
        "Tempered": "tempered",
        "without KL": "grpo_no_kl",
        "Branch (exact)": "branch_exact",
    }.items():
        assert f"{arm} {tails[f'{run}-s3']}" in said
    apart = set()
    for run, by in found["patterns"].items():
        for task, own in by.items():
            base = found["patterns"]["base"][task]
            if min(own["problems"], base["problems"]) >= 3:
                for name, f in own["frequency"].items():
                    if f["low"] > base["frequency"][name]["high"] or f["high"] < base["frequency"][name]["low"]:
                        apart.add((run, task, name))
    assert apart == {
        ("grpo_no_kl-s3", "knights-knaves", "contradiction"),
        ("grpo_no_kl-s3", "knights-knaves", "structural"),
        ("branch_exact-s3", "knights-knaves", "constraint set-up"),
    }
    puzzles = {cell[0]: cell for cell in cells if len(cell) == 7 and cell[1] == "knights-knaves"}
    base, free, exact = (puzzles[run] for run in ("base", "grpo_no_kl-s3", "branch_exact-s3"))
    assert (
        f"without KL a contradiction is in {as_told(free[6])} of them and a structural step in none of {free[3]}"
        in said
    )
    assert f"(the base: {as_told(base[6])} and {as_told(base[5])})" in said
    assert f"constraints are set up in {as_told(exact[4])} (the base: {as_told(base[4])})" in said
    right = {run: {task: own["solutions"] for task, own in by.items()} for run, by in found["patterns"].items()}
    drawn = {task: sum(map(len, by.values())) for task, by in found["perplexity"]["base"].items()}
    collapsed, of = right["branch_exact-s3"], drawn["math500-l5"]
    said = f"{collapsed['math500-l5']} of its {of:,} samples of MATH-500 level 5 are right"
    assert f"{said} (the base: {right['base']['math500-l5']})" in PAGE
    mean = np.mean([collapsed[task] / drawn[task] for task in drawn])
    assert f"its pass@1, mean of the four tasks, is {short(mean)} where" in PAGE
    halves = []
    for run in ("branch_exact-s3", "tempered-s3", "grpo_no_kl-s3"):
        rewards = [entry["reward"] for entry in looked_log(run)]
        halves.append(f"{short(np.mean(rewards[:40]))}, {short(np.mean(rewards[40:]))}")
    assert f"reward, first 40 steps and last 40: {'; '.join(halves)}." in PAGE


def test_the_shares_of_a_gpu_that_compute_wrongly_are_told_as_they_were_found():
    shares = json.loads(ROOT.joinpath("results", "gpu", "mps_share.json").read_text())["shares"]
    faq = ROOT.joinpath("docs", "reference", "faq.md").read_text(encoding="utf-8")
    sound = [share for share, found in shares.items() if not found["wrong"]]
    wrong = {share: len(found["wrong"]) for share, found in shares.items() if found["wrong"]}
    *others, last = wrong
    assert f"with a share of {' or '.join(sound)} all 26 were right, with {', '.join(others)} or {last} between " in faq
    assert f"between {min(wrong.values())} and {max(wrong.values())} of them were not" in faq


def test_the_engine_that_was_broken_is_told_as_it_was_read_again():
    found, sound = (
        json.loads(ROOT.joinpath("results", "gpu", f"{x}.json").read_text()) for x in ("reread_broken", "reread")
    )
    own = found["gap a token"]["model"]
    said = f"{found['tokens']:,} tokens) {-own['mean']:.0f} nats a token less than the engine had"
    assert said in PAGE
    assert f"sound ones agree to {short(sound['gap a token']['model']['largest'])}" in PAGE
    assert f"{-own['mean']:.0f} nats where it was not" in ROOT.joinpath("docs", "reference", "faq.md").read_text(
        encoding="utf-8"
    )


def test_what_is_without_kl_is_the_models_own_text():
    found = json.loads(ROOT.joinpath("results", "gpu", "reread_no_kl.json").read_text())
    own, bare = (found["gap a token"][kind] for kind in ("model", "without its adapter"))
    assert found["samples"] == 6
    said = f"six of them, {found['tokens']:,} tokens, read again by transformers have the stored log-probs to "
    assert f"{said}{short(own['largest'])} nats a token, and {-bare['mean']:.1f} less without the adapter" in PAGE


def test_what_vllm_made_of_an_adapter_on_a_gpu_is_told_as_it_was_read_again():
    found = json.loads(ROOT.joinpath("results", "gpu", "reread.json").read_text())
    assert found["backend"] == "vllm"
    assert "H200" in found["sampled with"]["machine"]
    own, bare = (found["gap a token"][kind] for kind in ("model", "without its adapter"))
    said = (
        f"{found['samples']} completions ({found['tokens']} tokens) read again by transformers in float32 have the stored "
        f"log-probs to {short(own['largest'], 4)} nats a token, and {short(-bare['mean'], 2)} less without the adapter"
    )
    assert said in ROOT.joinpath("README.md").read_text(encoding="utf-8")


def test_what_guessing_gives_on_knights_and_knaves_and_what_the_base_has():
    said = PAGE.split("what Knights & Knaves can say here")[1]
    with gzip.open(ROOT / "results" / "gpu" / "qwen1.5b" / RUNS_FILE, "rt") as f:
        base = next(r for r in map(json.loads, f) if r.get("name") == "base")
    cells = base["counts"]["tasks"]["knights-knaves"]["problems"]
    right = {people: [] for people in (3, 4)}
    for problem, ((_, times, _),) in cells.items():
        right[int(problem[3])].append(sum(times.values()))
    rates, solved = (
        [f(np.array(right[people])) for people in (3, 4)] for f in (lambda r: r.mean() / 64, lambda r: (r > 0).mean())
    )
    assert [len(r) for r in right.values()] == [100, 100]
    assert "right in {:.1%} of its samples of three people and {:.1%} of four".format(*rates) in said
    guess = [0.5**people for people in (3, 4)]
    often = [1 - (1 - p) ** 64 for p in guess]
    assert f"{guess[0]:.1%} and {guess[1]:.1%}, and guessing 64 times solves {often[0]:.2%} and {often[1]:.1%}" in said
    assert "the base's {:.0%} and {:.0%} are below that".format(*solved) in said
