"""Results against brute force, closed forms and simulated truth."""

import itertools
import json
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.compare import AVERAGE, compare
from sage_rlvr.evaluate.results import results, support
from sage_rlvr.stats import estimates
from sage_rlvr.stats.counts import Gap, counts_of
from sage_rlvr.stats.intervals import bands, bootstrap_interval
from sage_rlvr.stats.pass_at_k import majority_at_k, mean_at_n
from sage_rlvr.store import SampleStore, StoreError
from tests.evaluate.runs import _sample, as_counts, make_run, simulated

TASKS = {
    "a": {"p0": ["1100", "0100"], "p1": ["0000", "000x"], "p2": ["1111", "11h1"]},
    "b": {"q0": ["1000", "0000"], "q1": ["x--0", "1xx1"]},
}


def brute(words, k):
    """Share of k-subsets of the pooled samples that hold a right one."""
    pool = "".join(words)
    return np.mean([any(c in "1hl" for c in s) for s in itertools.combinations(pool, k)])


def brute_majority(words, k):
    answer = {"1": "7", "h": "7.0", "0": "5", "x": "6"}
    pool, total = "".join(words), []
    for s in itertools.combinations(pool, k):
        votes = {a: [answer.get(c) for c in s].count(a) for a in {answer[c] for c in s if c in answer}}
        tied = [a for a, v in votes.items() if v == max(votes.values())]
        total.append(np.mean([a.startswith("7") for a in tied]) if tied else 0.0)
    return np.mean(total)


def test_pass_at_k_is_the_share_of_subsets_pooled_over_seeds(tmp_path):
    r = results(make_run(tmp_path / "x", TASKS), ks=[1, 2, 3, 4, 7, 8], resamples=200)
    for name, problems in TASKS.items():
        for k, e in r.tasks[name].pass_at.items():
            assert e.value == pytest.approx(np.mean([brute(words, k) for words in problems.values()]))
        flat = [[float(c in "1h") for c in "".join(words)] for words in problems.values()]
        assert r.tasks[name].pass_at[1].value == pytest.approx(mean_at_n(flat))
    for k, e in r.average.pass_at.items():  # each task weighs the same: not the mean over all five problems
        assert e.value == pytest.approx(np.mean([r.tasks[t].pass_at[k].value for t in TASKS]))
    assert r.average.pass_at[1].value != pytest.approx(
        np.mean([brute(w, 1) for p in TASKS.values() for w in p.values()])
    )
    assert not any(t.incomplete for t in r.tasks.values())


def test_ks_are_powers_of_two_and_n(tmp_path):
    r = results(make_run(tmp_path / "x", {"a": {"p": ["110100"], "q": ["000000"]}}), resamples=50)
    assert list(r.tasks["a"].pass_at) == [1, 2, 4, 6]
    assert estimates.default_ks(256) == [2**i for i in range(9)]
    for bad in ([7], [0], []):
        with pytest.raises(UserError, match=r"1\.\.6"):
            results(tmp_path / "x", ks=bad)
    with pytest.raises(UserError, match="level=95"):
        results(tmp_path / "x", level=95)


def test_mean_and_std_over_seeds_are_of_each_seeds_own_estimate(tmp_path):
    r = results(make_run(tmp_path / "x", TASKS), resamples=50)
    for name, problems in TASKS.items():
        for k, e in r.tasks[name].pass_at.items():
            each = [np.mean([brute([words[s]], k) for words in problems.values()]) for s in range(2)]
            assert e.seed_mean == pytest.approx(np.mean(each))
            assert e.seed_std == pytest.approx(np.std(each, ddof=1))
    each = [np.mean([np.mean([brute([w[s]], 4) for w in p.values()]) for p in TASKS.values()]) for s in range(2)]
    assert r.average.pass_at[4].seed_std == pytest.approx(np.std(each, ddof=1))
    one = results(make_run(tmp_path / "y", {"a": {"p": ["10"], "q": ["00"]}}), resamples=50)
    assert one.tasks["a"].pass_at[1].seed_std is None


