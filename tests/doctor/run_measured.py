"""Real runs in processes of their own, and the peak memory of each: python -m tests.doctor.run_measured FILE.

The file holds a JSON object, name → settings. The imports are made once: all runs but the first are forked. They run at the same
time, the first in this process itself. Prints a JSON object, name → bytes: of a fork some 90 MB less, the pages of libraries that
its parent alone had read.
"""

import json
import os
import sys
import traceback

from sage_rlvr.launch.run import train


def peak_bytes() -> int:
    """VmHWM: this process alone, where ru_maxrss begins with the parent's at the fork."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def begun(argv: list[str]) -> int:
    """A fork that runs this; where it will tell."""
    here, there = os.pipe()
    if os.fork() == 0:
        try:
            train(argv)
            os.write(there, str(peak_bytes()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(there)
    return here


def told(here: int) -> int:
    with open(here) as answer:
        return int(answer.read())


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        (first, own), *others = json.load(file).items()
    answers = {name: begun(argv) for name, argv in others}
    train(own)
    print(json.dumps({first: peak_bytes()} | {name: told(here) for name, here in answers.items()}))
