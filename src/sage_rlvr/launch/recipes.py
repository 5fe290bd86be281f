"""Recipes: YAML files of settings, where one may extend another; the paper's come with the package.

extends: branch.yaml          # beside this file, or a packaged name; may itself extend another
guide_args: {ratio: 0.5}      # mappings are merged key by key, everything else is replaced
sft: null                     # removed
"""

import textwrap
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.names import field_keys, near
from sage_rlvr.strict_yaml import read_yaml

Place = Path | Traversable  # of a file; the latter inside a zip
# what the second line of a packaged recipe says, "# kind: prompts", → how a list calls it. Those in the middle are the kinds of
# advantages (sage_rlvr.advantage)
KINDS = {
    "run": "run these: one GPU, a small model",
    "paper": "the paper's tables and figures",
    "anchors": "anchors: what the policy is held to, and how",
    "prompts": "which prompts count",
    "answers": "which right answers count",
    "signs": "right against wrong",
    "tokens": "which tokens count",
    "controls": "controls: what every claim is to be held against",
    "parts": "parts: what the others extend",
}


def load_recipe(path_or_name: str | Path) -> dict[str, Any]:
    """The settings of a recipe, those it extends merged in. An existing path wins; else a packaged name ("branch",
    "branch.yaml" or "recipes/branch.yaml")."""
    path = Path(path_or_name)
    return _load(path.resolve() if path.is_file() else _packaged(str(path_or_name)))


def list_recipes() -> dict[str, str]:
    """The packaged recipes: name → what its first comment line says."""
    found = {f.name.removesuffix(".yaml"): f for f in _shelf().iterdir() if f.name.endswith(".yaml")}
    return {name: _description(found[name]) for name in sorted(found)}


def recipes_by_kind() -> dict[str, list[str]]:
    """kind → names of the packaged recipes, in the order of KINDS."""
    kinds = {name: _kind(_packaged(name)) for name in list_recipes()}
    return {kind: [name for name in kinds if kinds[name] == kind] for kind in KINDS}


def recipe_lines(width: int = 80) -> list[str]:
    """The packaged recipes as a list to read: by kind, each with what its first line says."""
    about = list_recipes()
    wide = max(map(len, about))
    lines = []
    for kind, names in recipes_by_kind().items():
        lines += ["", f"{KINDS[kind]}"] if names else []
        for name in names:
            lines += textwrap.wrap(
                about[name], width, initial_indent=f"  {name:<{wide}}  ", subsequent_indent=" " * (wide + 4)
            )
    return lines[1:]


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid on ``under``: mappings merge key by key, null removes a key, anything else replaces it."""
    out = dict(under)
    for key, value in over.items():
        if isinstance(value, dict):
            below = out.get(key)
            out[key] = merged(below if isinstance(below, dict) else {}, value)
        elif value is None:
            out.pop(key, None)
        else:
            out[key] = value
    return out


def layers(
    file: Place, find: Callable[[Any, str], Place], kind: str, example: str
) -> list[tuple[Place, dict[str, Any]]]:
    """A YAML file and those it extends by way of ``find``, lowest first: each with what it says itself."""
    found: list[tuple[Place, dict[str, Any]]] = []
    while True:
        names = [str(f) for f, _ in found]
        if str(file) in names:
            loop = " → ".join(Path(name).name for name in [*names[names.index(str(file)) :], str(file)])
            raise UserError(f"{kind} {Path(names[0]).name} extends itself ({loop}): take one extends: out.")
        own = read_yaml(file)
        found.append((file, own))
        if "extends" not in own:
            return found[::-1]
        named = own.pop("extends")
        if not isinstance(named, str):
            raise UserError(f"{file}: extends: {named!r} is not the name of one {kind}; write extends: {example}.")
        file = find(file, named)


def _load(file: Path | Traversable) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for at, own in layers(file, lambda f, named: _beside(f, named) or _packaged(named), "recipe", "branch.yaml"):
        own = field_keys(own, str(at))
        if isinstance(own.get("sft"), str) and (near := _beside(at, own["sft"])):
            own["sft"] = str(near)  # so that it is found from any working directory
        if "guide" in own and own["guide"] is None:  # null removes a setting, and without one the guide is branch
            raise UserError(f"{at}: guide: null leaves the default, branch; write guide: none for no guide.")
        whole = merged(whole, own)
    return whole


def _beside(file: Path | Traversable, named: str) -> Path | None:
    """The file of that name in the same folder; the packaged ones go by name, so that they are the same from anywhere."""
    if not isinstance(file, Path):  # inside a zip
        return None
    path = (file.parent / named).resolve()
    return path if path.is_file() and path.parent != Path(str(_shelf())).resolve() else None


def _shelf() -> Traversable:
    return files("sage_rlvr").joinpath("recipes")


def _packaged(name: str) -> Traversable:
    plain = name.removeprefix("recipes/").removesuffix(".yaml")
    file = _shelf().joinpath(f"{plain}.yaml")
    if "/" in plain or not file.is_file():
        raise UserError(
            f"there is no recipe {name!r}, neither as a file nor with the package: {near(Path(plain).name, list_recipes())} "
            "('sage-rlvr recipes' lists them)."
        )
    return file


def _description(file: Traversable) -> str:
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _kind(file: Traversable) -> str:
    second = file.read_text(encoding="utf-8").splitlines()[1]
    return second.removeprefix("# kind:").strip()