def test_majority_against_all_subsets_and_against_metrics(tmp_path):
    words = {"p": ["11x0", "x-h0"], "q": ["----", "----"], "r": ["0000", "1-1-"], "s": ["1xx-", "1---"]}
    r = results(make_run(tmp_path / "x", {"a": words}), ks=[1, 3, 8], resamples=50)
    got = r.tasks["a"].majority_at
    for k in (1, 8):
        assert got[k].value == pytest.approx(np.mean([brute_majority(w, k) for w in words.values()]))
    task = counts_of(tmp_path / "x").tasks["a"]
    fine = estimates.majority_table(task, [3], draws=20_000)[:, 0]
    assert fine == pytest.approx([brute_majority(w, 3) for w in words.values()], abs=0.015)
    answers = {"1": "7", "h": "7.0", "0": "5", "x": "6"}
    theirs = [
        majority_at_k([answers.get(c) for c in "".join(w)], [c in "1h" for c in "".join(w)], 8) for w in words.values()
    ]
    assert estimates.majority_table(task, [8])[:, 0] == pytest.approx(theirs)


def test_rates_and_distinct_right_answers(tmp_path):
    words = {"p": ["11h0", "1ttl"], "q": ["T-e0", "0000"]}
    r = results(make_run(tmp_path / "x", {"a": words}, solutions=True), resamples=50).tasks["a"]
    assert r.rates == pytest.approx(
        {"truncated": 4 / 16, "answered": 11 / 16, "truncated_without_answer": 3 / 16, "errors": 1 / 16, "tokens": 11.5}
    )
    assert r.pass_at[1].value == pytest.approx((5 / 8 + 0) / 2), "cut off before an answer is wrong, whatever was said"
    assert r.distinct_answers.value == pytest.approx(np.mean([(2 + 1) / 2, 0]))
    assert r.distinct_solutions.value == pytest.approx(np.mean([(3 + 1) / 2, 0]))  # p: s0 s1 s2; s0 s0
    assert results(make_run(tmp_path / "y", {"a": words}), resamples=50).tasks["a"].distinct_solutions is None


def test_unverifiable_problems_are_dropped_whole_and_listed(tmp_path):
    words = {"p": ["11", "00"], "bad": ["11", "?1"], "q": ["00", "00"]}
    r = results(make_run(tmp_path / "x", {"a": words}, unverifiable=["worse"]), resamples=50).tasks["a"]
    assert r.unverifiable == ["worse", "bad"]
    assert (r.problems, round(r.pass_at[1].value, 12)) == (2, 0.25)
    assert not r.incomplete


def test_a_task_without_one_verifiable_gold_is_left_out_and_said(tmp_path):
    folder = make_run(tmp_path / "x", {"a": {"p": ["10"], "q": ["00"]}, "b": {"bad": ["?1"]}})
    r = results(folder, resamples=50)
    assert (r.average.tasks, r.tasks["b"].unverifiable, r.tasks["b"].problems) == (["a"], ["bad"], 0)


def test_incomplete_cells_are_named_and_not_averaged(tmp_path):
    words = {"p": ["1111", "0.00"], "q": ["0000", "1100"], "never": ["....", "...."], "r": ["1...", "..11"]}
    r = results(make_run(tmp_path / "x", {"a": words}), resamples=50)
    t = r.tasks["a"]
    gaps = [Gap("p", 1, 3, 4), Gap("never", 0, 0, 4), Gap("never", 1, 0, 4), Gap("r", 0, 1, 4), Gap("r", 1, 2, 4)]
    assert t.incomplete == gaps
    assert t.left_out == ["never", "r"]
    assert t.pass_at[1].value == pytest.approx(np.mean([1.0, 0.25]))  # p's first seed alone, both of q's
    assert t.pass_at[1].seed_mean == pytest.approx(0.25), "over seeds: q alone, the one problem whole in both"
    longer = results(tmp_path / "x", ks=[8], resamples=50).tasks["a"]
    assert longer.left_out == ["p", "never", "r"]
    with pytest.raises(UserError, match="no problem with all its samples"):
        results(make_run(tmp_path / "y", {"a": {"p": ["1.11"]}}))


def test_a_part_of_a_point_is_not_right(tmp_path):
    found = results(make_run(tmp_path / "x", {"a": {"p": ["1~~0"], "q": ["~~~~"]}}), resamples=50).tasks["a"]
    assert found.pass_at[1].value == pytest.approx(1 / 8)


def test_distinct_right_answers_are_of_whole_seeds(tmp_path):
    words = {"p": ["1100", "1h1."], "q": ["1h00", "0000"]}
    found = results(make_run(tmp_path / "x", {"a": words}), resamples=50).tasks["a"]
    assert found.distinct_answers.value == pytest.approx(np.mean([1, (2 + 0) / 2])), "p: its first seed alone"


