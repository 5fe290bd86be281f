"""Advantages of a user's own, found by 'package.module:Class'."""

from sage_rlvr import Advantage


class Seen(Advantage):
    """Not useful, but open: each completion's advantage is one of the things an advantage may ask for."""

    needs = frozenset({"logps", "ref_logps", "lengths", "answers"})

    def __init__(self, shows: str = "logps"):
        self.shows = shows

    def shape(self, r):
        return getattr(r, self.shows).float()


class Once(Advantage):
    """Groups that were solved exactly once count, the others do not."""

    kind, stage = "prompts", "factor"

    def shape(self, r):
        return (r.right.sum(1, keepdim=True) == 1).float()
