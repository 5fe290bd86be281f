"""A study file: what is trained from what, and how it is measured.

base:      {model: Qwen/Qwen2.5-Math-7B, sft: sft.yaml}                   # or scratch: {…} and demonstrations: {…}
train:     {extends: paper.yaml, max_steps: 1000}                         # settings every variant shares; may extend a recipe
variants:
  grpo:    {guide: none}                                                  # laid over train; may extend a recipe
  branch:  {extends: branch.yaml}
  swept:   {guide: none, sweep: {beta: [0.01, 0.05]}}                     # becomes swept+beta0.01 and swept+beta0.05
  more:    {guide: none, seeds: [3407, 0, 1]}                             # seeds of its own
  half:    {blend_of: grpo, weight: 0.5}                                  # not trained: base + weight · (grpo − base)
seeds:     [3407]
evaluate:  {tasks: [aime, amc23], n: 256, seeds: 5}                       # path: {steps: [50, 100], n: 64}: checkpoints, too
                                                                          # primary: {k: 64, strata: [0, 2, 8, 25]}: frontier.py

A study may extend another, beside it or packaged, and say what differs; null takes a part, a setting or a variant out:

extends:   table1
variants:  {more: null}
seeds:     [0, 1]
"""

import json
import re
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.launch.recipes import layers, list_recipes, load_recipe, merged
from sage_rlvr.models import write_whole
from sage_rlvr.names import field_keys, near
from sage_rlvr.values import refuse_gone

RECORD = "study.json"
BLEND = "blend_of"  # of a variant that is not trained: the variant between which and the base its weights lie


@dataclass(frozen=True)
class Study:
    name: str
    base: dict[str, Any]
    train: dict[str, Any]
    variants: dict[str, dict[str, Any]]
    seeds: list[int]
    evaluate: dict[str, Any]

    def __post_init__(self) -> None:
        if not self.variants or not self.seeds:
            raise UserError(f"study {self.name}: it needs at least one entry in variants: and one in seeds:.")
        for variant in self.variants:
            if not re.fullmatch(r"[A-Za-z0-9_.+-]+", variant) or variant == "base":
                raise UserError(
                    f"study {self.name}: variant {variant!r} becomes a folder name; use letters, digits and _ . + -."
                )
            seeds = self.seeds_of(variant)
            if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
                raise UserError(f"study {self.name}: seeds of {variant} are {seeds!r}; give a list of whole numbers.")
        if bool(self.base.get("model_name_or_path")) == bool(self.base.get("scratch")):
            raise UserError(f"study {self.name}: base: names either model or scratch.")
        if not self.evaluate.get("tasks"):
            raise UserError(f"study {self.name}: evaluate: names no tasks.")
        self._check_blends()
        self._check_path()
        self._check_primary()

    def _check_blends(self) -> None:
        trained = [name for name, own in self.variants.items() if BLEND not in own]
        for variant, own in self.variants.items():
            if BLEND not in own:
                continue
            source, weight = own[BLEND], own.get("weight")
            if source not in trained:
                raise UserError(
                    f"study {self.name}: {variant} is a blend of {source!r}, and no such variant is trained here: "
                    f"{near(str(source), trained)}."
                )
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
                raise UserError(
                    f"study {self.name}: {variant} has weight {weight!r}; give a number from 0 (the base) on, 1 is {source}."
                )
            if odd := sorted(own.keys() - {BLEND, "weight", "seeds"}):
                raise UserError(
                    f"study {self.name}: {variant} is a blend, which is not trained: take out {', '.join(odd)}."
                )
            if lacking := [seed for seed in self.seeds_of(variant) if seed not in self.seeds_of(source)]:
                raise UserError(
                    f"study {self.name}: {variant} has the seed {lacking[0]}, which {source} does not have."
                )

    def _check_primary(self) -> None:
        """What the study is judged by: pass@k, and the problems' strata by the base's right answers (see frontier.py)."""
        primary = self.evaluate.get("primary", {})
        k, edges = (primary.get("k"), primary.get("strata", [])) if isinstance(primary, dict) else (None, [])
        rising = isinstance(edges, list) and all(type(edge) is int and edge >= 0 for edge in edges)
        if primary and not (type(k) is int and k > 1 and rising and edges == sorted(set(edges))):
            raise UserError(
                f"study {self.name}: primary is {primary!r}; name k and rising numbers of right answers, as in "
                "{k: 64, strata: [0, 2, 8, 25]}."
            )

    @property
    def probe_seed(self) -> int | None:
        """The seed of the base's probe, which sorts the problems into strata: one that no run is evaluated with. A run near the
        base, evaluated with the probe's own draws, would be right where the probe was by luck."""
        if not self.evaluate.get("primary", {}).get("strata"):
            return None
        seeds = self.evaluate.get("seeds", 1)
        many = seeds if isinstance(seeds, list) else [seeds]
        return int(many[0]) if len(many) == 1 else max(many) + 1  # a single number: how many

    def _check_path(self) -> None:
        """Checkpoints that are to be evaluated are written, and kept until then."""
        path = self.evaluate.get("path", {})
        if not isinstance(path, dict) or (path and not path.get("steps")):
            raise UserError(f"study {self.name}: path is {path!r}; name steps, as in {{steps: [50, 100], n: 64}}.")
        for variant in self.variants if path else ():
            settings = self.settings_of(f"{variant}-s{self.seeds_of(variant)[0]}")
            every, last = settings.get("save_steps", 500), settings.get("max_steps", 0)
            lost = [step for step in path["steps"] if type(step) is not int or step % every or not 0 < step < last]
            if lost or settings.get("save_total_limit"):
                raise UserError(
                    f"study {self.name}: path names steps {path['steps']}, and {variant} keeps every {every} of {last} steps, "
                    f"{settings.get('save_total_limit') or 'all'} of them: set save_steps so that it divides them, and "
                    "save_total_limit to null."
                )

    def runs(self) -> list[str]:
        """Every run's folder name, the base first."""
        return ["base", *(f"{v}-s{seed}" for v in self.variants for seed in self.seeds_of(v))]

    def seeds_of(self, variant: str) -> list[int]:
        """Its own, or those of all; a blend's are those of what it is made of."""
        own = self.variants[variant]
        below = self.variants.get(own[BLEND], {}) if BLEND in own else {}
        return own.get("seeds", below.get("seeds", self.seeds))

    def blend_of(self, run: str) -> tuple[str, float] | None:
        """Of a blend: the run whose weights it goes towards, and how far. None of what is trained."""
        variant, seed = self.variant_of(run)
        own = self.variants.get(variant, {})
        return (f"{own[BLEND]}-s{seed}", own["weight"]) if BLEND in own else None

    def variant_of(self, run: str) -> tuple[str, int]:
        """(variant, seed) of a run; the base is a variant of its own."""
        if run == "base":
            return run, 0
        name, _, seed = run.rpartition("-s")
        return name, int(seed)

    @staticmethod
    def family_of(variant: str) -> str:
        """What stands before the +: the variant that was swept, or itself."""
        return variant.partition("+")[0]

    def settings_of(self, run: str) -> dict[str, Any]:
        """The recipe of one run: shared settings, the variant's over them, its seed. A blend has those of what it is made of."""
        if blend := self.blend_of(run):
            return self.settings_of(blend[0])
        variant, seed = self.variant_of(run)
        own = {key: value for key, value in self.variants[variant].items() if key != "seeds"}
        return merged(merged(self.train, own), {"seed": seed})


