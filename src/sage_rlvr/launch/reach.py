"""Which problems teach something: those the start model solves now and then. A group of answers that are all right, or all
wrong, has no advantage, and early in training most groups of a hard set are all wrong (docs/howto/more_training.md)."""

import json
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from sage_rlvr.errors import UserError
from sage_rlvr.store import SampleStore
from sage_rlvr.tasks import Problem

SHELF = Path(str(files("sage_rlvr").joinpath("studies")))
Tallies = dict[str, tuple[int, int]]  # problem → (right, judged) samples


def within_reach(problems: Sequence[Problem], source: str | Path) -> list[Problem]:
    """Those of which ``source`` has samples that are right and samples that are wrong."""
    task = problems[0].task
    known = tallies(source, task)
    sampled = [(p, *known[p.id]) for p in problems if p.id in known]
    reached = [p for p, right, n in sampled if 0 < right < n]
    never = sum(right == 0 for _, right, _ in sampled)
    always = len(sampled) - len(reached) - never
    print(
        f"within reach: {len(reached):,} of {len(sampled):,} sampled problems ({never:,} never right, {always:,} always)"
    )
    if not reached:
        raise UserError(
            f"{source}: of {len(sampled):,} sampled problems of {task} none is right in some samples and wrong in others; sample "
            "more problems, or more of each (eval --split train --limit … --n …)."
        )
    return reached


def tallies(source: str | Path, task: str) -> Tallies:
    """From an evaluation's folder, or from a file of such counts, the user's or one beside the studies:
    {"task": task, "problems": {problem: [right, judged]}}."""
    source = source if Path(source).exists() or not SHELF.joinpath(source).is_file() else SHELF / source
    counts = _from_file(Path(source), task) if Path(source).is_file() else _from_store(source, task)
    if not counts:
        raise UserError(
            f"{source} has no samples of {task}: make them with 'sage-rlvr eval --model … --tasks {task} --split train --n 8 "
            "--out …'."
        )
    return counts


def _from_store(folder: str | Path, task: str) -> Tallies:
    right, judged = Counter[str](), Counter[str]()
    for batch in SampleStore(folder, readonly=True).scan(["problem", "verdict"], task):
        for problem, verdict in zip(batch["problem"].to_pylist(), batch["verdict"].to_pylist()):
            if verdict is not None:
                judged[problem] += 1
                right[problem] += verdict == 1
    return {problem: (right[problem], n) for problem, n in judged.items()}


def _from_file(path: Path, task: str) -> Tallies:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {p: (int(r), int(n)) for p, (r, n) in content["problems"].items()} if content["task"] == task else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise UserError(f"{path} holds no counts of samples ({e!r}): name an evaluation's folder.") from e
