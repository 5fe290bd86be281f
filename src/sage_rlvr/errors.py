"""The one exception for what a user can mend."""


class UserError(ValueError):
    """Something a user wrote is wrong. The message is one sentence: what, where, and the way out.

    The command line prints it without a traceback and exits with 2; every other exception is a failure (1).
    """
