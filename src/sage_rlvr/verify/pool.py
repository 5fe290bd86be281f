"""The pool's side of the workers: one thread per worker hands it one pair at a time, and has it killed when its time is up."""

import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection

from sage_rlvr.verify.template import GOLD_READ, NO_GOLD, ORDER, RAISED, RETIRING, RIGHT, UP, WRONG

warn_once = cache(logging.getLogger(__name__).warning)
# outcomes beside the template's
TIMEOUT, DIED, GOLD_TIMEOUT, GOLD_DIED = b"timeout", b"worker died", b"gold timeout", b"gold died"
STREAK = 8  # answers a worker judges against one gold before it lets others have a turn
MESSAGE_S = 10  # what the bytes of one message may take to pass
START_S = 120  # what a cold import of the judge, or a fork on a choking machine, may take before we call it an error
_BOOT = "import sys; from sage_rlvr.verify.template import main; main(*map(int, sys.argv[1:5]), sys.argv[5])"
CLOSED = "the verifier was closed while it had answers to judge"
MESSAGE_BYTES = 64  # more than the longest a worker has to say
# What the template of an untrusted judge gets of our environment: what an interpreter may need to start at all.
_NEEDED = ("PATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL")


class Job:
    """A pair to judge; the future gets one of the outcomes above or in template.py."""

    def __init__(self, gold: str, answer: str) -> None:
        self.gold, self.answer = gold, answer
        self.future: Future[bytes] = Future()


