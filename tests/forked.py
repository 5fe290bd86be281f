"""Processes of their own, to be killed for real, without ten seconds of imports each: forked from a server that has them."""

import multiprocessing as mp
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PRELOADED = ["tests.train.run_tiny"]


@dataclass
class Ended:
    returncode: int  # below 0: the signal that killed it
    stdout: str
    stderr: str


def run(target: Callable[..., Any], *args: Any, timeout: float = 300) -> Ended:
    server = mp.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    with TemporaryDirectory() as said:
        files = [str(Path(said, name)) for name in ("out", "err")]
        process = server.Process(target=_speak_into, args=(files, target, args))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{target.__module__} has not ended after {timeout} s")
        return Ended(process.exitcode, *(Path(file).read_text(encoding="utf-8") for file in files))


def _speak_into(files: list[str], target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    for number, (stream, file) in enumerate(zip((sys.stdout, sys.stderr), files), 1):
        stream.flush()
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), number)
    target(*args)
