"""A worker for scorers that are not trusted with an answer: they may hand it to ``eval``, or to something that does.

**Whose verdict it is.** Code that runs in the process that judges can forge any verdict: it shares the memory, the pipe and every
secret with the scorer, so no protocol helps. Hence no answer ever becomes code there. CPython reports each piece of code made
from text before it runs it (the audit event "exec": ``eval``, ``exec``, imports), and a hook that cannot be taken off refuses
it. Only what the gold's own judging ran, before the first answer was seen, may run again, and it is known by its bytecode. With
no code of its own inside, an answer cannot reach the channel on which the pool reads the verdict.

**What it could reach.** Should a scorer have another way to do what a text says, the process has nothing to give away. Each
gold gets a fresh one; it is started with an empty environment, has no file open but its socket and /dev/null, can open no
other and start no process (limits), is asked for permission by the interpreter for anything beyond computing (the same hook:
what is not known to be harmless is refused), and on Linux the kernel refuses too (seccomp). Time and memory are limited as for
every worker. Where there is no seccomp, the rest holds, and it is said: once in the log, and by ``sage-rlvr doctor``.
"""

import os
import resource
import sys
from contextlib import suppress
from types import CodeType
from typing import Any

from sage_rlvr.verify import seccomp

# Audit events of a computation that stays inside. "compile" makes code but runs none (ast.literal_eval needs it).
_HARMLESS = {"compile", "object.__getattr__", "sys._getframe", "builtins.id", "array.__new__", "sys.unraisablehook"}


class Sandbox:
    """Made in a worker before it reads its gold; from ``close`` on, answers may come."""

    def __init__(self) -> None:
        self._closed = False
        # what was asked for since, imports aside: a judge that goes on after it has judged something else
        self.refused = 0
        self._known: set[CodeType] = set()  # what ran before: the gold's own
        sys.addaudithook(self._ask)

    def close(self, fd: int) -> None:
        """Leaves the process nothing but the open file ``fd`` and those at 0, 1 and 2, which are /dev/null."""
        os.environ.clear()
        for other in map(int, os.listdir("/dev/fd")):
            if other > 2 and other != fd:
                with suppress(OSError):  # the listing's own
                    os.close(other)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        with suppress(OSError):  # the template has tried before, and the pool has said so (``lacks``)
            seccomp.install()
        self._closed = True

    def _ask(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _HARMLESS:
            return
        if not self._closed:
            if event == "exec":
                self._known.add(args[0])
        elif event != "exec" or args[0] not in self._known:
            if event == "import":  # what libraries that look for an optional one are ready for
                raise ImportError("refused while an answer is judged: an import")
            self.refused += 1
            raise PermissionError(f"refused while an answer is judged: {event}")


def lacks() -> str | None:
    """Why the kernel's part cannot be had here, found out in a process made for it; None where it can."""
    if why := seccomp.missing():
        return why
    pid = os.fork()
    if pid == 0:
        try:
            seccomp.install()
            os.open(os.devnull, os.O_RDONLY)
            os._exit(2)
        except PermissionError as e:
            os._exit(0 if e.filename else 1)  # with a name it was the open, as it should be
        finally:
            os._exit(1)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if ended == 0 else "the kernel or the container does not allow seccomp"
