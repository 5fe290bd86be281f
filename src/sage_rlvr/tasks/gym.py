"""gym:NAME, any of reasoning-gym's generators (extra ``gym``), judged by its ``score_answer`` or, where that will not do, by us.

A gold is an address, (name, seed, index), from which the entry is made again when it is scored: entries hold objects that no
JSON can carry. Right means a score of 1; reasoning-gym's part marks for near misses count as wrong, since rewards are 0 or 1.
A generator whose scorer evaluates answers as code has to be asked for as gym:NAME+code; its answers are data all the same
(``gym_rules.py``), and every gym answer is judged with the doors closed (``verify/sandbox.py``).
"""

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.names import near
from sage_rlvr.tasks import gym_rules
from sage_rlvr.tasks.registry import MAKERS, Problem, Source, Task

_log = logging.getLogger(__name__)
CODE = "+code"  # how a name says: I know that this generator evaluates answers
ANSWER_CHARACTERS = 200  # of the entry's answer that a gold carries along, to be read and to be checked
HASHED = {"knight_swap", "polynomial_multiplication", "word_ladder"}  # whose entries follow the order of sets
_ENTRIES = (
    "import json, sys; from sage_rlvr.tasks.gym import _entries; "
    "print(json.dumps(_entries(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))"
)


def gym_task(name: str) -> Task:
    """The task for gym:NAME or gym:NAME+code."""
    inner = _inner(name)
    known = generators()
    if inner not in known:
        raise UserError(f"reasoning-gym has no generator {inner!r} (task {name!r}): {near(inner, sorted(known))}.")
    _check_code(inner, name.endswith(CODE))

    return Task(
        name=name,
        description=f"reasoning-gym's {inner}",
        kind="generated",
        scorer="gym",
        licence="Apache-2.0",
        splits={"train": (Source("generated"),), "test": (Source("generated"),)},
        generate=partial(_generate, name),
    )


MAKERS["gym:"] = gym_task


def _inner(task: str) -> str:
    return task.removeprefix("gym:").removesuffix(CODE)


def _check_code(inner: str, asked: bool) -> None:
    by = gym_rules.EVALUATES.get(inner)
    if by is None and asked:
        raise UserError(f"gym:{inner}{CODE}: {inner} evaluates no answers, so write gym:{inner}.")
    if by is not None and not asked:
        raise UserError(
            f"gym:{inner}: reasoning-gym evaluates its answers as code, by {by}; to use it all the same write gym:{inner}{CODE}, "
            "and they are read as data."
        )
    if by is not None:
        _warn(
            f"gym:{inner}{CODE}: reasoning-gym would evaluate these answers by {by}; here a rule of our own reads them, so that "
            "verdicts can differ from its own."
        )


_warn = cache(_log.warning)  # each sentence once


def judge_path(task: str) -> str:
    """What a Verifier is given for gym:NAME."""
    return f"{GymJudge.__module__}:{GymJudge.__name__}:{_inner(task)}"


class GymJudge:
    """Runs in the Verifier's workers for untrusted judges, one gold each."""

    def __init__(self, name: str) -> None:
        """Once, before the workers fork: the library's two seconds of import, and what the generator's first entry loads."""
        generator = _dataset(name, 0, 1)
        self._rehearse((name, generator, generator[0]))

    def parse_gold(self, gold: str) -> tuple[str, Any, dict[str, Any]] | None:
        """(generator's name, generator, entry), made again; None where the installed reasoning-gym no longer makes the same
        entry. Its own answer is judged once: what that imports and evaluates is the last that the sandbox lets in."""
        address = json.loads(gold)
        generator = _dataset(address["gym"], address["seed"], address["size"])
        entry = generator[address["index"]]
        if str(entry["answer"])[:ANSWER_CHARACTERS] != address["answer"]:
            return None
        self._rehearse((address["gym"], generator, entry))
        return address["gym"], generator, entry

    def _rehearse(self, parsed: tuple[str, Any, dict[str, Any]]) -> None:
        with suppress(Exception):
            self.is_right(parsed, str(parsed[2]["answer"]))

    def is_right(self, parsed: tuple[str, Any, dict[str, Any]], answer: str) -> bool:
        return gym_rules.is_right(*parsed, answer)


def _generate(task: str, n: int, seed: int, split: str) -> list[Problem]:
    if not 0 <= seed < 1000:
        raise UserError(f"{task}: seed={seed} must lie in 0..999, which keeps training and test entries apart.")
    # Entry i is made from start + i, so every (seed, split) has a block of 500,000 to itself.
    start = (seed + (1000 if split == "test" else 0)) * 500_000
    name, out = _inner(task), []
    for i, (question, answer) in enumerate(_entries(name, start, n)):
        gold = {"gym": name, "seed": start, "size": n, "index": i, "answer": answer[:ANSWER_CHARACTERS]}
        out.append(Problem(f"gym:{name}-{split}-s{seed}-{i}", task, question, json.dumps(gold), {"split": split}))
    return out


def _entries(name: str, seed: int, n: int) -> list[tuple[str, str]]:
    """(question, answer) of each. Some walk through sets of texts, so that every process makes other entries, and no gold could
    be made again: those are made in a process where texts hash as they do in the workers that judge."""
    if name in HASHED and sys.flags.hash_randomization:
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ENTRIES, name, str(seed), str(n)],
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            check=True,
        )
        return [(question, answer) for question, answer in json.loads(done.stdout)]
    made = _dataset(name, seed, n)
    return [(entry["question"], str(entry["answer"])) for entry in (made[i] for i in range(n))]


@lru_cache(maxsize=64)
def _dataset(name: str, seed: int, size: int) -> Any:
    generators()
    from reasoning_gym import create_dataset

    try:
        return create_dataset(name, seed=seed, size=size)
    except AssertionError as e:
        raise UserError(f"gym:{name} cannot make {size} problems ({e}): ask for another number.") from e


def generators() -> set[str]:
    """The names of those that make problems."""
    try:
        import reasoning_gym  # noqa: F401  (fills the registry)
        from reasoning_gym.factory import DATASETS
    except ImportError as e:
        raise UserError(
            "gym:NAME tasks need reasoning-gym, which is not installed: pip install 'sage-rlvr[gym]'."
        ) from e
    return set(DATASETS) - {"composite"}  # has no problems of its own
