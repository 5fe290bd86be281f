"""Hand-made runs: a cell is a word, one letter a sample."""

import numpy as np

from sage_rlvr.stats.counts import RIGHT, WRONG, Counts, TaskCounts
from sage_rlvr.store import Sample, SampleStore

KINDS = {  # letter → (answer, verdict, finish)
    "1": ("7", 1.0, "stop"),
    "0": ("5", 0.0, "stop"),
    "x": ("6", 0.0, "stop"),
    "h": ("7.0", 1.0, "stop"),  # right in another form
    "-": (None, 0.0, "stop"),
    "t": (None, 0.0, "length"),  # cut off before an answer
    "T": (None, 1.0, "length"),  # the same, and a scorer that should have known
    "l": ("7", 1.0, "length"),  # cut off after it
    "e": (None, 0.0, "error"),
    "~": ("6", 0.5, "stop"),  # a scorer that gives a part of a point
    "?": ("7", None, "stop"),
}  # "." is a sample that is not there


def make_run(folder, tasks, settings=None, asked=True, unverifiable=(), solutions=False):
    """``tasks[task][problem]`` = a word for each seed."""
    with SampleStore(folder, settings or {"temperature": 0.3}) as store:
        for task, problems in tasks.items():
            words = [w for cells in problems.values() for w in cells]
            if asked:
                store.ask(task, problems, max(map(len, words)), range(max(map(len, problems.values()))), unverifiable)
            for problem, cells in problems.items():
                for seed, word in enumerate(cells):
                    store.append(
                        [
                            _sample(task, problem, seed, i, c, solutions)
                            for i, c in reversed(list(enumerate(word)))  # the order on the disk does not matter
                            if c != "."
                        ]
                    )
    return folder


def _sample(task, problem, seed, index, letter, solutions):
    answer, verdict, finish = KINDS[letter]
    solution = f"s{index % 3}" if solutions and verdict == 1.0 else None
    return Sample(
        "r", "m", task, problem, seed, index, "text", 10 + index, finish, answer, verdict, None, [1], -1.0, solution
    )


def simulated(rng, rates, seeds, n, name="sim"):
    """Counts of a model that solves problem i with chance rates[i]."""
    right = rng.random((len(rates), seeds, n)) < np.asarray(rates)[:, None, None]
    zeros = np.zeros(right.shape, np.int8)
    task = TaskCounts(
        name,
        [f"p{i}" for i in range(len(rates))],
        list(range(seeds)),
        n,
        state=np.where(right, RIGHT, WRONG).astype(np.int8),
        finish=zeros,
        answer=right.astype(np.uint64) + 1,
        solution=zeros.astype(np.uint64),
        tokens=np.ones(right.shape[:2], np.int64),
    )
    return task


def as_counts(*tasks):
    return Counts("simulated", "r", "m", {}, {t.task: t for t in tasks})
