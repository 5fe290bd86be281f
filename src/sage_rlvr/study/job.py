"""One run of a study in a process of its own: python -m sage_rlvr.study.job OUT RUN ENGINE. Killed, it goes on when run again."""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from importlib.resources import files
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sage_rlvr import extensions
from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json, refused
from sage_rlvr.models import blend, is_adapter, write_whole
from sage_rlvr.models.folders import whole_folder
from sage_rlvr.processes import end_with_parent, identity
from sage_rlvr.study.plan import Study, read_folder

if TYPE_CHECKING:
    from sage_rlvr.tasks import Problem

STATUS = "status.json"
START = "start.json"  # of the base: what the variants start from
PROBE = "probe"  # of the base: the evaluation that sorts the problems into strata
GO_ON = "run the study's command again"
PART = 10_000  # problems that are demonstrated in one process
GROUP = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what TRL writes for a colocated engine


def main(out: str, run: str, engine: str = "trl") -> int:
    before = dict(os.environ)
    end_with_parent()
    extensions.load()
    study, folder = read_folder(out), Path(out, run)
    folder.mkdir(parents=True, exist_ok=True)
    started = time.time()

    def say(state: str, stage: str, **more: Any) -> None:
        now = {"state": state, "stage": stage, **identity(), "started": started, "updated": time.time(), **more}
        write_whole(folder / STATUS, json.dumps(now) + "\n")

    stage = "start"
    try:
        blended = study.blend_of(run)
        say("running", stage := "sft" if run == "base" else "blend" if blended else "train")
        if run == "base":
            model = make_base(study, Path(out))
        elif blended:
            model = blend_variant(Path(out), run, *blended)
        else:
            model = train_variant(study, Path(out), run, engine)
        if not set(GROUP).isdisjoint(os.environ):
            begin_anew([out, run, engine], before)
        say("running", stage := "eval")
        _evaluate(study, model, folder / "eval", run)
        say("done", stage, model=str(model))
    except Exception as e:
        told = str(e) if isinstance(e, UserError) else refused(e)
        with suppress(OSError):  # a full disk has no room for this either: the run then counts as interrupted
            say("failed", stage, error=told or f"{type(e).__name__}: {e}"[:500])
        if told is None:
            raise
        print(f"{run}: {told}", file=sys.stderr)
        return 2
    return 0


def begin_anew(words: list[str], before: dict[str, str]) -> None:
    """The same process with nothing in it, for the evaluation: an engine that shared the training gives its GPU back with the
    process alone. Begun anew, in the environment it had before, the run finds its training finished."""
    sys.stdout.flush()
    sys.stderr.flush()
    own = {name: value for name, value in before.items() if name not in GROUP}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "sage_rlvr.study.job", *words], own)


# ---- the base ------------------------------------------------------------------------------------------------------


def start_model(out: Path) -> str:
    """What the variants start from."""
    return read_json(out / "base" / START, model=str)["model"]


def make_base(study: Study, out: Path) -> str:
    """What the variants start from, made or found, and written down."""
    model = build_base(study.base, out / "base")
    write_whole(out / "base" / START, json.dumps({"model": model}) + "\n")
    return model


def build_base(base: dict[str, Any], folder: Path) -> str:
    """The model after SFT, or as it is where ``base`` names no SFT stage."""
    from sage_rlvr.launch import sft
    from sage_rlvr.launch.recipes import load_recipe
    from sage_rlvr.models import scratch_model

    model = base.get("model_name_or_path")
    if model is None:
        model = str(scratch_model(folder / "scratch", **base["scratch"]))
    elif Path(model).name == model and packaged(model).is_dir():  # a user's own path, joined to ours, would be itself
        model = str(_copied(packaged(model), folder / "model"))
    stage = base.get("sft")
    if stage:
        recipe = load_recipe(stage) if isinstance(stage, str) else dict(stage)
        run, config = sft.from_recipe(recipe, folder / "sft", model)
        rows = demonstration_rows(**base["demonstrations"]) if "demonstrations" in base else None
        model = str(sft.run_sft(run, config, dataset=rows, go_on=GO_ON))
    return model


def packaged(model: str) -> Path:
    """Where a model that ships with the studies would lie."""
    return Path(str(files("sage_rlvr").joinpath("studies", model)))


def _copied(model: Path, to: Path) -> Path:
    """The study keeps its own copy: another installation can go on with it."""
    if not to.is_dir():
        with whole_folder(to) as part:
            shutil.copytree(model, part, dirs_exist_ok=True)
    return to


