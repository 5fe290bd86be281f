"""Makes each change of the table in a copy of the source and runs the tests that must fail: ``make mutants [ONLY=head]``.

Fails if a mutant lives: its tests pass, or do not run to their end. Before that, the same tests must pass in a copy without any
change. Every copy has a process of its own, forked from this one, which has imported the large libraries and nothing of ours.
"""

import argparse
import importlib
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.mutant import PACKAGE, ROOT, SCRIPTS, Mutant
from tests.mutants.table import MUTANTS

LARGE = {
    "tests": """pytest xdist anyio torch pandas pyarrow.parquet datasets accelerate peft trl trl.trainer.grpo_trainer
        transformers.trainer transformers.models.qwen2.modeling_qwen2 matplotlib.pyplot rich.table math_verify""",
    "tests_verl": "pytest torch ray",
}
LIMIT_S = 900  # a mutant that hangs is not killed
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
PASSED, FAILED = 0, 1  # pytest's exit codes; with any other the tests did not run
KILLED, ALIVE, BROKEN, SKIPPED = "killed", "ALIVE", "NOT RUN", "skipped"


@dataclass
class Trial:
    tests: list[str]
    mutant: Mutant | None = None
    code: int | None = None
    said: str = ""
    seconds: float = 0.0

    def verdict(self) -> str:
        """Skipped: this machine cannot run its tests at all (no Triton, say); they say why."""
        if self.code == PASSED:
            return ALIVE if " passed" in self.said else SKIPPED
        return KILLED if self.code == FAILED else BROKEN


def tried(trials: list[Trial], jobs: int) -> Iterator[Trial]:
    """Each trial as it ends, ``jobs`` of them side by side."""
    waiting, running = list(trials), dict[int, Callable[[int], Trial]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            pid, end = _start(waiting.pop(0))
            running[pid] = end
        pid, status = os.wait()
        if pid in running:
            yield running.pop(pid)(os.waitstatus_to_exitcode(status))


def _start(trial: Trial) -> tuple[int, Callable[[int], Trial]]:
    place, began = TemporaryDirectory(prefix="mutant-"), time.monotonic()
    log = Path(place.name, "log")
    for part in (PACKAGE, SCRIPTS):
        shutil.copytree(ROOT / part, Path(place.name, part.name))
    if trial.mutant is not None:
        trial.mutant.made_in(Path(place.name))
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _test(trial.tests, place.name, log)

    def end(code: int) -> Trial:
        trial.code, trial.seconds = code, time.monotonic() - began
        trial.said = log.read_text(encoding="utf-8", errors="replace")[-4000:] if log.is_file() else ""
        place.cleanup()
        return trial

    return pid, end


def _test(tests: list[str], place: str, log: Path) -> None:
    """In the child: pytest with the copy in front of everything else, for those it starts too."""
    code = BROKEN
    try:
        signal.alarm(LIMIT_S)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
        os.environ["PYTHONPATH"] = place
        sys.path.insert(0, place)
        import pytest

        import benchmarks  # before the tests put their own root in front
        import sage_rlvr

        for module in (sage_rlvr, benchmarks):
            assert module.__file__.startswith(place), f"{module.__file__} is not the copy"
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={place}/tmp", *tests])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 100)


def by_room(mutants: list[Mutant]) -> list[Trial]:
    """The tests of all of them, without a change."""
    tests = sorted({test for m in mutants for test in m.tests})
    return [Trial(list(found)) for _, found in groupby(tests, lambda test: test.rpartition("/")[0])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", choices=LARGE, help="which tests this interpreter can run")
    parser.add_argument("only", nargs="*", help="parts of files' names: mutants of those files alone")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if m.tests[0].startswith(f"{args.environment}/")]
    chosen = [m for m in chosen if not args.only or any(word in m.file for word in args.only)]
    os.chdir(ROOT)
    os.environ.update(SETTINGS)
    for name in LARGE[args.environment].split():
        importlib.import_module(name)
    for trial in tried(by_room(chosen), args.jobs):
        if trial.code != PASSED:
            print(f"{' '.join(trial.tests)} must pass without any change:\n{trial.said}")
            return 1
    count: Counter[str] = Counter()
    for trial in tried([Trial(list(m.tests), m) for m in chosen], args.jobs):
        m, word = trial.mutant, trial.verdict()
        assert m is not None
        count[word] += 1
        print(f"{word:8} {trial.seconds:5.1f} s  {m.file}: {m.why}", flush=True)
        if word in (ALIVE, BROKEN):
            print(f"    {m.old!r}\n    -> {m.new!r}\n    by {' '.join(m.tests)}\n{trial.said}")
    print(f"{len(chosen)} mutants: " + ", ".join(f"{number} {word}" for word, number in count.items()) + ".")
    return int(bool(count[ALIVE] + count[BROKEN]))


if __name__ == "__main__":
    sys.exit(main())
