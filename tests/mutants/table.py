"""All of them, by room."""

from tests.mutants import advantage, anchor, head, kept, reset, stacked, statistics, store, train, verify, verl

MUTANTS = [
    mutant
    for room in (anchor, advantage, head, train, reset, kept, verify, store, statistics, stacked, verl)
    for mutant in room.MUTANTS
]
