"""Numbers of the docs, one function per phrase or table: between ``<!-- made: NAME -->`` and ``<!-- /made -->`` a page holds what
NAME answers. evidence.py fills them in; those of whole studies are there."""

import json
import lzma
import math
import statistics
import tarfile
import textwrap
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gpu.records import RUNS

from sage_rlvr.stats.counts import TaskCounts, from_compact
from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.stats.table import markdown
from sage_rlvr.study.plan import load_study

RESULTS = Path(__file__).resolve().parents[1] / "results"


@cache
def record(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


@cache
def runs(study: str) -> dict[str, dict[str, Any]]:
    """Run → its record in a study's runs file."""
    with lzma.open(RESULTS / "gpu" / study / RUNS, "rt", encoding="utf-8") as f:
        return {r["name"]: r for r in list(map(json.loads, f))[1:]}


def mean(entries: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([entry[name] for entry in entries]))


def short(number: float, digits: int = 3) -> str:
    return f"{number:.{digits}f}".removeprefix("0")


# ---- README and examples -------------------------------------------------------------------------------------------------------


def demo() -> str:
    rows = {r["variant"]: r["pass_at"] for r in record("cpu/demo.json")["table"]}
    at = {(v, k): short(rows[v][k][0]) for v in ("base", "grpo_no_kl", "grpo") for k in ("1", "64")}
    return (
        f"without KL, RL raised pass@1 from {at['base', '1']} to {at['grpo_no_kl', '1']} and lowered pass@64 from "
        f"{at['base', '64']} to {at['grpo_no_kl', '64']}. GRPO with KL reached {at['grpo', '1']} and {at['grpo', '64']}."
    )


@cache
def _gsm8k() -> list[dict[str, Any]]:
    """The settings of the recipe for 24 GB without its KL, on a shared H200: the longest run of the gate on GSM8K."""
    pieces = record("gpu/gsm8k_gate/stopped.json")
    return max((run for piece in pieces for run in piece["runs"].values()), key=len)


def one_card() -> str:
    first, last = (short(mean(part, "reward"), 2) for part in (_gsm8k()[:10], _gsm8k()[-10:]))
    minutes = len(_gsm8k()) * mean(_gsm8k(), "step_time") / 60
    return f"took {gsm8k_time()} ({minutes:.0f} minutes), and the training reward rose from {first} to {last}."


def gsm8k_time() -> str:
    return f"{mean(_gsm8k(), 'step_time'):.1f} s per step"


def gsm8k_rewards() -> str:
    body = []
    for end in (10, 20, 30, 80, 150):
        part = _gsm8k()[end - 10 : end]
        body.append([f"{end - 9}–{end}", short(mean(part, "reward")), short(mean(part, "entropy"), 2)])
    return markdown(["steps", "training reward", "entropy"], body)


# ---- docs/performance.md ---------------------------------------------------------------------------------------------------

LAYER = 2 * 1536 * 1536 + 2 * 1536 * 256 + 3 * 1536 * 8960  # Qwen2.5-1.5B: q, o; k, v; the three of the MLP
WEIGHTS = 28 * LAYER + 151_936 * 1536
PHASES = (
    "rollout",
    "sampling policy",
    "reference",
    "update",
    "verify",
    "sync",
    "rest",
    "optimizer",
    "all but rollout",
    "step",
)
READ = 1e3 * 2 * WEIGHTS / 4.3e12  # ms to read the weights once


def pass_ms(tokens: float) -> float:
    """Two operations per weight and token, at the 670 TFLOP/s that the head's floor reaches."""
    return 1e3 * 2 * WEIGHTS * tokens / 670e12


def head() -> str:
    wide, narrow = (record("gpu/head.json")["head"][width] for width in ("3584", "1536"))
    peers = [name for name, row in wide.items() if "ms" in row and not name.startswith("ours")]
    body = [_head_row(name, wide[name], narrow[name]) for name in (*peers, "ours")]
    body[0][0] = "floor (two bf16 passes, same run)"
    names = ["implementation", "hidden 3,584", "hidden 1,536", "extra memory", "log-prob error", "entropy error"]
    return markdown([*names, "gradient error"], body)


def _head_row(name: str, wide: dict[str, Any], narrow: dict[str, Any]) -> list[str]:
    error = wide.get("error", {})
    errors = [f"{error[what]:.1e}" if error else "–" for what in ("logps", "entropies", "gradient")]
    memory = f"{wide['extra_gib']:.2f} GiB" if "extra_gib" in wide else "–"
    return [name, f"{wide['ms']:.1f} ms", f"{narrow['ms']:.1f} ms", memory, *errors]


def head_floor() -> str:
    wide, narrow = (
        rows["ours"]["ms"] / rows["floor"]["ms"] for rows in map(record("gpu/head.json")["head"].get, ("3584", "1536"))
    )
    return f"{wide:.2f} × the floor at 3,584 and {narrow:.2f} × at 1,536"


def trainable_head() -> str:
    wide, narrow = (record("gpu/head.json")["trainable"][width] for width in ("3584", "1536"))
    body = [
        [n, f"{wide[n]['ms']:.1f} ms", f"{narrow[n]['ms']:.1f} ms",
         f"{wide[n]['extra_gib']:.2f} / {narrow[n]['extra_gib']:.2f} GiB"] for n in wide
    ]  # fmt: skip
    return markdown(["implementation", "hidden 3,584", "hidden 1,536", "extra memory"], body)


def head_tokens() -> str:
    body = [
        [f"{int(tokens):,}", *(f"{ways[w]['us_per_token']:.2f} µs, {ways[w]['extra_gib']:.2f} GiB" for w in ways)]
        for tokens, ways in record("gpu/head.json")["linearity"].items()
    ]
    return markdown(["tokens", "one call", "as micro-batches of 8 × 2,048"], body)


def agreement() -> str:
    found = record("gpu/agreement.json")["agreement"]
    half, full = (
        [
            max(row[what] for name, row in found.items() if name.endswith(dtype))
            for what in ("logps", "entropies", "gradient")
        ]
        for dtype in ("bfloat16", "float32")
    )
    return "{:.1e} in log-probs, {:.1e} in entropies and {:.1e} in gradients in bf16, and ".format(
        *half
    ) + "{:.1e}, {:.1e} and {:.1e} in float32".format(*full)


def step() -> str:
    found = record("gpu/step.json")
    floor = f"{3 * pass_ms(found['rollouts']['real_tokens']):.0f} ms", f"{2 * WEIGHTS / 2**30:.1f} GiB"
    body = [["floor: three passes, 0.30 PFLOP at 670 TFLOP/s; the weights, bf16", *floor]]
    for name, row in found["b"].items():
        if name != "verdict":
            body.append([name.replace("TRL", "TRL 1.16"), f"{row['ms']:.0f} ms", f"{row['peak_gib']:.1f} GiB"])
    return markdown(["trainer", "time", "peak memory"], body)


def step_verdict() -> str:
    verdict = record("gpu/step.json")["b"]["verdict"]
    return f"{verdict['speedup']:.2f} × TRL's fastest, with {verdict['memory_ratio']:.2f} of its memory"


def guide_cost() -> str:
    guide = record("gpu/step.json")["a"]["branch k3 against guide off"]
    return (
        f"time {guide['time_ratio']:.3f} ×, peak memory {guide['memory_ratio']:.3f} ×, "
        f"{guide['passes_on']:.0f} forward passes both"
    )


def step_tokens() -> str:
    body = [
        [
            f"{int(name.split()[0]):,}",
            f"{row['ms']:.0f} ms",
            f"{row['us_per_token']:.1f} µs",
            f"{row['peak_gib']:.1f} GiB",
        ]
        for name, row in record("gpu/step.json")["c"].items()
    ]
    return markdown(["tokens", "time", "per token", "peak memory"], body)


def step_grows() -> str:
    rows = record("gpu/step.json")["c"]
    return f"the time grows {rows['131072 tokens']['ms'] / rows['32768 tokens']['ms']:.2f} ×"


def whole_step() -> str:
    found = record("gpu/whole_step.json")
    one = pass_ms(statistics.median(found["ours"]["tokens"]) + 64 * 125)  # prompts of 50 to 200
    floors = {"rollout": 1024 * READ, "sampling policy": one, "reference": one, "update": 2 * one, "sync": 2 * READ}
    floors["all but rollout"] = 4 * one + 2 * READ
    floors["step"] = floors["all but rollout"] + floors["rollout"]
    body = [
        [name, *(f"{found[who]['ms'][name]:.0f}" for who in ("ours", "theirs")), f"{found['theirs ÷ ours'][name]:.2f}",
         f"{floors[name]:.0f}" if name in floors else "–"] for name in PHASES
    ]  # fmt: skip
    return markdown(["phase", "ours", "TRL 1.16", "TRL ÷ ours, per token", "floor"], body)


def whole_step_memory() -> str:
    return "{:.1f} and {:.1f} GiB".format(
        *(record("gpu/whole_step.json")[who]["peak_gib"] for who in ("ours", "theirs"))
    )


def whole_step_faster() -> str:
    ours, theirs = (record("gpu/whole_step.json")[who]["ms"] for who in ("ours", "theirs"))
    return f"{theirs['step'] / (ours['step'] - ours['rollout'] + theirs['rollout']):.2f} × as fast"


# ---- docs/reliability.md ---------------------------------------------------------------------------------------------------

POLICIES = ("echo", "longest formula", "last number", "list of all", "best constant")


def reliability_machine() -> str:
    made = [record(f"cpu/{name}.json") for name in ("scorers", "trivial", "kills", "verdicts")]
    return "; ".join(sorted({(r.get("made") or r)["machine"] for r in made}))


def scorers() -> str:
    body = []
    for name, found in record("cpu/scorers.json")["tried"].items():
        limit = f"{found['limit_characters']:,} characters" if found.get("limit_characters") else "–"
        limit = f"{found['limit_s']:g} s" if "limit_s" in found else limit
        body.append([f"`{name}`", f"{found['inputs']:,}", str(found["exceptions"]), f"{found['longest_s']:.2f}", limit])
    return markdown(["reader or scorer", "inputs", "exceptions", "longest, s", "its limit"], body)


def judge_limit() -> str:
    return f"{record('cpu/scorers.json')['tried']['scorer math500']['limit_s']:g} s each"


def right_answers() -> str:
    found = record("cpu/verdicts.json")["right"]
    body = [[name, *(f"{r[x]:,}" for x in ("judged", "before", "after"))] for name, r in found.items()]
    return markdown(["answers", "judged", "right before", "right now"], body)


def trivial_policies() -> str:
    tasks = {n: row for n, row in record("cpu/trivial.json")["tasks"].items() if not n.startswith("gym:")}
    body = [
        [f"`{name}`", str(row["problems"]), *("–" if row.get(p) is None else f"{row[p]:.3f}" for p in POLICIES)]
        for name, row in tasks.items()
    ]
    return markdown(["task", "problems", *POLICIES], body)


def trivial_generators() -> str:
    """Which generators pay a trivial policy, the most first."""
    tasks, limit = record("cpu/trivial.json")["tasks"], record("cpu/trivial.json")["limit"]
    best = {n: max(row.get(p) or 0.0 for p in POLICIES) for n, row in tasks.items() if n.startswith("gym:")}
    above = sorted((name for name in best if best[name] > limit), key=lambda name: -best[name])
    named = textwrap.fill(", ".join(f"`{name}` {best[name]:.2f}" for name in above), 120)
    return f"{len(above)} of {len(best)} generators pay a trivial policy more than {limit:.0%} of the time:\n{named}."


def kills() -> str:
    body = []
    for kind in ("training", "sft", "evaluation", "studies"):
        r = record("cpu/kills.json")[kind]
        samples = f"{r['lost']} / {r['doubled']}" if r["samples"] else "–"
        body.append([kind, str(r["kills"]), f"{r['identical']} of {r['runs']}", str(r["leaked"]), samples])
    head = ["killed", "kills", "runs identical to an unkilled one", "processes leaked", "samples lost / doubled"]
    return markdown(head, body)


def races() -> str:
    found = record("cpu/kills.json")["races"]
    body = [[k, *(str(r[x]) for x in ("rounds", "racers", "second_writers_accepted"))] for k, r in found.items()]
    return markdown(["writers of", "rounds", "racers per round", "second writers accepted"], body)


# ---- the miniature world, docs/evidence/notebook.md ------------------------------------------------------------------------


def counts_of(study: str, run: str, task: str) -> TaskCounts:
    return from_compact(runs(study)[run]["counts"]).tasks[task]


@cache
def _at_beta_01() -> dict[str, list[list[dict[str, Any]]]]:
    """Family → the logs of its seeds at β 0.1, of the search."""
    logs = defaultdict[str, list[Any]](list)
    for name, r in runs("frontier").items():
        if "+beta0.1-s" in name:
            logs[name.partition("+")[0]].append(r["log"])
    return logs


def _ends(family: str, name: str, entries: int = 1) -> float:
    """Mean over seeds of the last entries of a logged number."""
    return float(np.mean([[e[name] for e in steps if name in e][-entries:] for steps in _at_beta_01()[family]]))


def guides_active() -> str:
    branch, tempered = (_ends(f, "sage/active") for f in ("branch_k3", "tempered_k3plus"))
    return f"{branch:.0%} of the tokens (`branch_k3`) and {tempered:.0%} (`tempered_k3plus`)"


def guides_log_q() -> str:
    """log q is what the shaped KL lacks of the plain one."""
    kl = {f: _ends(f, "kl_ref", 5) for f in ("branch_k1", "tempered_k1")}
    q = {f: short(kl[f] - _ends(f, "sage/pseudo_kl", 5)) for f in kl}
    return (
        f"{q['branch_k1']} nats per token (`branch_k1`, β 0.1, last 50 steps), where the KL to π_ref is "
        f"{short(kl['branch_k1'])}. Tempered does not: {q['tempered_k1']} of {short(kl['tempered_k1'])}"
    )


def guides_bonus() -> str:
    weights = [short(_ends(f, "sage/bonus_to_reward")) for f in ("grpo_k1", "branch_k1", "tempered_k1")]
    return "({} without, {} with Branch, {} with Tempered)".format(*weights)


def largest_q() -> str:
    logs = [e for f in ("branch_k1", "branch_k3") for steps in _at_beta_01()[f] for e in steps]
    return f"at most {max(e['sage/q_max'] for e in logs if 'sage/q_max' in e):.2f} at β 0.1"


# ---- the real model: docs/evidence, docs/theory.md and the FAQ -------------------------------------------------------------


def arm_with_more_seeds() -> str:
    sums = []
    for arm in ("branch_exact", "branch", "tempered"):
        found = [counts_of("qwen1.5b", f"{arm}-s0", task) for task in ("amc23", "math500-l5")]
        sums.append(sum(pass_at_k(c.totals, c.rights, k).mean() for c in found for k in (1, 64)) / 2)
    return "add up to {}; Branch's to {}, Tempered's to {}".format(*map(short, sums))


def grpo_moved() -> str:
    logs = [r["log"] for name, r in runs("qwen1.5b").items() if name.startswith("grpo-s")]
    return (
        f"{short(np.mean([mean([e for e in steps if 'loss' in e][40:], 'kl_ref') for steps in logs]))} nats per token"
    )


@cache
def _rambling() -> list[dict[str, Any]]:
    """The steps of the run that ended in rambling."""
    run = "branch_exact-s3"
    with tarfile.open(RESULTS / "gpu" / "qwen1.5b" / "look" / f"{run}.tar.gz") as tar:
        file = tar.extractfile(f"{run}/train/log.jsonl")
        return [entry for entry in map(json.loads, file or []) if "reward" in entry]


def rambling() -> str:
    before, last = _rambling()[40:48], _rambling()[72:]
    rows = {
        "reward": ("reward", short),
        "truncated": ("completions/clipped_ratio", "{:.1%}".format),
        "entropy, nats": ("entropy", lambda x: short(x, 2)),
        "q ≠ 1, share of tokens": ("sage/active", "{:.1%}".format),
        "KL to the base, nats per token": ("kl_ref", short),
    }
    body = [[name, *(form(mean(part, key)) for part in (before, last))] for name, (key, form) in rows.items()]
    return markdown(["", "steps 41–48", "steps 73–80"], body).replace("|  |", "| |")


def rambling_pays() -> str:
    last, beta = _rambling()[72:], load_study("qwen1.5b").settings_of("branch_exact-s0")["beta"]
    kl, length = mean(last, "kl_ref"), mean(last, "completions/mean_length")
    log_q = kl - mean(last, "sage/pseudo_kl")
    return f"{beta * log_q * length:.1f} per completion, where the KL costs {beta * kl * length:.1f}"


def rambling_begins() -> str:
    return f"step {next(e['step'] for e in _rambling() if e['sage/bonus_abs'] > 1 and e['sage/pseudo_kl'] < 0)}"


def rambling_optimum() -> str:
    first = _rambling()[:8]
    cut = mean(first, "completions/clipped_ratio")
    h, log_q = (1 - cut) / mean(first, "completions/mean_length"), mean(first, "kl_ref") - mean(first, "sage/pseudo_kl")
    q = math.exp(log_q)
    return (
        f"ends with h = {short(h, 4)}, and Branch gives it log q = {short(log_q, 4)} per token, so $(1-h)\\,q$ = "
        f"{(1 - h) * q:.3f}: in this picture the optimum of Eq. 6 cuts {((1 - h) * q - 1) / (q - 1):.0%} of its texts, wherever "
        f"the cut is; the model itself, {cut:.0%} at 1,024 tokens"
    )


def shares_of_a_gpu() -> str:
    shares = {share: len(found["wrong"]) for share, found in record("gpu/mps_share.json")["shares"].items()}
    *others, last = (share for share, wrong in shares.items() if wrong)
    wrong = [n for n in shares.values() if n]
    return (
        f"with a share of {' or '.join(s for s, n in shares.items() if not n)} all 26 were right, "
        f"with {', '.join(others)} or {last} between {min(wrong)} and {max(wrong)} of them were not"
    )


def engine_broken() -> str:
    return f"{-record('gpu/reread_broken.json')['gap a token']['model']['mean']:.0f} nats"


# ---- the stacked engine --------------------------------------------------------------------------------------------------------


def stacked_search() -> str:
    sessions = record("gpu/hard/sessions.json")
    seconds, done = (sum(x) for x in zip(*((s["wall_s"], len(set(s["finished"]) - {"base"})) for s in sessions)))
    return f"{seconds / done:.1f} s of the card per run"


def stacked_speed() -> str:
    body = [
        [
            name.removesuffix(" bf16"),
            f"{row['ms_per_run_and_step']:.1f}",
            f"{row['ms_per_run_and_1000_samples']:.1f}",
            f"{row['gib']:.0f}",
        ]
        for name, row in record("gpu/stacked_speed.json")["kinds"].items()
    ]
    return markdown(["layers", "ms per run and step", "ms per run and 1,000 samples measured", "GiB"], body)


def vllm_front() -> str:
    rows = record("cpu/vllm_front.json")["ms per step, quartiles"]
    body = [[way, f"{median:.1f}", f"{low:.1f} to {high:.1f}"] for way, (low, median, high) in rows.items()]
    return markdown(["vLLM's engine", "ms per step", "quartiles"], body)


def stacked_again() -> str:
    found, body = record("cpu/stacked.json"), []
    for arm, row in found["arms"].items():
        spread = [f"{m:.3f} ± {sd:.3f}" for m, sd in zip(row["recorded_mean"], row["recorded_sd_over_seeds"])]
        body.append([f"`{arm}`, records, {row['recorded_seeds']} seeds (mean ± sd)", *spread])
        body += [[f"`{arm}`, stacked, a fresh seed", *(f"{x:.3f}" for x in own)] for own in row["stacked"]]
    ks = [f"pass@{k}" for k in next(iter(found["arms"].values()))["k"]]
    return markdown(["arm", *ks], body)
