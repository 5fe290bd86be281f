"""The template process: imports the judge once, then forks a worker whenever the pool asks. Started by pool.py.

Three parties. The pool (in the trainer) holds one control socket to the template and one socket to each worker; a message on the
control socket starts a worker (it carries the far end of its socket) or has one killed. Only the template touches process
ids: it is the workers' parent, so it never signals a number that has been given to somebody else, and it leaves no zombie.
A worker of an untrusted judge reads one gold, then closes its doors (sandbox.py), and serves no other gold.
"""

import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections import OrderedDict
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from sage_rlvr.verify.sandbox import Sandbox, lacks

ORDER = struct.Struct("!Q")  # a worker's number: start it, if a socket comes along; else kill it
UP, GOLD_READ, RIGHT, WRONG, NO_GOLD, RAISED = b"up", b"gold read", b"right", b"wrong", b"no gold", b"raised"
RETIRING = b"; retiring"  # suffix: this worker has grown fat and ends now
GOLDS_KEPT = 64  # parsed golds a worker remembers
PR_SET_PDEATHSIG = 1


def main(control_fd: int, pool_pid: int, memory_mb: int, untrusted: int, judge_path: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's business
    control = socket.socket(fileno=control_fd)
    module, name, *argument = judge_path.split(":", 2)
    judge = getattr(import_module(module), name)(*argument)
    gc.collect()
    gc.freeze()  # workers share these pages
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # until here stderr told the pool why we could not start
    control.send(UP + ((lacks() or "").encode() if untrusted else b""))

    wake_r, wake_w = socket.socketpair()
    wake_r.setblocking(False)
    wake_w.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w.fileno(), warn_on_full_buffer=False)
    pids: dict[int, int] = {}  # worker number → pid, only those not yet reaped
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wake_r, select.POLLIN)
    # Our parent is looked at every second: a stray copy of the control socket could hold back its EOF.
    while os.getppid() == pool_pid:
        ready = {fd for fd, _ in poller.poll(1000)}
        if wake_r.fileno() in ready:
            wake_r.recv(4096)
        pids = {number: pid for number, pid in pids.items() if not os.waitpid(pid, os.WNOHANG)[0]}
        if control.fileno() not in ready:
            continue
        message, fds, _, _ = socket.recv_fds(control, ORDER.size, 1)
        if not message:
            break
        (number,) = ORDER.unpack(message)
        if fds:
            if pid := _fork(fds[0], (control, wake_r, wake_w), judge, memory_mb, untrusted):
                pids[number] = pid
        elif number in pids:
            os.kill(pids[number], signal.SIGKILL)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    for pid in pids.values():
        os.waitpid(pid, 0)


def _fork(fd: int, ours: tuple[socket.socket, ...], judge: Any, memory_mb: int, untrusted: int) -> int | None:
    """The new worker's pid; None where there is no process or memory to be had: the pool sees its end of the socket close, and
    tries again."""
    template_pid, pid = os.getpid(), None
    with suppress(OSError):
        pid = os.fork()
    if pid != 0:
        os.close(fd)
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for sock in ours:
            sock.close()
        _confine(template_pid, memory_mb)
        _serve(Connection(fd), judge, memory_mb, Sandbox() if untrusted else None)
    finally:
        os._exit(0)


def _confine(template_pid: int, memory_mb: int) -> None:
    """Dies with the template, keeps to its memory, writes no file and no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    if os.getppid() != template_pid:  # it went before prctl
        os._exit(0)


def _serve(pool: Connection, judge: Any, memory_mb: int, sandbox: Sandbox | None) -> None:
    golds: OrderedDict[str, Any] = OrderedDict()
    pool.send_bytes(UP)
    while True:
        try:
            gold, answer = json.loads(pool.recv_bytes())
        except (EOFError, OSError):
            return
        if sandbox and golds and gold not in golds:  # the pool does not ask for it
            return
        verdict = _judge(pool, judge, golds, gold, answer, sandbox)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 10 if sys.platform == "linux" else 1 << 20)
        retiring = peak_mb > memory_mb / 2
        pool.send_bytes(verdict + (RETIRING if retiring else b""))
        if retiring:
            return


def _judge(
    pool: Connection, judge: Any, golds: OrderedDict[str, Any], gold: str, answer: str, sandbox: Sandbox | None
) -> bytes:
    if gold not in golds:
        try:
            golds[gold] = judge.parse_gold(gold)
        except BaseException:  # whatever it is, Math-Verify's own TimeoutException included
            golds[gold] = None
        if len(golds) > GOLDS_KEPT:
            golds.popitem(last=False)
        if sandbox:
            sandbox.close(pool.fileno())
    golds.move_to_end(gold)
    if golds[gold] is None:
        return NO_GOLD
    pool.send_bytes(GOLD_READ)
    refused = sandbox.refused if sandbox else 0
    try:
        right = judge.is_right(golds[gold], answer)
    except BaseException:
        return RAISED
    if sandbox and sandbox.refused > refused:  # whatever the judge made of that
        return RAISED
    return RIGHT if right else WRONG