def load_study(path_or_name: str | Path) -> Study:
    """A study file, or a packaged one by name ("mini", "studies/mini.yaml")."""
    path = _file(path_or_name)
    content = _content(path)
    known = {f.name for f in fields(Study)} - {"name"}
    for key in content:
        if key not in known:
            raise UserError(
                f"{path.name}: there is no part {key!r} in a study: {near(key, [*sorted(known), 'extends'])}."
            )
    for part in sorted(known - {"train"} - set(content)):
        raise UserError(f"{path.name}: the part {part!r} is missing.")
    train = _extended(content.get("train") or {})
    variants = _swept({name: _extended(v or {}) for name, v in content["variants"].items()})
    for part, settings in {"train": train, **variants}.items():
        refuse_gone(settings, f"{path.name}, {part}: ")
    return Study(path.stem, content["base"], train, variants, list(content["seeds"]), content["evaluate"])


def _file(path_or_name: str | Path) -> Path:
    path = Path(path_or_name)
    if path.is_file():
        return path
    plain = str(path_or_name).removeprefix("studies/").removesuffix(".yaml")
    packaged = Path(str(files("sage_rlvr").joinpath("studies", f"{plain}.yaml")))
    if not packaged.is_file():
        raise UserError(
            f"there is no study {str(path_or_name)!r}, neither as a file nor with the package: "
            f"{near(plain, list_studies())}."
        )
    return packaged


def _content(path: Path) -> dict[str, Any]:
    """What a file says, laid over the study it extends."""
    whole: dict[str, Any] = {}
    for at, own in layers(path.resolve(), _below, "study", "qwen1.5b"):
        own = _by_field(own, at.name)
        if "train" in whole:
            whole["train"] = _extended(whole["train"] or {})  # what its nulls took out of a recipe stays out
        whole = merged(whole, own) if whole else own
    return whole


