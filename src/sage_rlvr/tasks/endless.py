"""A chat template is a program that comes with a model: it is tried where it can be ended, before it runs here."""

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

CPU_S = 5  # a template takes milliseconds
MEMORY = 1 << 30  # bytes on top of what this process has
MOST = 10_000_000  # characters of one prompt
WAIT_S = 120  # for the processor: a child that got none of it in that time has told us nothing
_FINE, _MEMORY, _LONG = 0, 3, 4


def why_endless(render: Callable[[], str]) -> str | None:
    """What is wrong with a rendering that takes more time, memory or text than a prompt can need; None where it comes to its
    end, well or with an error. It runs in a forked child with the kernel's limits (no memory limit outside Linux)."""
    if not hasattr(os, "fork"):
        return None
    child = os.fork()
    if child == 0:
        _try(render)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it has not ended after {CPU_S} s"
    return {_MEMORY: "it fills the memory", _LONG: f"it writes more than {MOST:,} characters"}.get(code)


def _try(render: Callable[[], str]) -> None:
    """In the child: ends it, whatever happens, and leaves nothing of the parent's open files flushed twice."""
    code = _FINE
    try:
        for number in (signal.SIGXCPU, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(WAIT_S)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
        if sys.platform == "linux":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit, most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (limit if most < 0 else min(limit, most), most))
        code = _LONG if len(render()) > MOST else _FINE
    except MemoryError:
        code = _MEMORY
    except BaseException:  # the parent will meet it too, and report it
        code = _FINE
    finally:
        os._exit(code)
