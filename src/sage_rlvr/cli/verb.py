"""What a verb of the command line is."""

import argparse
from collections.abc import Callable
from typing import NamedTuple


class Verb(NamedTuple):
    """``add`` declares its flags (None: it parses them itself), ``run`` does it."""

    help: str
    example: str
    add: Callable[[argparse.ArgumentParser], None] | None
    run: Callable[[argparse.Namespace], None]
