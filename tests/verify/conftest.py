"""One judge in this process, and one verifier for all tests that ask for a verdict alone: each takes seconds to start."""

import logging

import pytest

from sage_rlvr.verify import Verifier
from sage_rlvr.verify.judge import MathJudge


@pytest.fixture(scope="session")
def judge():
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return MathJudge()


@pytest.fixture(scope="session")
def verifier():
    with Verifier(workers=2, timeout_s=120) as v:
        yield v
