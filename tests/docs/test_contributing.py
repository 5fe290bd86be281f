"""CONTRIBUTING's tables name files and tests that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = [row for row in TEXT.partition("## The seam")[2].partition("\n## ")[0].splitlines() if row.startswith("| ")][1:]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def words(path):
    """Every name and text that stands in a module of ours: what it could replace, by attribute or by setattr."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {getattr(node, "attr", None) or getattr(node, "arg", None) or getattr(node, "value", None) for node in tree
            if isinstance(node, ast.Attribute | ast.keyword | ast.Constant)}  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1][:40])
def test_a_row_of_the_seam_is_true(row):
    replaced, where, *_, test = row.strip("| ").split(" | ")
    files = [ROOT / "src/sage_rlvr" / name for name in names(where)]
    there = set().union(*map(words, files))
    for name in names(replaced):
        if not name.startswith("+"):
            assert name in there or name.rpartition(".")[2] in there, f"{name} is not in {where}"
    for name in names(test):
        path, _, function = name.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_the_five_answers_are_there():
    rows = TEXT.partition("## Where to look")[2].partition("\n## ")[0].splitlines()
    answers = [row for row in rows if row.startswith("| where")]
    assert len(answers) == 5
    for name in (n for row in answers for n in names(row.split(" | ")[1]) if "/" in n or n.endswith(".py")):
        assert list((ROOT / "src/sage_rlvr").glob("**/" + name.rstrip("/"))), name
