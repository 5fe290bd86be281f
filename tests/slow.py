"""Cases of one test, of which a few are fast."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def but_few(cases: Iterable[Any], fast: Container[int]) -> list[Any]:
    """Parameters of a test: those at the places ``fast`` in every run, the others in ``make test-all``. A case is a tuple where
    the test takes several arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.slow] * (i not in fast))
        for i, case in enumerate(cases)
    ]
