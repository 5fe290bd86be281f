"""A folder as ``sage-rlvr eval`` writes it, of right and wrong answers that are given, for the tiny model."""

import hashlib
import json
from pathlib import Path

from datasets import Dataset

from sage_rlvr.models.fingerprints import digest, of_files, of_weights
from sage_rlvr.store import Sample, SampleStore
from sage_rlvr.tasks import Problem, chat_template, get_format, rows

from . import tiny

TASK = "sums"


def problems(count=32):
    return [Problem(f"sums-{i}", TASK, f"{i}+{i % 7}=", str(i + i % 7)) for i in range(count)]


def dataset(count=32, fmt="plain"):
    return Dataset.from_list(rows(problems(count), fmt, tiny.tokenizer(), conversational=False))


def completion(problem, index):
    """2 to 9 letters and EOS."""
    drawn = hashlib.sha256(f"{problem}|{index}".encode()).digest()
    return [3 + b % len(tiny.LETTERS) for b in drawn[1 : 3 + drawn[0] % 8]] + [1]


def sample(problem, index, **more):
    ids = completion(problem, index)
    given = {
        "run": "base", "model": "m", "task": TASK, "problem": problem, "seed": 0, "index": index, "completion": "x",
        "tokens": len(ids), "finish": "stop", "answer": "x", "verdict": 1.0, "reason": "", "token_ids": ids, "logprob": -1.0,
    }  # fmt: skip
    return Sample(**(given | more))


def settings(start, /, fmt="plain", **more):
    """As evaluate/run.py and evaluate/backends.py write them (``test_the_two_commands`` reads a real one)."""
    tokenizer = tiny.tokenizer()
    told = {"chat template": digest(chat_template(tokenizer, fmt)), "prompt format": digest(get_format(fmt).told())}
    found = {
        "model": str(start), "adapter": None, "backend": "transformers", "temperature": 0.9, "top_p": 1.0, "min_p": 0.0,
        "top_k": 0, "max_tokens": 16, "prompt_format": fmt, "dtype": "auto", "split": "train",
        "model_weights": of_weights(start), "inputs": of_files(start, None, start) | told,
    }  # fmt: skip
    return {k: v for k, v in (found | more).items() if v != "absent"}


def folder(place, start, /, samples=None, asked=None, **more):
    """Samples 0, 1, 2 of problems 0 to 11: right, but for the odd ones of every third problem."""
    asked = asked if asked is not None else problems()
    if samples is None:
        samples = [
            sample(p.id, i, verdict=float(n % 3 > 0 or i % 2 == 0)) for n, p in enumerate(asked[:12]) for i in range(3)
        ]
    with SampleStore(place, settings(start, **more)) as store:
        store.append(samples)
    told = {TASK: {p.id: {"question": p.question, "answer": p.answer} for p in asked}}
    Path(place, "problems.json").write_text(json.dumps(told))
    return str(place)
