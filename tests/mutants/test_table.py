"""The table fits the source: every old text stands in its file exactly once, the change compiles, and its tests exist."""

import ast
import re

import pytest

from tests.mutants.mutant import ROOT, changed
from tests.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{m.file}: {m.why}" for m in MUTANTS])
def test_it_can_be_made(mutant):
    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    ast.parse(changed(source, mutant))
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name.partition('[')[0]}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), test


def test_no_two_say_the_same():
    assert len({(m.file, m.why) for m in MUTANTS}) == len(MUTANTS)
