"""The house itself: a light import, a ground floor that stands on torch and NumPy alone, a wheel that carries its recipes."""

import contextlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(code, executable=sys.executable, **more):
    done = subprocess.run(
        [str(executable), "-c", code], capture_output=True, text=True, timeout=1200, check=False, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "room", ["", ".launch.recipes", ".study.run", ".study.console", ".evaluate.results", ".report.explore", ".tasks"]
)
def test_what_only_reads_and_shows_starts_without_the_libraries_that_train(room):
    """They take ten seconds to import: too long for a list of recipes, or to see how a study stands."""
    heavy = ("trl", "transformers", "torch")
    code = f"import sys, json, sage_rlvr{room}; print(json.dumps([m for m in {heavy} if m in sys.modules]))"
    assert json.loads(python(code)) == []


ALONE = """
import sys
from importlib.abc import MetaPathFinder

ALLOWED = set(sys.stdlib_module_names) | {"sage_rlvr", "torch", "numpy", "functorch", "torchgen"} | set(%r)

class OnlyTheGroundFloor(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and not top.startswith("_"):
            raise ModuleNotFoundError(f"{name} is not torch, NumPy or the standard library", name=name)

sys.meta_path.insert(0, OnlyTheGroundFloor())
import torch
from sage_rlvr import Signals, make_guide, anchor_penalty, anchor_reward, pass_at_k, bootstrap_interval, support_metrics
x, mask = -torch.rand(2, 5), torch.ones(2, 5)
for name in ("random", "token", "branch", "tempered"):
    q = make_guide(name)(Signals(x, x, mask, entropies=-x, ref_entropies=-x))
    anchor_penalty(x, x, q, "k3"), anchor_reward(x, x, q, mask)
pass_at_k(8, 2, 4), bootstrap_interval([0.0, 1.0]), support_metrics([1], [1])
try:
    import rich
except ImportError:
    print("alone")
"""


def test_ground_floor_needs_torch_and_numpy_alone():
    torch_needs = ["sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec", "typing_extensions"]
    assert python(ALONE % torch_needs).strip() == "alone"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The built wheel in an empty venv, nothing else in it."""
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(place), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = place.glob("*.whl")
    venv.create(place / "venv")
    interpreter = place / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter)]
    subprocess.run([*pip, "install", "-q", "--no-compile", "--no-deps", str(wheel)], check=True, timeout=1200)
    return interpreter


def test_the_wheel_carries_its_recipes(installed):
    code = (
        "import json; from importlib.resources import files; import sage_rlvr;"
        "print(json.dumps([sage_rlvr.__file__, sorted(f.name for f in files('sage_rlvr').joinpath('recipes').iterdir())]))"
    )
    home, recipes = json.loads(python(code, installed, cwd="/"))
    assert "site-packages" in home
    assert str(ROOT) not in home
    assert {"exact.yaml", "tempered.yaml", "branch.yaml", "grpo.yaml"} <= set(recipes)
    assert sorted(f.name for f in (ROOT / "recipes").iterdir() if f.suffix == ".yaml") == [
        r for r in recipes if r.endswith(".yaml")
    ]


def test_every_public_name_can_be_reached():
    import sage_rlvr

    for name in sage_rlvr.__all__:
        assert getattr(sage_rlvr, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sage_rlvr.nothing
    assert set(sage_rlvr.__all__) <= set(dir(sage_rlvr))


def test_no_args_is_wrong_use_and_help_shows_an_example(capsys):
    from sage_rlvr import cli

    assert cli.main([]) == 2
    for verb in cli.VERBS:
        with contextlib.suppress(SystemExit):  # argparse leaves by this door, with 0
            assert cli.main([verb, "--help"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f"sage-rlvr {verb}" in said.split("example:")[1]
