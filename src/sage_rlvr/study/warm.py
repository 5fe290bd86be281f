"""Runs that start at once: a process imports what every run needs, which takes ten seconds and more, and forks one when asked.

    python -m sage_rlvr.study.warm    # a request a line: {"out": …, "run": …, "log": …, "env": {…}}; says "ready", then pids

Only where forking is safe: on Linux, and as long as no import has woken CUDA's driver, which does not outlive a fork. Otherwise
runs start in processes of their own; whoever asks need not know which.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

from sage_rlvr.processes import identity, lives
from sage_rlvr.study import job

NEEDED = (
    "sage_rlvr.train.run",
    "sage_rlvr.train.sft",
    "sage_rlvr.evaluate.run",
    "sage_rlvr.evaluate.transformers_backend",
)
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
COMES_THROUGH = "jemalloc_bg_thd"  # Arrow's allocator stops its thread before a fork and starts it again after (x86)


class Forked:
    """A run that the warm process forked, handled like a subprocess: it is not our child, so its status says how it ended."""

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
    """The warm process, from the study's side. It ends with ``close``, and when the study ends in any way."""

    def __init__(self, env: dict[str, str]):
        self.process: subprocess.Popen[str] | None = None
        self.ready = False
        if sys.platform == "linux":
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sage_rlvr.study.warm"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                env={
                    **env,
                    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for a GPU must not wake the driver
                    "OPENBLAS_NUM_THREADS": "1",  # numpy's library starts its threads when it is loaded; nothing here needs them
                },
            )  # fmt: skip

    def importing(self) -> bool:
        """Not yet able to fork; waiting for it is sooner than to import the same in every run at once."""
        if self.process is not None and not self.ready:
            if not select.select([self.process.stdout.fileno()], [], [], 0)[0]:  # type: ignore[union-attr]
                return True
            self.ready = self._line() == "ready"
            if not self.ready:
                self.close()
        return False

    def fork(self, out: Path, run: str, log: Path, env: dict[str, str]) -> Forked | None:
        """The run, begun; None while the process imports, or if it is gone."""
        if self.importing() or self.process is None or self.process.stdin is None:
            return None
        try:
            request = {"out": str(out), "run": run, "log": str(log), "env": env}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return Forked(int(self._line()), out / run / job.STATUS)
        except (OSError, ValueError):  # it has died
            self.process = None
            return None

    def _line(self) -> str:
        return self.process.stdout.readline().strip()  # type: ignore[union-attr]

    def close(self) -> None:
        """Runs that it forked and that still go get SIGTERM, as when the study dies: let them end first."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()


# ---- the process itself ----------------------------------------------------------------------------------------------------


def can_fork() -> bool:
    """No thread but this one, and CUDA's driver asleep: neither would come through a fork."""
    if len([name for name in thread_names() if name != COMES_THROUGH]) > 1:
        return False
    try:
        count = ctypes.c_int()
        return ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) == NOT_INITIALIZED
    except (OSError, AttributeError):
        return True  # no driver here


def thread_names() -> list[str]:
    return [Path("/proc/self/task", task, "comm").read_text().strip() for task in os.listdir("/proc/self/task")]


def main() -> int:
    job.end_with_parent()
    answers = os.dup(1)
    _lead(1, os.devnull, os.O_WRONLY)  # what an import prints is no answer
    for name in NEEDED:
        import_module(name)
    if not can_fork():
        return 1
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the runs here: the kernel buries them
    os.write(answers, b"ready\n")
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(answers)
            become(asked["log"], asked["env"])
            return job.main(asked["out"], asked["run"])
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
    sys.exit(main())