def demonstration_rows(
    problems: int,
    after: int = 0,
    skew: float = 0.9,
    seed: int = 0,
    task: str = "countdown-ltr",
    guesses: float = 0.0,
    copies: int = 1,
) -> list[dict[str, str]]:
    """Problems of a left-to-right countdown with one demonstration each, in the symbols format (METHOD section 10).

    ``after``: the first so many problems of the seed are left to RL. ``copies``: how often each problem is shown, its numbers
    in a new order every time. ``guesses``: the share of demonstrations that are guesses.
    """
    from sage_rlvr.tasks import get_task, to_messages
    from sage_rlvr.tasks.countdown import reordered

    generate = get_task(task).generate
    if generate is None:
        raise UserError(f"demonstrations: task {task!r} is not generated here; name countdown-ltr or countdown-hard.")
    first = generate(after + problems, seed, "train")[after:]
    made = first + [reordered(p, copy) for copy in range(1, copies) for p in first]
    prompts = [to_messages(p, "symbols")[0]["content"] for p in made]
    answers = _demonstrated(made, skew, seed, guesses)
    return [{"prompt": p, "completion": answer} for p, answer in zip(prompts, answers)]


def _demonstrated(made: "Sequence[Problem]", skew: float, seed: int, guesses: float) -> list[str]:
    """One demonstration per problem. All solutions of a hard problem take a millisecond: many problems, every core."""
    from sage_rlvr.tasks import demonstrations

    parts = [made[i : i + PART] for i in range(0, len(made), PART)]
    if len(parts) == 1:
        return demonstrations(made, skew, seed, guesses)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # a fork would take locks and CUDA along
        done = pool.map(demonstrations, parts, repeat(skew), repeat(seed), repeat(guesses))
        return [answer for part in done for answer in part]


# ---- a variant -----------------------------------------------------------------------------------------------------


def train_variant(study: Study, out: Path, run: str, engine: str = "trl") -> str:
    settings = study.settings_of(run)
    settings.pop("sft", None)  # the base has been through it
    settings |= {"model_name_or_path": start_model(out), "output_dir": str(out / run / "train")}
    recipe = out / run / "recipe.yaml"
    write_whole(recipe, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    if engine == "verl":
        from sage_rlvr.study import verl

        return str(verl.train(recipe, study.evaluate.get("path", {}).get("steps", []), GO_ON))
    from sage_rlvr.launch.run import train

    return str(train(["--config", str(recipe)], GO_ON))


def blend_variant(out: Path, run: str, source: str, weight: float) -> str:
    """Weights between the base and what another run trained; they are made anew where they lie, which takes seconds."""
    trained = trained_weights(out, run, source)
    base = None if is_adapter(trained) else start_model(out)
    return str(blend(trained, out / run / "train", weight, base, force=True))


def trained_weights(out: Path, run: str, source: str) -> Path:
    """Of the run that a blend is made of; in a study that goes on from records they are not there."""
    status, folder = out / source / STATUS, out / source / "train"
    if not status.is_file() or read_json(status).get("state") != "done":
        raise UserError(f"{run} is made of the weights of {source}, which is not done: run that first.")
    if not (folder / "config.json").is_file() and not is_adapter(folder):
        raise UserError(
            f"{run} is made of the weights of {source}, and {folder} is not there: remove {status} and run the study again, to "
            "train it here."
        )
    return folder


def _evaluate(study: Study, model: str, folder: Path, run: str) -> None:
    """The run's last weights, then those of the steps that ``path`` names, each in a folder of its own; of the base its probe."""
    from sage_rlvr.evaluate.backends import Engines
    from sage_rlvr.evaluate.run import EvalArguments, evaluate

    settings = {"run": run, **{key: value for key, value in study.evaluate.items() if key != "primary"}}
    path = settings.pop("path", {})
    with closing(Engines()) as engines:
        evaluate(EvalArguments(**{"model": model, "out": str(folder), **settings}), engines=engines)
        if run == "base" and (seed := study.probe_seed) is not None:
            own = {
                "model": model,
                "out": str(folder.with_name(PROBE)),
                "seeds": [seed, seed],
            }  # one number alone: how many
            evaluate(EvalArguments(**{**settings, **own}), engines=engines)
        for step in path.get("steps", []) if run != "base" and not study.blend_of(run) else []:
            own = {key: value for key, value in path.items() if key != "steps"}
            weights = {"model": str(folder.parent / "train" / f"checkpoint-{step}"), "out": str(at_step(folder, step))}
            evaluate(EvalArguments(**{**settings, **own, **weights}), engines=engines)


def at_step(folder: Path, step: int) -> Path:
    """Where the evaluation of a run's earlier weights lies: beside that of its last ones."""
    return folder.with_name(f"{folder.name}-{step}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
