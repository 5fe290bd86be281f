"""Runs that start at once: one process imports what every run needs, which takes ten seconds and more, and forks each run.

    python -m sage_rlvr.study.warm MODULE…    # reads a request per line, [out, run, log, {environment}]; answers each with a pid

Forking is safe on Linux, with one thread, and while CUDA's driver sleeps, which does not outlive a fork. Where it is not, a
forked process begins anew with nothing in it. Python's own fork server would end runs without their exit handlers (trackers,
engines), start the script that called ``run_study`` again in every run, and take its environment from ours alone.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from sage_rlvr.errors import Failed
from sage_rlvr.processes import identity, lives
from sage_rlvr.study import job

NEEDED = (
    "sage_rlvr.launch.run",
    "sage_rlvr.launch.sft",
    "sage_rlvr.evaluate.run",
    "sage_rlvr.evaluate.transformers_backend",
)
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
COMES_THROUGH = "jemalloc_bg_thd"  # Arrow's allocator stops its thread before a fork and starts it again after (x86)


class Forked:
    """A run, handled like a subprocess. It is the warm process' child, not ours, so its status says how it ended."""

    def __init__(self, pid: int, status: Path):
        self.pid, self.status, self.who = pid, status, identity(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and not lives(self.who):
            try:
                state = json.loads(self.status.read_text(encoding="utf-8"))["state"]
            except (OSError, ValueError):
                state = "failed"  # it died before it could say anything
            self.returncode = 0 if state == "done" else 1
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.1)
        return code


class Warm:
    """The warm process, from the study's side. It begins with the first run, and ends with ``close`` or with the study, however
    that ends; then the runs that still go get SIGTERM."""

    def __init__(self, env: dict[str, str]):
        self.env = env
        self.process: subprocess.Popen[str] | None = None

    def fork(self, out: Path, run: str, log: Path, env: dict[str, str]) -> Forked:
        """The run, begun, in the study's environment with ``env`` on top. The first waits for the imports."""
        if self.process is None or self.process.poll() is not None:  # killed by someone: another takes its place
            self.process = self._begin()
        try:
            self.process.stdin.write(json.dumps([str(out), run, str(log), env]) + "\n")  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
            return Forked(int(self.process.stdout.readline()), out / run / job.STATUS)  # type: ignore[union-attr]
        except (OSError, ValueError) as e:
            raise Failed("the process that starts the study's runs was killed: run the same command again.") from e

    def _begin(self) -> subprocess.Popen[str]:
        quiet = {
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for a GPU must not wake the driver
            "OPENBLAS_NUM_THREADS": "1",  # numpy's library starts its threads when it is loaded; nothing here needs them
        }
        # a session of its own: a terminal's Ctrl-C reaches the study alone, which lets the runs write checkpoints
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "sage_rlvr.study.warm", *NEEDED], env=self.env | quiet, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


# ---- the process itself ----------------------------------------------------------------------------------------------------


def can_fork() -> bool:
    """No thread but this one, and CUDA's driver asleep: neither would come through a fork."""
    if sys.platform != "linux" or len([name for name in thread_names() if name != COMES_THROUGH]) > 1:
        return False
    try:
        count = ctypes.c_int()
        return ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) == NOT_INITIALIZED
    except (OSError, AttributeError):
        return True  # no driver here


def thread_names() -> list[str]:
    return [Path("/proc/self/task", task, "comm").read_text().strip() for task in os.listdir("/proc/self/task")]


def main(modules: list[str]) -> int:
    job.end_with_parent()
    answers = os.dup(1)
    _lead(1, os.devnull, os.O_WRONLY)  # what an import prints is no answer
    with suppress(Exception):  # each run then says it in its own log
        for name in modules:
            import_module(name)
    safe = can_fork()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the runs here: the kernel buries them
    for line in sys.stdin:
        out, run, log, env = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(answers)
            become(log, env)
            if not safe:
                job.begin_anew(out, run, dict(os.environ))
            return job.main(out, run)
        os.write(answers, b"%d\n" % pid)
    return 0


def become(log: str, env: dict[str, str]) -> None:
    """A forked process as a run that was started: its own log, environment and signals; the session is the warm process'."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ |= env
    _lead(0, os.devnull, os.O_RDONLY)
    for fd in (1, 2):
        _lead(fd, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdin = os.fdopen(0, closefd=False)  # what is still buffered of the requests is not ours


def _lead(fd: int, path: str, flags: int) -> None:
    """From now on ``fd`` is that file."""
    opened = os.open(path, flags)
    os.dup2(opened, fd)
    os.close(opened)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
