"""Mistakes that the tests must notice: a table of small changes to the source, each with the tests that have to fail under it.

``make mutants`` (run.py) makes every one of them in a copy of the source and runs those tests; ``make test`` only checks that
the table still fits the source (test_table.py).
"""
