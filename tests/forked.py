"""Processes of their own, to be killed for real, without ten seconds of imports each: forked from a server that has them.

The server is itself forked from the tests' own process, before the first test (``begin``, called in tests/conftest.py): what was
collected has imported nearly all of it. Where nobody called that, it is a process of its own that imports."""

import faulthandler
import logging
import multiprocessing as mp
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from tests.paths import python_path

PRELOADED = ["tests.preloaded"]


@dataclass
class Ended:
    returncode: int  # below 0: the signal that killed it
    stdout: str
    stderr: str


class Started:
    """A process that goes on, handled like a subprocess."""

    def __init__(
        self, target: Callable[..., Any], *args: Any, env: dict[str, str] | None = None, session: bool = False
    ):
        server = _server()
        self._said = TemporaryDirectory()
        self._files = [str(Path(self._said.name, name)) for name in ("out", "err")]
        self._process = server.Process(
            target=_become, args=(self._files, {**os.environ, **(env or {})}, session, target, args)
        )
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self, timeout: float = 300) -> Ended:
        """How it ended; it is killed, and that an error, where it has not after so many seconds."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"it has not ended after {timeout} s: {self.said()}")
        return Ended(self._process.exitcode, *self.said())

    def said(self) -> tuple[str, ...]:
        return tuple(Path(file).read_text(encoding="utf-8") if Path(file).exists() else "" for file in self._files)

    def wait_for(self, happens: Callable[[], Any], what: str, seconds: float = 1200) -> None:
        end = time.monotonic() + seconds
        while not happens():
            assert self.poll() is None, f"it ended before {what}: {self.said()}"
            assert time.monotonic() < end, f"{what} did not happen: {self.said()}"
            time.sleep(0.05)


class Child:
    """A process forked from this very one, handled like a subprocess: in its place where what is started would import anew."""

    def __init__(self, target: Callable[..., Any], *args: Any):
        self._process = mp.get_context("fork").Process(target=target, args=args)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def as_begun() -> None:
    """In a Child: a session of its own, and signals as a new Python has them, whatever handlers its parent had."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def module(command: list[str], env: dict[str, str]) -> None:
    """``python -m MODULE ARGV`` with that environment: a Child's target."""
    as_begun()
    os.environ.clear()
    os.environ |= env
    sys.argv = command[command.index("-m") + 1 :]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def run(target: Callable[..., Any], *args: Any, timeout: float = 300, **kwargs: Any) -> Ended:
    return Started(target, *args, **kwargs).end(timeout)


def ranks(target: Callable[..., Any], *args: Any, processes: int, env: dict[str, str] | None = None) -> None:
    """So many of them, who find each other as torchrun's processes would; all must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    world = place | {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), **(env or {})}
    each = [{"RANK": str(n), "LOCAL_RANK": str(n), **world} for n in range(processes)]
    started = [Started(target, *args, env=own) for own in each]
    try:
        for process in started:
            done = process.end(timeout=1200)
            assert done.returncode == 0, done.stderr[-3000:]
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)  # a rank whose other has failed would wait for it


def script(file: Path, folder: Path) -> None:
    """``python FILE`` in that folder: a target."""
    os.chdir(folder)
    sys.argv = [str(file)]
    runpy.run_path(str(file), run_name="__main__")


def begin() -> None:
    """Before any test: after a backward pass torch's autograd refuses to work in a fork."""
    resource_tracker.ensure_running()  # as ever; only the server is forked
    with mock.patch.object(util, "spawnv_passfds", _fork):
        _server()


def _fork(_interpreter: Any, command: list[Any], fds: list[int]) -> int:
    """In the place of a fresh interpreter that runs ``command[-1]``, the server's loop."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        faulthandler.disable()
        # What pytest and xdist hold open would never end for them. Closed, its numbers would be other files' soon, and what is
        # still written to them by whoever had them would land there.
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in set(map(int, os.listdir("/dev/fd"))) - {0, 1, 2, nothing, *fds}:
            os.dup2(nothing, fd)
        _own_streams()
        forkserver._forkserver.__init__()  # type: ignore[misc]
        exec(command[-1], {})
    except Exception:
        traceback.print_exc()  # else nobody would know: a fresh server takes its place, and imports
    finally:
        os._exit(0)


def _own_streams() -> None:
    """In the place of pytest's, which handlers that were made while it collected still have."""
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    logging.getLogger().handlers.clear()
    elsewhere = (logging.FileHandler, logging._StderrHandler)  # the last resort's: it asks for sys.stderr each time
    for handler in filter(None, (ref() for ref in logging._handlerList)):
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, elsewhere):
            handler.stream = sys.stderr


def _server() -> Any:
    """Begun with the first process. It finds the tests whatever the working directory: a preload that fails is not reported."""
    server = mp.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = python_path()
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return server


def _become(
    files: list[str], env: dict[str, str], session: bool, target: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    if session:
        os.setsid()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # tests run in the background hand down one that is ignored
    os.environ.clear()
    os.environ |= env  # the test's own, whatever it was when the server began
    for number, (stream, file) in enumerate(zip((sys.stdout, sys.stderr), files), 1):
        stream.flush()
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), number)
    target(*args)