def test_a_task_that_has_not_begun_is_said_and_the_rest_shown(tmp_path):
    r = results(make_run(tmp_path / "x", {**TASKS, "c": {"z": ["...."]}}), resamples=50)
    assert r.average.tasks == ["a", "b"]
    assert r.tasks["c"].pass_at == {}
    assert any("c: no problem is complete" in n for n in r.notes)


def test_a_larger_n_asked_by_mistake_takes_no_number_away(tmp_path):
    words = {"p": ["1100", "1000"], "q": ["0000", "0110"]}
    before = results(make_run(tmp_path / "x", {"a": words}), resamples=50)
    with SampleStore(tmp_path / "x", readonly=False) as store:
        store.ask("a", ["p", "q"], 1000, range(4))  # more seeds, too
        store.append([_sample("a", "p", 0, i, "1", False) for i in range(4, 1000)])  # one cell of it
    after = results(tmp_path / "x", resamples=50)
    assert (after.tasks["a"].n, after.tasks["a"].problems) == (4, 2)
    assert {k: e.value for k, e in after.tasks["a"].pass_at.items()} == {
        k: e.value for k, e in before.tasks["a"].pass_at.items()
    }
    assert after.tasks["a"].rates == before.tasks["a"].rates, "also the tokens: those of the samples that count"
    assert any("n=1,000 was asked for" in note and "first 4 samples" in note for note in after.notes)
    with SampleStore(tmp_path / "x") as store:  # the rest of one seed of each problem
        store.append([_sample("a", "q", 0, i, "0", False) for i in range(4, 1000)])
    whole = results(tmp_path / "x", resamples=50)
    assert (whole.tasks["a"].n, whole.notes) == (1000, [])
    assert whole.tasks["a"].pass_at[1].value == pytest.approx(np.mean([998 / 1000, 0]))


def test_a_store_that_did_not_write_sizes_down_reads_what_every_problem_has(tmp_path):
    """Of an earlier release, and n = 10^9 was asked for: nothing is allocated for it."""
    folder = make_run(tmp_path / "x", {"a": {"p": ["1100"], "q": ["010."]}})
    header = json.loads((folder / "store.json").read_text())
    del header["sizes"]
    header["tasks"]["a"]["n"] = 10**9
    (folder / "store.json").write_text(json.dumps(header))
    found = results(folder, resamples=50)
    assert (found.tasks["a"].n, found.tasks["a"].pass_at[1].value) == (3, pytest.approx(0.5))
    assert any("n=1,000,000,000 was asked for" in note for note in found.notes)
    header["tasks"]["a"]["problems"].append("never begun")
    (folder / "store.json").write_text(json.dumps(header))
    with pytest.raises(UserError, match=r"more than can be counted.*store\.json"):
        results(folder, resamples=50)


def test_without_a_record_of_what_was_asked_the_samples_speak(tmp_path):
    r = results(make_run(tmp_path / "x", {"a": {"p": ["1111"], "q": ["11"]}}, asked=False), resamples=50).tasks["a"]
    assert (r.n, r.problems, r.incomplete) == (4, 1, [Gap("q", 0, 2, 4)])


def test_a_doubled_sample_and_a_rescoring_cut_short(tmp_path):
    folder = make_run(tmp_path / "x", {"a": {"p": ["10"], "q": ["00"]}})
    make_run(folder, {"a": {"p": ["11"], "q": ["11"]}})  # the same keys again: the first stay
    assert results(folder, resamples=50).tasks["a"].pass_at[1].value == 0.25
    with SampleStore(folder) as store:
        with pytest.raises(StoreError, match="2 of 2 shards"):
            store.rescore(lambda rows: 1 / 0)
        assert any("re-scoring was cut short: 2 of 2" in n for n in results(store, resamples=50).notes)
        store.rescore(lambda rows: [1.0] * len(rows))
        assert results(store, resamples=50).tasks["a"].pass_at[1].value == 1.0


def test_what_is_saved_is_json(tmp_path):
    base = make_run(tmp_path / "base", {"a": {"p0": ["0000"], "p1": ["0000"]}})
    r = results(
        make_run(tmp_path / "x", {"a": {"p0": ["1000"], "p1": ["00t."], "p2": ["?000"]}}), base=base, resamples=50
    )
    assert math.isnan(r.support["a"].metrics.SRR)
    text = r.save(tmp_path / "r.json").read_text()
    saved = json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert saved["support"]["a"]["metrics"]["SRR"] is None
    assert saved["tasks"]["a"]["pass_at"]["1"]["value"] == r.tasks["a"].pass_at[1].value


