"""What the fork server of tests/forked.py imports, once: everything that a run, a study or a verb needs."""

import gc
from importlib import import_module

NEEDED = (
    "tests.train.run_tiny",
    "tests.train.run_pair",
    "tests.study.forking",
    "sage_rlvr.launch.sft",
    "sage_rlvr.evaluate.run",
    "sage_rlvr.evaluate.transformers_backend",
)

for name in NEEDED:
    import_module(name)
gc.collect()
gc.freeze()  # else every training collects over all of it when it ends
