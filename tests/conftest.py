"""Order: what takes longest first, so that two workers end together. And two costs of every small training, paid once: a garbage
collector that goes through the imports, and the metadata of installed packages."""

import gc
import importlib.metadata
import sys
from functools import cache

import pytest

# Accelerate asks at every step whether PEFT is installed, and parses its metadata anew. What is not there is not kept.
importlib.metadata.metadata = cache(importlib.metadata.metadata)

# Files of more than about ten seconds, the longest first; then rooms whose files start processes or train.
LONG = (
    "tests/test_working_directory.py",
    "tests/train/test_launch.py",
    "tests/study/test_run.py",
    "tests/doctor/test_plan.py",
    "tests/train/test_parity.py",
    "tests/train/test_resume.py",
    "tests/train/test_fsdp.py",
    "tests/train/test_distributed.py",
    "tests/lab/test_lab.py",
    "tests/doctor/test_activations.py",
    "tests/train/test_packing.py",
    "tests/study/test_results_pages.py",
    "tests/study/test_study.py",
    "tests/study/",
    "tests/verify/",
    "tests/train/",
    "tests/doctor/",
    "tests/report/",
    "tests/evaluate/",
    "tests/docs/",
    "tests/test_package.py",
    "tests/tasks/",
    "tests/examples/",
    "tests/models/",
    "tests/lab/",
    "tests/analysis/",
    "tests/store/",
)


def pytest_collection_modifyitems(items):
    def rank(item):
        return next((i for i, part in enumerate(LONG) if item.nodeid.startswith(part)), len(LONG))

    items.sort(key=rank)  # stable: a file's tests stay together and in order


def pytest_collection_finish(session):
    """Transformers collects garbage after every training, over a million imported objects: half of a small test's time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    """The server of tests/forked.py, if a test that was collected uses it."""
    if "tests.forked" in sys.modules:
        sys.modules["tests.forked"].begin()
