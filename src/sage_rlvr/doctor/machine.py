"""The machine: Python, torch and its GPUs, cores and memory, disk, and the Hub. Every check ends within seconds."""

import os
import platform
import shutil
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from sage_rlvr.doctor.check import Check

GB = 1e9
LITTLE_DISK = 10 * GB
LITTLE_MEMORY = 4 * GB
HUB_SECONDS = 3.0


def machine_checks(output_dir: str = "runs") -> list[Check]:
    return [python_check(), *torch_checks(), cpu_check(), *disk_checks(output_dir), hub_check(), sandbox_check()]


def python_check() -> Check:
    fits = sys.version_info >= (3, 11)
    return Check("Python", fits, platform.python_version(), "" if fits else "install Python 3.11 or 3.12.")


def torch_checks() -> list[Check]:
    """torch's build, and one check a GPU."""
    try:
        import torch
    except Exception as e:  # a broken install raises OSError and others
        reason = " ".join(str(e).split())[:120]
        return [Check("torch build", False, f"cannot be imported ({reason})", "pip install --force-reinstall torch.")]
    build = torch.version.cuda or torch.version.hip
    if not build:
        return [Check("GPU", None, "none: this torch is built for CPU; enough for the demo and the lab",
                      "for a GPU, install torch's CUDA build (pytorch.org says how).")]  # fmt: skip
    kind = "CUDA" if torch.version.cuda else "ROCm"
    if not torch.cuda.is_available():
        return [Check("GPU", None, f"none found by torch built for {kind} {build}",
                      "look at nvidia-smi and CUDA_VISIBLE_DEVICES; the driver may be older than the build.")]  # fmt: skip
    return [Check("torch build", True, f"{kind} {build}"), *(_gpu(i) for i in range(torch.cuda.device_count()))]


def _gpu(i: int) -> Check:
    import torch

    free, total = torch.cuda.mem_get_info(i)
    bf16 = "bf16" if torch.cuda.get_device_capability(i) >= (8, 0) else "no bf16"
    found = f"{torch.cuda.get_device_name(i)}, {free / GB:.0f} of {total / GB:.0f} GB free, {bf16}"
    taken = free < total / 2
    return Check(
        f"GPU {i}", not taken, found, "another process holds its memory: nvidia-smi names it." if taken else ""
    )


def cpu_check() -> Check:
    total, free = memory()
    found = f"{cores()} cores, {free / GB:.1f} of {total / GB:.1f} GB free"
    short = free < LITTLE_MEMORY
    return Check(
        "CPU and memory", not short, found, "close other programs: a run's imports alone take 1 GB." if short else ""
    )


def cores() -> int:
    """Those this process may use, which in a container are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> tuple[float, float]:
    """(total, free) bytes, a container's limit respected."""
    import psutil

    seen = psutil.virtual_memory()
    total, free = float(seen.total), float(seen.available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return total, free
    if limit.isdigit():
        total = min(total, float(limit))
        free = min(free, max(0.0, float(limit) - used))
    return total, free


def sandbox_check() -> Check:
    """Whether the kernel helps to keep the answers to gym:NAME inside (``verify/sandbox.py``)."""
    from sage_rlvr.verify.sandbox import lacks

    if (why := lacks()) is None:
        return Check("sandbox for gym:NAME", True, "seccomp: no files, sockets or processes while an answer is judged")
    return Check("sandbox for gym:NAME", None, f"no seccomp ({why}): limits and the interpreter's own refusal remain",
                 "for answers you do not trust, use Linux on x86_64 or aarch64.")  # fmt: skip


# ---- disk ----------------------------------------------------------------------------------------------------------


def disk_checks(output_dir: str, needed: float = LITTLE_DISK) -> list[Check]:
    return [
        _disk("disk for runs", Path(output_dir), needed, "output_dir"),
        _disk("disk for the Hub's cache", hub_cache(), LITTLE_DISK, "HF_HOME"),
    ]


def _disk(name: str, folder: Path, needed: float, setting: str) -> Check:
    there = next(p for p in [folder.absolute(), *folder.absolute().parents] if p.exists())
    if not there.is_dir():
        return Check(name, False, f"{there} is a file", f"set {setting} to a folder.")
    if not os.access(there, os.W_OK):
        return Check(name, False, f"{there} cannot be written", f"set {setting} to a folder you may write to.")
    free = shutil.disk_usage(there).free
    found = f"{free / GB:.0f} GB free at {folder}"
    if free < needed:
        return Check(
            name, False, f"{found}, {needed / GB:.0f} GB wanted", f"make room, or set {setting} to a larger disk."
        )
    return Check(name, True, found)


def hub_cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


# ---- the Hub -------------------------------------------------------------------------------------------------------


def hub_check(seconds: float = HUB_SECONDS) -> Check:
    """Whether the Hub answers. None where there is no need to ask, or only a proxy could tell."""
    flag = next((f for f in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _is_on(f)), None)
    if flag:
        return Check("Hub", None, f"offline by {flag}: models and data come from folders and the cache")
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if any(os.environ.get(p) for p in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return Check("Hub", None, f"{endpoint} through a proxy, not tried")
    if reachable(endpoint, seconds):
        return Check("Hub", True, f"{endpoint} answers")
    return Check("Hub", None, f"{endpoint} does not answer within {seconds:g} s",
                 "only what is in folders or the cache can be used: copy models and data, and set HF_HUB_OFFLINE=1.")  # fmt: skip


def _is_on(flag: str) -> bool:
    return os.environ.get(flag, "0").lower() in ("1", "true", "yes", "on")


def reachable(endpoint: str, seconds: float) -> bool:
    """In a thread, because a resolver may take longer than any timeout that can be given to it."""
    host, answer = urlsplit(endpoint), []

    def knock() -> None:
        try:
            socket.create_connection((host.hostname or "", host.port or 443), timeout=seconds).close()
            answer.append(True)
        except (OSError, ValueError):
            return

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answer)
