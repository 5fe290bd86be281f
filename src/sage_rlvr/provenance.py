"""Where and with what something was made: written beside every run, shown on every report."""

import contextlib
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "transformers", "trl", "vllm", "math-verify")


def made_with() -> dict[str, Any]:
    """machine, release, commit (of a checkout), and the versions of the libraries that matter."""
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {"machine": machine(), "release": release(), "commit": commit(), "libraries": versions}


def release() -> str:
    """The package's own: it may be run without being installed."""
    return sys.modules[__name__.partition(".")[0]].__version__


def machine() -> str:
    """CPU, cores, and the GPU where torch is loaded and sees one; no host name."""
    torch = sys.modules.get("torch")
    gpu = f", {torch.cuda.get_device_name()}" if torch is not None and torch.cuda.is_available() else ""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores{gpu}, Python {platform.python_version()}"


def commit() -> str | None:
    """The commit of the checkout this package runs from, or what $SAGE_RLVR_COMMIT says where the code was copied without its
    history; None where it was installed."""
    if told := os.environ.get("SAGE_RLVR_COMMIT"):
        return told
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "log", "-1", "--format=%h", "--", "."]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