# ---- two runs ----------------------------------------------------------------------------------------------------


def test_paired_differences_are_on_the_common_verifiable_problems(tmp_path):
    a = make_run(
        tmp_path / "a", {"t": {"p": ["1000"], "q": ["0000"], "r": ["1111"], "only": ["1111"], "bad": ["1111"]}}
    )
    b = make_run(tmp_path / "b", {"t": {"r": ["11"], "q": ["10"], "p": ["11"], "bad": ["?1"]}, "u": {"z": ["11"]}})
    found = compare([a, b], partial=True)
    assert (found.problems["t"], list(found.rows[1].cells["t"])) == (3, [1, 2])
    value, low, high = found.rows[1].cells["t"][1].minus_first
    change = [1 - 0.25, 0.5 - 0, 0]
    assert value == pytest.approx(np.mean(change))
    assert (low, high) == pytest.approx(bootstrap_interval([1, 0.5, 1], [0.25, 0, 1])[1:], abs=0.02)
    assert compare([b, a], partial=True).rows[1].cells["t"][1].minus_first[0] == pytest.approx(-value)


def test_support_counts_the_first_samples_by_seed_and_index(tmp_path):
    a = make_run(
        tmp_path / "a", {"t": {"p": ["0001", "0000"], "q": ["1000", "0000"], "r": ["0000", "1000"], "s": ["00", "00"]}}
    )
    b = make_run(
        tmp_path / "b",
        {"t": {"p": ["1000", "0000"], "q": ["0000", "0001"], "r": ["0000", "0000"], "s": ["0000", "0000"]}},
    )
    lists = {k: support(a, b, k)["t"] for k in (1, 4, 5, 8)}
    assert [(x.P, x.E, x.S, x.O) for x in lists.values()] == [
        ([], ["p"], ["q"], ["r"]),
        (["p"], [], ["q"], ["r"]),
        (["p"], [], ["q", "r"], []),
        (["p", "q"], [], ["r"], []),
    ]
    m = lists[8].metrics
    assert pytest.approx((2 / 3, 0, -1 / 3)) == (m.SRR, m.NDR, m.NSCR)
    assert lists[4].left_out == ["s"], "too few samples in one run: named, not counted as unsolved"
    assert support(a, b)["t"].budget == 4
    with pytest.raises(UserError, match="smaller budget"):
        support(a, b, 9)
    with pytest.raises(UserError, match="share no task"):
        support(a, make_run(tmp_path / "c", {"v": {"p": ["1"]}}))


# ---- intervals ---------------------------------------------------------------------------------------------------


