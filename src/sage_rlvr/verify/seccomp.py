"""A seccomp filter for Linux, by prctl: the process keeps a few system calls, and every other one answers "not permitted".

What stays is memory, time, randomness, reading and writing what is already open, and ending. What goes is everything by which a
process reaches beyond itself: files, sockets, processes, signals, limits, tracing. Once installed it cannot be taken off.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # classic BPF, as linux/filter.h has it
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCH_AT = 0, 4  # offsets in struct seccomp_data

# name → number on (x86_64, aarch64); None where there is no such call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "poll": (7, None),
    "ppoll": (271, 73), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216),
    "madvise": (28, 233), "brk": (12, 214), "futex": (202, 98), "membarrier": (324, 283), "rseq": (334, 293),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "sched_yield": (24, 124), "nanosleep": (35, 101), "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113), "gettimeofday": (96, 169), "getrandom": (318, 278), "getrusage": (98, 165),
    "getpid": (39, 172), "gettid": (186, 178), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of _CALLS, AUDIT_ARCH_…


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def missing() -> str | None:
    """Why there can be no filter here; None where ``install`` is worth a try."""
    if sys.platform != "linux":
        return f"seccomp is Linux's, and this is {platform.system()}"
    if platform.machine() not in _ARCHITECTURES or struct.calcsize("P") != 8:
        return f"no table of system calls for {platform.machine()}"
    return None


def install() -> None:
    """For this process and all it might start, for good. OSError where the kernel will not have it."""
    if why := missing():
        raise OSError(errno.ENOSYS, why)
    code = _program(*_ARCHITECTURES[platform.machine()])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),  # without it only root may install a filter
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0),
    ):
        if prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"prctl: {os.strerror(ctypes.get_errno())}")


def _program(column: int, arch: int) -> bytes:
    """Another architecture's calls (x86_64 can make 32-bit ones) and any number not listed end at ``refuse``."""
    numbers = [n for n in (pair[column] for pair in _CALLS.values()) if n is not None]
    n = len(numbers)
    lines = [(_LOAD_WORD, 0, 0, _ARCH_AT), (_JUMP_IF_EQUAL, 0, n + 1, arch), (_LOAD_WORD, 0, 0, _NUMBER_AT)]
    lines += [(_JUMP_IF_EQUAL, n - i, 0, number) for i, number in enumerate(numbers)]
    lines += [(_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
