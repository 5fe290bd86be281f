"""A real run in a process of its own, and its peak memory: python -m tests.doctor.run_measured SETTING …"""

import sys

from sage_rlvr.launch.run import train


def peak_bytes() -> int:
    """VmHWM: this process alone, where ru_maxrss begins with the parent's at the fork."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


if __name__ == "__main__":
    train(sys.argv[1:])
    print(f"peak {peak_bytes()}")