def test_bands_are_the_bootstrap_of_metrics():
    rng = np.random.default_rng(1)
    x, y = rng.beta(0.5, 1, (40, 2)), rng.beta(2, 1, (12, 2))
    (one, two), both = bands([x, y], level=0.9, resamples=40_000)
    for j in range(2):
        for band, values in ((one, x), (two, y)):
            theirs = bootstrap_interval(values[:, j], level=0.9, resamples=40_000, seed=7)
            assert (band.mean[j], band.low[j], band.high[j]) == pytest.approx(theirs, abs=0.004)
    assert both.mean == pytest.approx((x.mean(0) + y.mean(0)) / 2)
    error = np.sqrt(x.var(0, ddof=1) / 40 + y.var(0, ddof=1) / 12) / 2  # of the mean of two independent means
    assert (both.high - both.low) / 2 == pytest.approx(1.645 * error, rel=0.04)
    rare = np.array([[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 8)  # a tenth of the resamples has none of the two
    (ends,), _ = bands([rare], level=0.9)
    assert (ends.low[0], ends.high[1]) == (0, 1)
    (single,), _ = bands([x[:1]])
    assert np.isnan(single.low).all()


KS, SEEDS, N, TIMES = [1, 4, 16], 2, 16, 500
POPULATIONS = {"a": (0.6, 1.2, 60), "b": (1.0, 3.0, 40)}  # Beta(α, β) success rates, problems drawn


def truth(alpha, beta, k):
    """E[1 − (1−p)^k], p ~ Beta: 1 − B(α, β+k)/B(α, β)."""
    log_b = [math.lgamma(alpha) + math.lgamma(b) - math.lgamma(alpha + b) for b in (beta + k, beta)]
    return 1 - math.exp(log_b[0] - log_b[1])


@pytest.fixture(scope="module")
def simulations():
    """Each time new problems are drawn from the populations, and new samples for them."""
    rng, out = np.random.default_rng(0), []
    for _ in range(TIMES):
        tasks = [simulated(rng, rng.beta(a, b, size), SEEDS, N, name) for name, (a, b, size) in POPULATIONS.items()]
        r = results(as_counts(*tasks), ks=KS, level=0.95, resamples=600)
        out.append([[r.tasks["a"].pass_at[k], r.tasks["b"].pass_at[k], r.average.pass_at[k]] for k in KS])
    return out


@pytest.mark.slow
@pytest.mark.parametrize("j", range(len(KS)))
@pytest.mark.parametrize("group", [0, 1, 2])
def test_intervals_cover_the_population_mean_at_the_stated_level(simulations, j, group):
    """95% intervals, 500 times: between 91.5% and 98% hold the truth (percentiles fall a little short at 40 skewed problems)."""
    means = [truth(a, b, KS[j]) for a, b, _ in POPULATIONS.values()]
    target = [*means, np.mean(means)][group]
    found = [run[j][group] for run in simulations]
    covered = np.mean([e.low <= target <= e.high for e in found])
    assert 0.915 <= covered <= 0.98
    values = np.array([e.value for e in found])
    assert abs(values.mean() - target) < 4 * values.std() / np.sqrt(TIMES), "unbiased for the population"


def test_pass_at_k_is_unbiased_given_the_problems():
    """The problems stay, the samples are drawn 500 times: the mean estimate is 1 − (1−p)^k, though k is near n."""
    rng = np.random.default_rng(3)
    rates = np.array([0.01, 0.05, 0.2, 0.6, 0.0, 1.0])
    draws = np.array([estimates.pass_table(simulated(rng, rates, 2, 8), [1, 8, 12]) for _ in range(TIMES)])
    target = 1 - (1 - rates[:, None]) ** np.array([1, 8, 12])
    error = draws.std(0) / np.sqrt(TIMES)
    assert np.all(np.abs(draws.mean(0) - target) <= 4 * error + 1e-9)


def test_paired_intervals_cover_the_true_difference():
    """Two models on the same problems, 300 times: 86% to 94.5% of the 90% intervals hold the mean difference."""
    rng, held = np.random.default_rng(5), []
    for _ in range(300):
        p = rng.beta(1, 2, 50)
        a, b = simulated(rng, p, 1, 8), simulated(rng, p**2, 1, 8)
        found = compare([as_counts(a), as_counts(b)], level=0.9, resamples=600)
        _, low, high = found.rows[1].cells[AVERAGE][1].minus_first
        held.append(low <= 1 / 6 - 1 / 3 <= high)  # E[p²] − E[p] of Beta(1, 2)
    assert 0.86 <= np.mean(held) <= 0.945


# ---- memory ------------------------------------------------------------------------------------------------------

BIG = """
import resource, sys
import numpy as np, pyarrow as pa
from sage_rlvr.evaluate.results import results
from sage_rlvr.store import SampleStore
from sage_rlvr.store.samples import SCHEMA
per_problem, problems = int(sys.argv[2]), 100
store = SampleStore(sys.argv[1])
store.ask("t", [f"p{i}" for i in range(problems)], per_problem, [0])
for p in range(problems):  # 2 kB of text and 100 token ids a sample
    m = per_problem
    columns = {"run": ["r"] * m, "model": ["m"] * m, "task": ["t"] * m, "problem": [f"p{p}"] * m, "seed": [0] * m,
        "index": range(m), "completion": [f"{p} {i} " + "x" * 2000 for i in range(m)], "tokens": [100] * m,
        "finish": ["stop"] * m, "answer": [str(i % 50) for i in range(m)], "verdict": [float(i % 50 == p) for i in range(m)],
        "reason": [None] * m, "token_ids": [[1] * 100] * m, "logprob": [-1.0] * m, "solution": [None] * m}
    store._waiting.append(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))
    store.flush()
store.close()
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 1024
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before = peak()
r = results(sys.argv[1], resamples=200)
print(r.tasks["t"].problems, peak() - before)
"""


@pytest.mark.slow
def test_memory_is_a_few_bytes_a_sample_not_its_text(tmp_path):
    """200,000 samples hold 400 MB of text and 80 MB of token ids; reading them takes a tenth of that."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BIG), str(tmp_path / "big"), "2000"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    problems, grew = done.stdout.split()
    assert int(problems) == 100
    assert float(grew) < 60
