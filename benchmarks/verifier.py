"""The verifier against TRL's ``accuracy_reward`` on the same GRPO batches, and how long hostile completions hold it up.

Run: ``python benchmarks/verifier.py --workers 2``. Needs no data and no GPU; seeds are fixed.
"""

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from sage_rlvr.verify import Verifier

GOLDS, COMPLETIONS = 8, 64
WARM_UP = 2  # batches before the clock counts, for both sides


def make_gold(rng: random.Random) -> tuple[str, list[str], list[str]]:
    """A gold, its spellings, and what a model gets wrong about it, commonest first. The kinds have their shares in MATH-500."""
    n, d, r = rng.randint(2, 999), rng.choice([3, 7, 11, 13]), rng.choice([2, 3, 5, 7])
    kinds = [  # (share, template of the gold, two other spellings)
        (0.64, "{n}", "{n}.0", "x = {n}"),
        (0.12, r"\frac{{{n}}}{{{d}}}", r"\dfrac{{{n}}}{{{d}}}", "{n}/{d}"),
        (0.07, r"{n}^\circ", "{n}", r"{n} \text{{ degrees}}"),
        (0.07, "({n}, {d})", "({n},{d})", r"\left({n}, {d}\right)"),
        (0.05, r"{n}\sqrt{{{r}}}", r"{n}\cdot\sqrt{{{r}}}", r"\sqrt{{{r}}}\cdot {n}"),
        (0.05, r"{n}x^2 + {d}x - {r}", r"{d}x + {n}x^2 - {r}", r"y = {n}x^2+{d}x-{r}"),
    ]
    _, *forms = rng.choices(kinds, [share for share, *_ in kinds])[0]
    slips = rng.sample([e for e in range(-40, 41) if e], 24)
    right = [form.format(n=n, d=d, r=r) for form in forms]
    return right[0], right, [forms[0].format(n=n + e, d=d, r=r) for e in slips]


def make_batch(seed: int, zipf: float) -> tuple[list[str], list[str]]:
    """8 golds × 64 completions: 10–90% right ones, by problem; the wrong ones follow Zipf's law; 5% give no answer."""
    rng = random.Random(seed)
    completions, answers = [], []
    for _ in range(GOLDS):
        gold, right, wrong = make_gold(rng)
        solved = rng.uniform(0.1, 0.9)
        for _ in range(COMPLETIONS):
            if rng.random() < solved:
                answer = rng.choices(right, [8, 1, 1])[0]
            else:
                answer = rng.choices(wrong, [(i + 1) ** -zipf for i in range(len(wrong))])[0]
            end = "so I am not sure." if rng.random() < 0.05 else rf"The final answer is $\boxed{{{answer}}}$."
            completions.append(reasoning(rng) + end)
            answers.append(gold)
    return completions, answers


def reasoning(rng: random.Random) -> str:
    """Some 20 steps, 1,500 characters: what the parser has to look through before it finds the answer."""
    steps = []
    for i in range(rng.randint(12, 28)):
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        steps.append(
            f"Step {i + 1}: we have $x_{{{i}}} = {a} \\cdot {b} = {a * b}$, so that \\({a}x + {b} = 0\\) follows.\n"
        )
    return "".join(steps)


