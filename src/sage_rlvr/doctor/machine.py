"""The machine: Python, torch and its GPUs, cores and memory, disk, and the Hub. Every check ends within seconds."""

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from sage_rlvr.errors import short

GB = 1e9
LITTLE_DISK = 10 * GB
LITTLE_MEMORY = 4 * GB


@dataclass(frozen=True, slots=True)
class Check:
    """``ok`` is None where it could not be told, or is not needed here; ``fix`` is one sentence."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def machine_checks() -> list[Check]:
    python = sys.version_info >= (3, 11)
    return [
        Check("Python", python, platform.python_version(), "" if python else "install Python 3.11 or 3.12."),
        *torch_checks(),
        cpu_check(),
        *disk_checks("runs"),
        hub_check(),
        sandbox_check(),
    ]


def torch_checks() -> list[Check]:
    """torch's build, and one check per GPU."""
    try:
        import torch
    except Exception as e:  # a broken install raises OSError and others
        return [Check("torch build", False, f"cannot be imported ({short(e)})", "pip install --force-reinstall torch.")]
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
    if free < total / 2:
        return Check(f"GPU {i}", False, found, "another process holds its memory: nvidia-smi names it.")
    return Check(f"GPU {i}", True, found)


def cpu_check() -> Check:
    total, free = memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = f"{cores} cores, {free / GB:.1f} of {total / GB:.1f} GB free"
    if free < LITTLE_MEMORY:
        fix = "close other programs: a run's imports alone take 1 GB."
        return Check("CPU and memory", False, found, fix)
    return Check("CPU and memory", True, found)


def memory() -> tuple[float, float]:
    """(total, free) bytes, a container's limit respected."""
    import psutil

    seen = psutil.virtual_memory()
    total, free = float(seen.total), float(seen.available)
    try:
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no limit is written as "max"
        return total, free
    return min(total, limit), min(free, max(0.0, limit - used))


def sandbox_check() -> Check:
    """Whether the kernel helps to keep the answers to gym:NAME inside (``verify/sandbox.py``)."""
    from sage_rlvr.verify.sandbox import lacks

    if (why := lacks()) is None:
        return Check("sandbox for gym:NAME", True, "seccomp: no files, sockets or processes while an answer is judged")
    return Check("sandbox for gym:NAME", None, f"no seccomp ({why}): limits and the interpreter's own refusal remain",
                 "for answers you do not trust, use Linux on x86_64 or aarch64.")  # fmt: skip


def disk_checks(output_dir: str, needed: float = LITTLE_DISK) -> list[Check]:
    return [
        _disk("disk for runs", Path(output_dir), needed, "output_dir"),
        _disk("disk for the Hub's cache", hub_cache(), LITTLE_DISK, "HF_HOME"),
    ]


def _disk(name: str, folder: Path, needed: float, setting: str) -> Check:
    place = existing(folder)
    if not place.is_dir():
        return Check(name, False, f"{place} is a file", f"set {setting} to a folder.")
    if not os.access(place, os.W_OK):
        return Check(name, False, f"{place} cannot be written", f"set {setting} to a folder you may write to.")
    free = shutil.disk_usage(place).free
    found = f"{free / GB:.0f} GB free at {folder}"
    if free < needed:
        fix = f"make room, or set {setting} to a larger disk."
        return Check(name, False, f"{found}, {needed / GB:.0f} GB wanted", fix)
    return Check(name, True, found)


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(p for p in [path.absolute(), *path.absolute().parents] if p.exists())


def hub_cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def hub_check(seconds: float = 3.0) -> Check:
    """Whether the Hub answers. None where there is no need to ask, or only a proxy could tell."""
    from sage_rlvr.models.loading import hub_endpoint, hub_in_reach, hub_offline, hub_proxy

    if flag := hub_offline():
        return Check("Hub", None, f"offline by {flag}: models and data come from folders and the cache")
    endpoint = hub_endpoint()
    if hub_proxy():
        return Check("Hub", None, f"{endpoint} through a proxy, not tried")
    if hub_in_reach(seconds):
        return Check("Hub", True, f"{endpoint} answers")
    return Check("Hub", None, f"{endpoint} does not answer within {seconds:g} s",
                 "only what is in folders or the cache can be used: copy models and data, and set HF_HUB_OFFLINE=1.")  # fmt: skip
