"""Two trainings, a process each, whose engines start at the same moment: python -m tests_vllm.run_beside BASE OUT MEETING"""

import multiprocessing as mp
import sys
import time
from pathlib import Path

import vllm
from trl.generation import vllm_generation
from vllm import _custom_ops

from tests_vllm import test_colocate


def train(base, out, meeting, name):
    def together(**arguments):
        """TRL has chosen the port by now."""
        Path(meeting, name).touch()
        end = time.monotonic() + 1200
        while len(list(Path(meeting).iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        return vllm.LLM(**arguments, enforce_eager=True, dtype="float32")

    _custom_ops._supports_onednn = False
    vllm_generation.LLM = together
    made = test_colocate.trainer(base, out, max_steps=1)
    made.train()
    print("apart:", test_colocate.logged(made)[0]["sampling/sampling_logp_difference/max"])


def main(base, out, meeting):
    """Forked once all is imported, which takes longer than the rest."""
    fork, names = mp.get_context("fork"), ("one", "other")
    both = [fork.Process(target=train, args=(base, str(Path(out, name)), meeting, name)) for name in names]
    for process in both:
        process.start()
    for process in both:
        process.join()
    sys.exit(any(process.exitcode for process in both))


if __name__ == "__main__":
    main(*sys.argv[1:])
