"""A process to be launched without a model: python -m tests.train.run_exit CODE FOLDER."""

import os
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    code, folder = sys.argv[1], Path(sys.argv[2])
    if code == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank = int(os.environ["RANK"])
    said = [os.environ[k] for k in ("WORLD_SIZE", "SAGE_RLVR_PROCESSES", "ACCELERATE_USE_CPU")]
    (folder / f"rank{rank}").write_text(" ".join([*said, str(os.getpid())]))
    if code in ("sleep", "deaf") or (code != "0" and rank == 0):  # rank 1 fails, rank 0 would wait for it for ever
        time.sleep(120)
    end = time.monotonic() + 60
    while (
        code != "0" and not (folder / "rank0").is_file() and time.monotonic() < end
    ):  # else it is ended before it speaks
        time.sleep(0.05)
    sys.exit(int(code))