def throughput(workers: int, rounds: int, zipf: float) -> Table:
    from trl.rewards import accuracy_reward

    seconds: dict[str, list[float]] = {
        "TRL accuracy_reward": [],
        f"Verifier, {workers} workers": [],
        "the same batch again": [],
    }
    distinct, differ = [], 0
    with Verifier(workers=workers) as verifier:
        start = time.perf_counter()
        verifier.score([r"\boxed{x}"] * workers, [f"y_{i}" for i in range(workers)])  # starts the processes
        started = time.perf_counter() - start
        for seed in range(WARM_UP + rounds):
            completions, answers = make_batch(
                seed, zipf
            )  # other golds every round: the cache across calls is of no help
            conversations = [[{"role": "assistant", "content": text}] for text in completions]
            rewards, trl_s = timed(accuracy_reward, conversations, [f"${a}$" for a in answers])
            verdicts, ours_s = timed(verifier.judge, completions, answers)
            _, again_s = timed(verifier.judge, completions, answers)
            if seed >= WARM_UP:
                for times, took in zip(seconds.values(), (trl_s, ours_s, again_s)):
                    times.append(took)
                differ += sum(v.score != r for v, r in zip(verdicts, rewards))
                distinct.append(len({(v.answer, a) for v, a in zip(verdicts, answers) if v.answer}))
    size = GOLDS * COMPLETIONS
    pairs = statistics.mean(distinct)
    title = f"{rounds} batches of {GOLDS} golds × {COMPLETIONS} completions, {pairs:.0f} distinct pairs a batch"
    table = Table("", "completions/s", "slowest batch", "fastest batch", "× TRL", title=title)
    baseline = sum(seconds["TRL accuracy_reward"])
    for name, times in seconds.items():
        rates = (rounds * size / sum(times), size / max(times), size / min(times))
        table.add_row(name, *(f"{rate:,.0f}" for rate in rates), f"{baseline / sum(times):.1f}")
    table.caption = (
        f"verdicts that differ from TRL's: {differ} of {rounds * size}; start-up {started:.1f} s, not counted"
    )
    return table


def timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - start


HOSTILE = {
    "tower of powers": r"\boxed{9^{9^{9^{9^{9}}}}}",
    "factorial of a factorial": r"\boxed{((10^5)!)!}",
    "binom(10^7, 5·10^6)": r"\boxed{\binom{10000000}{5000000}}",
    "10^6 digits": r"\boxed{" + "7" * 10**6 + "}",
    "1,900 digits": r"\boxed{" + "7" * 1900 + "}",
    "10^4 nested braces": r"\boxed{" + "{" * 10**4 + "5" + "}" * 10**4 + "}",
    "900 nested braces": r"\boxed{" + "{" * 900 + "5" + "}" * 900 + "}",
    "190 nested fractions": r"\boxed{" + r"\frac{1}{" * 190 + "5" + "}" * 190 + "}",
    "matrix, 30 × 30": r"\boxed{\begin{pmatrix}" + r"\\".join(["1&" * 29 + "1"] * 30) + r"\end{pmatrix}}",
    "set of 400": r"\boxed{\{" + ",".join(map(str, range(400))) + r"\}}",
    "10 MB of text": "word " * 2_000_000 + r"\boxed{5}",
    "0.9 MB of open boxes": r"\boxed{" * 128_000,
}


def hostile(workers: int, timeout_s: float) -> Table:
    table = Table("completion", "verdict", "seconds", title=f"One hostile completion at a time, limit {timeout_s:g} s")
    with Verifier(workers=workers, timeout_s=timeout_s) as verifier:
        verifier.score([r"\boxed{x}"], ["y"])
        worst = 0.0
        for name, text in HOSTILE.items():
            start = time.perf_counter()
            (verdict,) = verifier.judge([text], ["5"])
            took = time.perf_counter() - start
            worst = max(worst, took)
            table.add_row(name, f"{verdict.score} {verdict.reason}", f"{took:.2f}")
        start = time.perf_counter()
        right = verifier.score([r"\boxed{10/2}"], ["5"]) == [1.0]
        table.add_row("and then a normal one", "right" if right else "WRONG", f"{time.perf_counter() - start:.3f}")
    within = "within" if worst <= timeout_s + 1 else "OVER"
    table.caption = f"slowest {worst:.2f} s: {within} the limit + 1 s"
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2], help="worker processes; several: one table each")
    parser.add_argument("--rounds", type=int, default=12, help="batches (default: %(default)s)")
    parser.add_argument(
        "--zipf",
        type=float,
        default=1.5,
        help="how wrong answers gather; lower: more distinct ones (default: %(default)s)",
    )
    parser.add_argument("--timeout_s", type=float, default=2.0, help="limit in the hostile part (default: %(default)s)")
    args = parser.parse_args()
    console = Console()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    console.print(
        f"{platform.machine()}, {cpus} CPUs, load {load}, Python {platform.python_version()}, {platform.system()}"
    )
    for workers in args.workers:
        console.print(throughput(workers, args.rounds, args.zipf))
    console.print(hostile(args.workers[0], args.timeout_s))


if __name__ == "__main__":
    main()
