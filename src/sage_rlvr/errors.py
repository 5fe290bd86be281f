"""The exceptions for what a person can fix: one sentence each, and no traceback. Every other one keeps its traceback."""


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


def short(e: BaseException) -> str:
    """What an error says, on one line of at most 160 characters, to stand inside a sentence."""
    return " ".join(str(e).split())[:160].rstrip(" .:") or type(e).__name__


def causes(e: BaseException | None) -> list[BaseException]:
    """The error and those that led to it."""
    chain: list[BaseException] = []
    while e is not None and e not in chain:
        chain.append(e)
        e = e.__cause__ or e.__context__
    return chain
