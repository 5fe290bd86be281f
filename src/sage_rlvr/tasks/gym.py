"""gym:NAME, any of reasoning-gym's generators (extra ``gym``), judged by its own ``score_answer``.

A gold is an address, (name, seed, index), from which the entry is made again when it is scored: entries hold objects that no
JSON can carry. Right means a score of 1; reasoning-gym's part marks for near misses count as wrong, since rewards are 0 or 1.
"""

import json
from functools import lru_cache
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.tasks.registry import Problem, Source, Task, near

JUDGE = "sage_rlvr.tasks.gym:GymJudge"
SHOWN = 200  # characters of its answer that a gold carries along, to be read and to be checked
_TEST_SEEDS = 500_000_000  # entry i of a set is made from seed + i, so the two splits are kept this far apart


def gym_task(name: str) -> Task:
    """The task for gym:NAME."""
    inner = name.removeprefix("gym:")
    known = _generators()
    if inner not in known:
        raise UserError(f"reasoning-gym has no generator {inner!r} (task {name!r}): {near(inner, sorted(known))}.")

    def generate(n: int, seed: int, split: str) -> list[Problem]:
        return _generate(inner, n, seed, split)

    return Task(
        name=name,
        description=f"reasoning-gym's {inner}",
        kind="generated",
        scorer="gym",
        licence="Apache-2.0",
        splits={"train": (Source("generated"),), "test": (Source("generated"),)},
        generate=generate,
    )


class GymJudge:
    """Runs in the Verifier's killable workers: some of reasoning-gym's scorers hand the answer to SymPy."""

    def __init__(self) -> None:
        _generators()  # imported once, before the workers fork: in each, its two seconds would be the first answer's

    def parse_gold(self, gold: str) -> tuple[Any, dict[str, Any]] | None:
        """The entry, made again; None where the installed reasoning-gym no longer makes the same one."""
        address = json.loads(gold)
        generator = _dataset(address["gym"], address["seed"], address["size"])
        entry = generator[address["index"]]
        return (generator, entry) if str(entry["answer"])[:SHOWN] == address["answer"] else None

    def is_right(self, parsed: tuple[Any, dict[str, Any]], answer: str) -> bool:
        generator, entry = parsed
        return float(generator.score_answer(answer, entry)) >= 1


def _generate(name: str, n: int, seed: int, split: str) -> list[Problem]:
    if not 0 <= seed < 1000:
        raise UserError(f"gym:{name}: seed={seed} must lie in 0..999, which keeps training and test entries apart.")
    # Seeds n apart share no entry, so every (seed, split) has its own block of 500,000.
    start = seed * 500_000 + (_TEST_SEEDS if split == "test" else 0)
    generator = _dataset(name, start, n)
    out = []
    for i in range(n):
        entry = generator[i]
        gold = {"gym": name, "seed": start, "size": n, "index": i, "answer": str(entry["answer"])[:SHOWN]}
        out.append(
            Problem(
                f"gym:{name}-{split}-s{seed}-{i}", f"gym:{name}", entry["question"], json.dumps(gold), {"split": split}
            )
        )
    return out


@lru_cache(maxsize=64)
def _dataset(name: str, seed: int, size: int) -> Any:
    _generators()
    from reasoning_gym import create_dataset

    try:
        return create_dataset(name, seed=seed, size=size)
    except AssertionError as e:
        raise UserError(f"gym:{name} cannot make {size} problems ({e}): ask for another number.") from e


def _generators() -> set[str]:
    try:
        import reasoning_gym  # noqa: F401  (fills the registry)
        from reasoning_gym.factory import DATASETS
    except ImportError as e:
        raise UserError(
            "gym:NAME tasks need reasoning-gym, which is not installed: pip install 'sage-rlvr[gym]'."
        ) from e
    return set(DATASETS)
