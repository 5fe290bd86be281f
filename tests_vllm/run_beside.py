"""A training whose engine starts at the same moment as another's: python -m tests_vllm.run_beside BASE OUT MEETING NAME"""

import sys
import time
from pathlib import Path

import vllm
from trl.generation import vllm_generation
from vllm import _custom_ops

from tests_vllm import test_colocate


def main(base, out, meeting, name):
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
    print(test_colocate.logged(made)[0]["sampling/sampling_logp_difference/max"])


if __name__ == "__main__":
    main(*sys.argv[1:])