class Template:
    """The template process, started when a worker is first needed and again should it die."""

    def __init__(self, judge_path: str, memory_mb: int, untrusted: bool) -> None:
        self._judge_path, self._memory_mb, self.untrusted = judge_path, memory_mb, untrusted
        self._lock = threading.RLock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._closed = False

    def fork(self) -> tuple[int, Connection]:
        """A new worker's number and our end of its socket."""
        ours, theirs = socket.socketpair()
        # nor can a worker that stopped in the middle of a message hold us
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", MESSAGE_S, 0))
        with self._lock, theirs:
            self._count += 1
            try:
                if self._process is None or self._process.poll() is not None:  # none yet; or gone, its workers with it
                    self._stop()
                    self._start()
                self._order(self._count, theirs)
            except BaseException:
                ours.close()
                raise
            return self._count, Connection(ours.detach())

    def kill(self, number: int) -> None:
        with self._lock, suppress(OSError):  # a template that is gone took its workers along
            self._order(number, None)

    def _order(self, number: int, far_end: socket.socket | None) -> None:
        """Start worker ``number`` at this socket, or kill it."""
        if self._control is not None:
            socket.send_fds(self._control, [ORDER.pack(number)], [far_end.fileno()] if far_end else [])

    def _start(self) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        numbers = [str(n) for n in (theirs.fileno(), os.getpid(), self._memory_mb, int(self.untrusted))]
        environment = {k: v for k, v in os.environ.items() if k in _NEEDED or not self.untrusted}
        # The same import path, and a fixed hash seed: a verdict does not depend on who started the template.
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *numbers, self._judge_path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**environment, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
                start_new_session=True,  # out of reach of the terminal's Ctrl-C; it ends when our socket does
            )
        self._control = ours
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            ours.settimeout(START_S)
            message = ours.recv(1024)
            if not message.startswith(UP):
                why = stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
                self._stop()
                raise RuntimeError(f"the verifier's template process ended at start: {why or 'no message'}")
            ours.settimeout(None)
        if lacking := message.removeprefix(UP).decode():
            warn_once(
                f"{self._judge_path} is judged without the kernel's sandbox ({lacking}): the interpreter alone keeps answers "
                "from becoming code."
            )

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def forget(self) -> None:
        """In a forked child: let go of our copy of the socket, so that it does not outlive the parent's."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # it is the parent's child: nothing to wait for


_VERDICTS = {RIGHT, WRONG, RAISED, NO_GOLD}


class Worker:
    """One worker process, at the far end of a socket."""

    def __init__(self, template: Template) -> None:
        error: Exception | None = None
        for _ in range(3):
            try:
                self.number, self.conn = template.fork()
                if self.conn.poll(START_S) and self.conn.recv_bytes() == UP:
                    return
            except (EOFError, OSError) as e:
                error = e  # out of processes or memory; or the template is dying, and fork() will see it
                time.sleep(0.1)
        raise RuntimeError("the verifier could not start a worker: out of processes, memory or files?") from error

    def judge(self, gold: str, answer: str, timeout_s: float) -> bytes:
        """One of the outcomes. "Gold read", which sets the clock anew, is heard once; what is no outcome counts as a death."""
        timeout, died = GOLD_TIMEOUT, GOLD_DIED
        try:
            if self.conn.poll():  # it spoke without being asked: that would be this answer's verdict
                return died
            self.conn.send_bytes(json.dumps([gold, answer]).encode())  # ASCII: lone surrogates pass
            for _ in range(2):
                if not self.conn.poll(timeout_s):
                    return timeout
                outcome = self.conn.recv_bytes(MESSAGE_BYTES)
                if outcome.removesuffix(RETIRING) in _VERDICTS:
                    return outcome
                if outcome != GOLD_READ:
                    return died
                timeout, died = TIMEOUT, DIED
            return died
        except (EOFError, OSError):
            return died


class Pool:
    """Threads that take jobs, each with a worker of its own. A worker keeps to one gold for a while: it has parsed that one.

    A worker of an untrusted judge keeps to it as long as there are answers, and goes with the last: the next gold's is fresh.
    """

    def __init__(self, workers: int, timeout_s: float, judge_path: str, memory_mb: int, untrusted: bool) -> None:
        self.pid = os.getpid()
        self._size, self._timeout_s = workers, timeout_s
        self._template = Template(judge_path, memory_mb, untrusted)
        self._pending: dict[str, deque[Job]] = {}  # by gold
        self._changed = threading.Condition()  # an RLock inside: close() may be called by the garbage collector
        self._threads: list[threading.Thread] = []
        self._conns: set[Connection] = set()
        self._closed = False

    def submit(self, jobs: Iterable[Job]) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError(CLOSED)
            for job in jobs:
                self._pending.setdefault(job.gold, deque()).append(job)
            waiting = sum(map(len, self._pending.values()))
            for _ in range(min(waiting, self._size - len(self._threads))):
                thread = threading.Thread(target=self._work, daemon=True, name="sage-rlvr-verifier")
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def _next(self, last: str | None) -> Job | None:
        """The next job, of gold ``last`` if there is one, else of the gold that has waited longest."""
        with self._changed:
            while not self._pending:
                if self._closed:
                    return None
                self._changed.wait()
            gold = last if last in self._pending else next(iter(self._pending))
            jobs = self._pending.pop(gold)
            job = jobs.popleft()
            if jobs:
                self._pending[gold] = jobs  # to the back: the next free worker starts on another gold
            return job

    def _work(self) -> None:
        worker: Worker | None = None
        last: str | None = None
        streak = 0
        untrusted = self._template.untrusted
        while job := self._next(last if untrusted or streak < STREAK else None):
            streak = streak + 1 if job.gold == last else 1
            if worker and untrusted and job.gold != last:
                self._dismiss(worker)
                worker = None
            last = job.gold
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                worker, outcome = self._judge(worker, job)
            except BaseException as error:  # not the answer's fault: the caller hears of it
                worker = None
                job.future.set_exception(error)
                continue
            job.future.set_result(outcome)
            if outcome in (GOLD_TIMEOUT, GOLD_DIED):  # would be the same for everyone who waits with this gold
                with self._changed:
                    others = self._pending.pop(job.gold, ())
                for other in others:
                    if other.future.set_running_or_notify_cancel():
                        other.future.set_result(outcome)
            if worker and untrusted and job.gold not in self._pending:
                self._dismiss(worker)
                worker = None

    def _judge(self, worker: Worker | None, job: Job) -> tuple[Worker | None, bytes]:
        """The outcome, and the worker if it may serve again.

        A death before the gold was read is tried once more: the worker may have been killed while it was idle.
        """
        for _ in range(2):
            worker = worker or self._hire()
            outcome = worker.judge(job.gold, job.answer, self._timeout_s)
            if outcome in (TIMEOUT, GOLD_TIMEOUT, DIED, GOLD_DIED) or outcome.endswith(RETIRING):
                self._dismiss(worker)
                worker = None
            if outcome != GOLD_DIED:
                break
        return worker, outcome.removesuffix(RETIRING)

    def _hire(self) -> Worker:
        worker = Worker(self._template)
        with self._changed:
            self._conns.add(worker.conn)
        return worker

    def _dismiss(self, worker: Worker) -> None:
        self._template.kill(worker.number)
        with self._changed:
            self._conns.discard(worker.conn)
        worker.conn.close()

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        with self._changed:
            self._closed = True
            jobs = [job for queue in self._pending.values() for job in queue]
            self._pending.clear()
            self._changed.notify_all()
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(RuntimeError(CLOSED))
        self._template.close()  # its workers end with it, so no thread waits for long
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)
        for conn in self._conns:
            conn.close()

    def forget(self) -> None:
        self._template.forget()
        for conn in self._conns:
            conn.close()