def _by_field(own: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings of a study file under the names of TRL's fields, whichever of the two was written."""
    own = dict(own)
    for part in ("base", "train"):
        if isinstance(own.get(part), dict):
            own[part] = field_keys(own[part], f"{where}, {part}")
    if isinstance(own.get("variants"), dict):
        each = own["variants"].items()
        own["variants"] = {name: field_keys(v, f"{where}, {name}") if isinstance(v, dict) else v for name, v in each}
    if isinstance(own.get("evaluate"), dict):
        asked = {"tasks" if key == "task" else key: value for key, value in own["evaluate"].items()}
        own["evaluate"] = asked | ({"tasks": [asked["tasks"]]} if isinstance(asked.get("tasks"), str) else {})
    return own


def _below(file: Path, named: str) -> Path:
    beside = file.parent / named
    return (beside if beside.is_file() else _file(named)).resolve()


def list_studies() -> dict[str, str]:
    shelf = files("sage_rlvr").joinpath("studies")
    found = {
        f.name.removesuffix(".yaml"): f.read_text(encoding="utf-8") for f in shelf.iterdir() if f.name.endswith(".yaml")
    }
    return {name: text.partition("\n")[0].removeprefix("#").strip() for name, text in sorted(found.items())}


def _extended(part: dict[str, Any]) -> dict[str, Any]:
    part = dict(part)
    below = part.pop("extends", None)
    if below is None:
        return part
    if below.removesuffix(".yaml") not in list_recipes() and not Path(below).is_file():
        raise UserError(f"extends: {below} is no recipe: {near(str(below), list_recipes())}.")
    return merged(load_recipe(below), part)


def _swept(variants: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A variant with ``sweep: {setting: [values]}`` becomes one for each value."""
    out: dict[str, dict[str, Any]] = {}
    for name, variant in variants.items():
        sweep = variant.pop("sweep", None)
        if sweep is None:
            out[name] = variant
            continue
        if not isinstance(sweep, dict) or len(sweep) != 1 or not isinstance(next(iter(sweep.values())), list):
            raise UserError(
                f"variant {name}: sweep names one setting and a list of values, as in {{beta: [0.01, 0.05]}}."
            )
        ((setting, values),) = sweep.items()
        out |= {f"{name}+{setting}{value}": merged(variant, {setting: value}) for value in values}
    return out


def open_folder(study: Study, out: Path) -> None:
    """Claims ``out`` for this study. A folder of another one is refused: one of another base or evaluation, or where a run has
    begun that this study has not, or has with other settings. What has not begun may be added, changed and taken out."""
    record, text = out / RECORD, json.dumps(asdict(study), indent=1, ensure_ascii=False)
    if record.is_file():
        mine, theirs = Study(**json.loads(text)), read_folder(out)
        refuse_other(theirs, mine, out)
        for run in (run for run in theirs.runs()[1:] if (out / run).is_dir()):
            now, was = (
                x.settings_of(run) | {BLEND: x.blend_of(run)} if run in x.runs() else {} for x in (mine, theirs)
            )
            other = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
            if other:
                differ = f"has other settings ({', '.join(other)})" if now else "is not in this study"
                raise UserError(
                    f"{out} holds the run {run}, which {differ}: name another --out, or set the study back."
                )
    out.mkdir(parents=True, exist_ok=True)
    write_whole(record, text + "\n")


def refuse_other(theirs: Study, mine: Study, out: Path) -> None:
    for part in ("name", "base", "evaluate"):
        if getattr(theirs, part) != getattr(mine, part):
            raise UserError(f"{out} holds a study whose {part} differs: name another --out, or set {part} back.")


def read_folder(out: str | Path) -> Study:
    record = Path(out) / RECORD
    if not record.is_file():
        raise UserError(
            f"{out} holds no study (there is no {RECORD}): run one with 'sage-rlvr study run FILE --out {out}'."
        )
    return recorded(read_json(record, name=str, base=dict, train=dict, variants=dict, seeds=list, evaluate=dict))


def recorded(content: dict[str, Any]) -> Study:
    """The study of a record, in today's settings. When frontier and confirm were run, coverage and rarity were settings whose
    value was the share; today they are advantages."""
    variants = dict(content["variants"])
    for name, settings in variants.items():
        for old in settings.keys() & {"coverage", "rarity"}:
            rest = {key: value for key, value in settings.items() if key != old}
            variants[name] = rest | {"advantage": old, "advantage_args": {"share": settings[old]}}
    return Study(**{part.name: content[part.name] for part in fields(Study)} | {"variants": variants})
