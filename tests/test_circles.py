"""No module imports one that imports it, directly or round a corner; imports inside functions count too."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"


def imports(package: Path) -> dict[str, set[str]]:
    """module → those of the same package that it imports anywhere in its text."""
    paths = {".".join(p.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): p
             for p in package.rglob("*.py")}  # fmt: skip
    out: dict[str, set[str]] = {}
    for name, path in paths.items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: write the whole name of the module"
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {i if i in paths else node.module for i in inner}
        out[name] = {n for n in named if n in paths} - {name}
    return out


def test_no_module_imports_one_that_imports_it():
    TopologicalSorter(imports(SOURCE / "sage_rlvr")).prepare()  # CycleError names the circle


def test_a_circle_is_seen_inside_functions_and_round_a_corner(tmp_path):
    package = tmp_path / "three"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("from three import b\n")
    (package / "b.py").write_text("import three.c\n")
    TopologicalSorter(imports(package)).prepare()
    (package / "c.py").write_text("def late():\n    from three.a import x\n")
    with pytest.raises(CycleError, match="cycle"):
        TopologicalSorter(imports(package)).prepare()
