"""Every Python block of README.md and docs/*.md is run in a folder of its own, or marked with what it needs."""

import ast
import shutil
from importlib import import_module
from importlib.util import find_spec

import pytest

from sage_rlvr.advantage import advantage
from sage_rlvr.analysis.patterns import PATTERNS
from sage_rlvr.anchor import guides
from sage_rlvr.tasks import registry, scorers
from tests.docs.fences import fences
from tests.docs.stand_ins import names, write_runs

PYTHON = [f for f in fences() if f.language in ("python", "py")]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    write_runs(folder)
    return folder


@pytest.fixture
def clean(desk, tmp_path, monkeypatch):
    """A folder with stand-ins for runs; what a block registers is forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(desk, tmp_path, dirs_exist_ok=True)
    shelves = [guides._REGISTRY.classes, advantage._REGISTRY.classes, registry.TASKS, scorers.SCORERS, PATTERNS]
    before = [dict(shelf) for shelf in shelves]
    yield
    for shelf, content in zip(shelves, before):
        shelf.clear()
        shelf.update(content)


@pytest.mark.parametrize("fence", [f for f in PYTHON if f.free], ids=str)
def test_unmarked_blocks_run(fence, clean):
    code = compile("\n" * fence.line + fence.text, fence.page, "exec")
    exec(code, {"__name__": f"block of {fence.page}", **names()})


@pytest.mark.parametrize("fence", PYTHON, ids=str)
def test_blocks_are_python_and_import_what_exists(fence):
    for node in ast.walk(ast.parse(fence.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sage_rlvr"):
            module = import_module(node.module)
            missing = [a.name for a in node.names if not (hasattr(module, a.name) or _room(f"{node.module}.{a.name}"))]
            assert not missing, f"{fence}: {node.module} has no {', '.join(missing)}"


def _room(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # what should hold it is no package
        return False


def test_the_pages_on_classes_of_your_own_are_run_whole():
    blocks = [f for f in PYTHON if f.page.startswith("howto/own_")]
    assert len(blocks) >= 5
    assert all(f.free and "assert" in f.text for f in blocks)
