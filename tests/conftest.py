"""Order: what takes minutes first, so that two workers end together. And a garbage collector that leaves the imports alone."""

import gc

SLOW = (
    "tests/study/",
    "tests/train/test_launch",
    "tests/train/test_fsdp",
    "tests/train/",
    "tests/verify/",
    "tests/doctor/",
)


def pytest_collection_modifyitems(items):
    def rank(item):
        return next((i for i, part in enumerate(SLOW) if part in item.nodeid), len(SLOW))

    items.sort(key=rank)  # stable: a file's tests stay together and in order


def pytest_collection_finish(session):
    """Transformers collects garbage after every training, over a million imported objects: half of a small test's time."""
    gc.collect()
    gc.freeze()
