"""The exceptions for what a person can mend: one sentence each, and no traceback. Every other one keeps its traceback."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something a user wrote is wrong. The message is one sentence: what, where, and the way out.

    The command line prints it and exits with ``exit_code``: 2, wrong use.
    """

    exit_code = 2


class Failed(UserError):
    """What was asked for is right and could not be done, for a reason outside the program: a full disk, an engine that died.
    What was done before it is kept."""

    exit_code = 1


class Diverged(Failed, FloatingPointError):
    """A training whose numbers are no longer numbers."""


def did_you_mean(name: object, known: Iterable[str], more: str = "") -> str:
    """The end of a sentence about a name nobody knows: the nearest one where there is one, and what there is."""
    names = list(known)
    close = [known for known in names if name and known.startswith(str(name))] or difflib.get_close_matches(
        str(name), names
    )
    near = f"did you mean {close[0]!r}? There are " if close else "choose one of "
    return f"{near}{', '.join(names)}{more}."
