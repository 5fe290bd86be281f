"""A judge that takes answers for code, and one-word answers for orders to its own process. The verifier imports it by path."""

import ctypes
import itertools
import os
import socket
import sys
from collections import deque
from pathlib import Path

_C = ctypes.CDLL(None)
_C.getenv.restype = ctypes.c_char_p
_FLOOR = (
    _C.getpid,
    _C.open,
    _C.socket,
    _C.fork,
    _C.kill,
    _C.execve,
    _C.setrlimit,
    _C.getenv,
)  # looked up while it is allowed


class SandboxedJudge:
    """Right means: the order was carried out, or the code gave the gold."""

    def __init__(self):
        self.golds = self.calls = 0

    def parse_gold(self, gold):
        self.golds += 1
        return eval(gold)  # the gold is ours

    def is_right(self, gold, answer):
        self.calls += 1
        order, *rest = answer.split()
        if order in ORDERS:
            return ORDERS[order](*rest)
        if order == "calls":
            return self.calls == int(rest[0])
        if order == "golds":
            return self.golds == int(rest[0])
        try:
            return eval(answer) == gold
        except Exception:
            return answer == str(gold)  # a judge that goes on as if nothing had happened


def _hang():
    deque(itertools.repeat(0), maxlen=0)


def _grow():
    blocks = []
    while True:
        blocks.append(bytearray(64 << 20))


def _recurse(depth=0):
    return _recurse(depth + 1)


def _forks():
    while os.fork() == 0:
        pass
    return True


ORDERS = {
    # through the interpreter
    "read": lambda path: bool(Path(path).read_text()),
    "connect": lambda port: socket.create_connection(("127.0.0.1", int(port))) is not None,
    "fork": _forks,
    "spawn": lambda: os.system("true") == 0,
    "kill": lambda: os.kill(os.getppid(), 9) is None,
    # past it
    "c-read": lambda path: _C.open(path.encode(), 0) >= 0,
    "c-socket": lambda: _C.socket(2, 1, 0) >= 0,
    "c-fork": lambda: _C.fork() >= 0,
    "c-kill": lambda: _C.kill(os.getppid(), 9) == 0,
    "c-exec": lambda: _C.execve(b"/bin/true", None, None) == 0,
    # what it can know
    "environment": lambda name: bool(os.environ) or os.getenv(name) or _C.getenv(name.encode()) is not None,
    # the rest
    "exit": sys.exit,
    "gone": lambda: os._exit(0),
    "hang": _hang,
    "grow": _grow,
    "recurse": _recurse,
    "pid": lambda pid: os.getpid() == int(pid),
}
