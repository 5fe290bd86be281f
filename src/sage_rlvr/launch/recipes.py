"""Recipes: YAML files of settings, where one may extend another; the paper's come with the package.

extends: branch.yaml          # beside this file, or a packaged name; may itself extend another
guide_args: {ratio: 0.5}      # mappings are merged key by key, everything else is replaced
sft: null                     # removed
"""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.names import field_keys, near
from sage_rlvr.strict_yaml import read_yaml

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
    return {name: _comment(file, 0) for name, file in shelf("recipes").items()}


def recipes_by_kind() -> dict[str, list[str]]:
    """kind → names of the packaged recipes, in the order of KINDS."""
    kinds = {name: _comment(file, 1).removeprefix("kind: ") for name, file in shelf("recipes").items()}
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


def layers(file: Path, find: Callable[[Path, str], Path], kind: str, example: str) -> list[tuple[Path, dict[str, Any]]]:
    """A YAML file and those it extends by way of ``find``, lowest first: each with what it says itself."""
    read: list[tuple[Path, dict[str, Any]]] = []
    while True:
        files = [f for f, _ in read]
        if file in files:
            loop = " → ".join(f.name for f in [*files[files.index(file) :], file])
            raise UserError(f"{kind} {files[0].name} extends itself ({loop}): take one extends: out.")
        own = read_yaml(file)
        read.append((file, own))
        if "extends" not in own:
            return read[::-1]
        named = own.pop("extends")
        if not isinstance(named, str):
            raise UserError(f"{file}: extends: {named!r} is not the name of one {kind}; write extends: {example}.")
        file = find(file, named)


def _load(file: Path) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for at, own in layers(file, lambda f, named: _beside(f, named) or _packaged(named), "recipe", "branch.yaml"):
        own = field_keys(own, str(at))
        if isinstance(own.get("sft"), str) and (near := _beside(at, own["sft"])):
            own["sft"] = str(near)  # so that it is found from any working directory
        if "guide" in own and own["guide"] is None:  # null removes a setting, and without one the guide is branch
            raise UserError(f"{at}: guide: null leaves the default, branch; write guide: none for no guide.")
        whole = merged(whole, own)
    return whole


def _beside(file: Path, named: str) -> Path | None:
    """The file of that name in the same folder; the packaged ones go by name, so that they are the same from anywhere."""
    path = (file.parent / named).resolve()
    return path if path.is_file() and path not in shelf("recipes").values() else None


def shelf(folder: str) -> dict[str, Path]:
    """name → file, of a folder of YAML files that comes with the package."""
    return {file.stem: file for file in sorted(Path(__file__).resolve().parents[1].joinpath(folder).glob("*.yaml"))}


def _packaged(name: str) -> Path:
    plain, known = name.removeprefix("recipes/").removesuffix(".yaml"), shelf("recipes")
    if plain not in known:
        raise UserError(
            f"there is no recipe {name!r}, neither as a file nor with the package: {near(Path(plain).name, known)} "
            "('sage-rlvr recipes' lists them)."
        )
    return known[plain]


def _comment(file: Path, line: int) -> str:
    return file.read_text(encoding="utf-8").splitlines()[line].removeprefix("#").strip()
