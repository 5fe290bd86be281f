"""A judge that does to its worker what an answer asks for. The verifier imports it by path in its own processes."""

import ctypes
import itertools
import os
import signal
import time
from collections import deque


class DeadlyJudge:
    """Answers are commands: the first word counts, the rest only tells them apart. Any other answer must equal the gold."""

    def __init__(self):
        self.golds = self.calls = 0

    def parse_gold(self, gold):
        self.golds += 1
        if gold == "unreadable":
            return None
        if gold.startswith("deadly"):
            os._exit(1)
        if gold.startswith("endless"):
            _hang()
        return gold

    def is_right(self, gold, answer):
        self.calls += 1
        command, *rest = answer.split()
        if command == "segfault":
            ctypes.string_at(0)
        elif command == "exit":
            os._exit(3)
        elif command == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif command == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif command == "hang":
            _hang()
        elif command == "sleep":
            time.sleep(float(rest[0]))
        elif command == "raise":
            raise KeyboardInterrupt
        elif command == "grow":
            return _grow() <= int(rest[0])
        elif command == "write":
            with open(rest[0], "w") as f:
                f.write("x")
        elif command == "calls":
            return self.calls == int(rest[0])
        elif command == "golds":
            return self.golds == int(rest[0])
        return answer == gold


class PlainJudge(DeadlyJudge):
    """No command is obeyed."""

    def is_right(self, gold, answer):
        return answer == gold


def _hang():
    deque(itertools.repeat(0), maxlen=0)  # a loop in C: no signal handler of Python's ever runs


def _grow():
    """Takes memory until there is none, and says how many MB of address space there were at most."""
    blocks = []
    try:
        while True:
            blocks.append(bytearray(8 << 20))
    except MemoryError:
        blocks.clear()
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) >> 10 for line in f if line.startswith("VmPeak"))
