"""A tiny evaluation in processes of their own (tests/forked.py).

Each attempt of ``main`` is a forked process that runs the whole verb and, so many times, is ended by SIGKILL at a random
moment: 0 to 3 shards and up to 50 ms on. Prints, as JSON, how many samples each attempt left behind.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import peft  # noqa: F401 - here and not in every attempt
import pyarrow.parquet as pq
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, Qwen2ForCausalLM  # noqa: F401

from sage_rlvr.evaluate.run import EvalArguments, evaluate
from sage_rlvr.store.samples import SampleStore
from sage_rlvr.tasks import Problem, PromptFormat, Source, Task, register_format, register_scorer, register_task

N, SEEDS, PROBLEMS = 8, 2, 14


@register_scorer("even-length")
def judge(answer, gold):
    """Right where the answer has as many characters as the gold's parity says; a gold of "?" is not verifiable."""
    return None if gold == "?" else float(bool(answer) and len(answer) % 2 == int(gold))


def problems(n, seed, split):
    golds = ["?" if i == 3 else str(i % 2) for i in range(n)]
    return [Problem(f"parity-{i}", "parity", f"{i}+{i * i}=", gold) for i, gold in enumerate(golds)]


register_task(
    Task(
        name="parity",
        description="for tests",
        kind="generated",
        scorer="even-length",
        licence="Apache-2.0",
        splits={"test": (Source("generated"),)},
        generate=problems,
    )
)
register_format(PromptFormat(name="tiny", stop=("a", "0"), fallback=True))


def arguments(model, out, **more):
    defaults = {
        "model": str(model), "out": str(out), "tasks": ["parity"], "n": N, "seeds": SEEDS, "limit": PROBLEMS,
        "temperature": 1.0, "max_tokens": 24, "prompt_format": "tiny", "batch_size": 6, "save_every_s": 0.0,
        "backend": "transformers",
    }  # fmt: skip
    return EvalArguments(**(defaults | more))


def attempt(model, out, shards=None, delay=0.0):
    """One process, killed ``delay`` seconds after it has written so many shards; True if it came to its end."""
    before = len(list(Path(out).glob("samples/*.parquet")))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            evaluate(arguments(model, out), Console(quiet=True))
            code = 0
        finally:
            os._exit(code)
    if shards is not None:
        while len(list(Path(out).glob("samples/*.parquet"))) < before + shards:
            ended, status = os.waitpid(child, os.WNOHANG)  # nothing was left to write
            if ended:
                return status == 0
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == 0


def told_to_end(model, out, after):
    """SIGTERM after so many judged samples, none of which would have been written for days."""
    append, seen = SampleStore.append, 0

    def counted(store, samples):
        nonlocal seen
        append(store, samples)
        if seen < after <= seen + len(samples):
            os.kill(os.getpid(), signal.SIGTERM)
        seen += len(samples)

    SampleStore.append = counted
    evaluate(arguments(model, out, save_every_s=1e6), Console(quiet=True))


def stored(out):
    return sum(pq.read_metadata(p).num_rows for p in Path(out, "samples").glob("*.parquet"))


def main(model, out, kills, seed):
    rng, left = random.Random(seed), []
    for _ in range(kills):
        attempt(model, out, rng.randint(0, 3), rng.uniform(0, 0.05))
        left.append(stored(out))
    finished = attempt(model, out)
    print(json.dumps({"left": left, "finished": finished, "stored": stored(out)}))
