"""The confirmation read again, post hoc: gains by what the base could do, at three k, and the line of guessing. No GPU.

    python benchmarks/strata.py        # prints a Markdown table from results/gpu/confirm

Problems are put into strata by the base's counts alone, never by an arm's. It was done after the protocol's numbers were known: a
reason to confirm, not a result.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from sage_rlvr.evaluate.counts import counts_of
from sage_rlvr.study.frontier import Point, frontiers, read_families
from sage_rlvr.study.records import unpack
from sage_rlvr.study.run import finished_runs
from sage_rlvr.study.table import common_problems, markdown, shown
from sage_rlvr.tasks import get_task
from sage_rlvr.tasks.countdown_hard import guess

RECORDS = Path(__file__).resolve().parents[1] / "results" / "gpu" / "confirm"
TASK, KS = "countdown-ltr-fresh", (16, 64, 256)
ROOM, EASIEST = 25, 0.15  # right of 256 by the base; share of the problems
REFERENCES, CONFIRMED = ("reference", "grpo_k3", "grpo_k1"), ("winner", "best")


def main() -> None:
    with TemporaryDirectory() as work:
        unpack([RECORDS], work)
        tasks = {run: counts_of(folder).tasks[TASK] for run, folder in finished_runs(work).items()}
        families = {k: read_families(work, TASK, k) for k in KS}
    keep = common_problems([counts for run, counts in tasks.items() if run != "base"])
    base = tasks["base"].only(keep).rights  # (problems,) of 256
    hard = np.argsort(base, kind="stable")[: round((1 - EASIEST) * base.size)]
    strata = {
        "all": np.arange(base.size),
        f"without the easiest {EASIEST:.0%}": hard,
        f"base right ≤ {ROOM} of 256": np.flatnonzero(base <= ROOM),
        f"base right > {ROOM} of 256": np.flatnonzero(base > ROOM),
    }
    made = {p.id: p for p in get_task(TASK).generate(base.size, split="test")}
    problems = [made[name] for name in keep if name in made]
    body = []
    for name, own in strata.items():
        for k in KS:
            cut = {f: [Point(p.variant, p.x[:, own], p.y[:, own]) for p in at] for f, at in families[k].items()}
            gains = {r: {f.family: f.gain for f in frontiers(cut, r)} for r in REFERENCES}
            body += [
                [f"{name} ({own.size})", str(k), family, *(shown(gains[r][family], sign="+") for r in REFERENCES)]
                for family in CONFIRMED
            ]
    print(markdown(["problems", "k", "family", *(f"gain over {r}" for r in REFERENCES)], body))
    if len(problems) == base.size:
        lines = (f"pass@{k} {guess(problems, k).mean():.3f}" for k in (1, *KS))
        print(f"Guessing, valid expressions drawn evenly at random, exact: {', '.join(lines)}.")


if __name__ == "__main__":
    main()
