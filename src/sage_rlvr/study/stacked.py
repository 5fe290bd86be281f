"""A study's runs trained and measured in stacks: ``sage-rlvr study run FILE --engine stacked``.

The folder is that of any study: a run's status, log, weights and counts lie where they always do, so that tables, frontiers and
records are made from it as from others, and either engine goes on where the other stopped. What is killed loses the stack it
was at, a minute or two.
"""

import copy
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from fnmatch import fnmatch
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from sage_rlvr import lock
from sage_rlvr.errors import Failed, UserError
from sage_rlvr.launch.recipes import merged
from sage_rlvr.models import write_whole
from sage_rlvr.models.folders import whole_folder
from sage_rlvr.models.scratch import scratch_model
from sage_rlvr.processes import identity
from sage_rlvr.provenance import made_with
from sage_rlvr.stacked.measure import measure
from sage_rlvr.stacked.model import Stack
from sage_rlvr.stacked.teach import teach
from sage_rlvr.stacked.train import Run, size_of, train
from sage_rlvr.stacked.world import FORMAT, Problems, World
from sage_rlvr.stats.counts import COUNTS, VERSION
from sage_rlvr.study.job import (
    PROBE,
    START,
    STATUS,
    at_step,
    build_base,
    demonstration_rows,
    start_model,
    trained_weights,
)  # fmt: skip
from sage_rlvr.study.plan import Study, load_study, open_folder
from sage_rlvr.study.run import LOCK, status_of
from sage_rlvr.tasks import load_task
from sage_rlvr.train.config import SAGEConfig

# settings of a recipe that are not SAGEConfig's
BESIDE = {"task", "rows", "prompt_format", "decontaminate", "random_reward"}
DEFAULT = {"cuda": 12, "cpu": 4}  # runs of a stack
PROCESSES = {"cuda": 2, "cpu": 1}  # stacks at once: while one process starts kernels, the other's compute
EVALUATED = {"n": 1, "seeds": 1, "limit": None, "max_tokens": 16}
FIXED = {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0, "top_k": 0, "prompt_format": FORMAT}  # of an evaluation
Watch = Callable[[Study, Path], None]
LOOK_S = 3.0


def run_stacked(
    source: str | Path,
    out: str | Path,
    jobs: int | None = None,
    watch: Watch = lambda study, out: None,
    only: str = "*",
    minutes: float | None = None,
) -> tuple[Study, list[str]]:
    """Runs what is missing, seed by seed; answers the study and the runs that are still not done. ``jobs``: runs per stack.
    ``only``: a pattern of runs. ``minutes``: no stack begins that would end later."""
    study, out, began = load_study(source), Path(out), time.monotonic()
    _refuse(study)
    with lock.held(out / LOCK):
        open_folder(study, out)
        engine = _Engine(study, out, watch, jobs)
        most = jobs or DEFAULT[engine.device]
        left = [run for run in study.runs()[1:] if fnmatch(run, only) and status_of(out, run)["state"] != "done"]
        trained = [run for run in left if not study.blend_of(run)]
        stacks, longest = list(_stacks(study, trained, most)), 0.0
        blends = [run for run in left if (blend := study.blend_of(run)) and blend[0] not in trained]
        stacks += [blends[i : i + most] for i in range(0, len(blends), most)]  # of what was trained before

        def fits() -> bool:
            return minutes is None or time.monotonic() - began + longest <= 60 * minutes

        if (processes := min(PROCESSES[engine.device], len(stacks))) > 1:
            with _Workers(source, out, processes, most) as workers:
                while stacks or workers.busy:
                    while stacks and workers.idle and fits():
                        workers.give(stacks.pop(0))
                    if not workers.busy:
                        break
                    longest = max([longest, *workers.ended(LOOK_S)])
                    watch(study, out)
        while processes == 1 and stacks and fits():
            start = time.monotonic()
            engine.run(stacks.pop(0))
            longest = max(longest, time.monotonic() - start)
    return study, [run for run in left if status_of(out, run)["state"] != "done"]


class _Workers:
    """Processes that train a stack each, and end with this one."""

    def __init__(self, source: str | Path, out: Path, count: int, most: int):
        spawn = get_context("spawn")  # a fork would take this one's CUDA with it
        self.idle: list[Connection] = []
        self.busy: dict[Connection, float] = {}  # since when
        self._processes = []
        for _ in range(count):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_work, args=(str(source), str(out), there, os.getpid(), most), daemon=True)
            process.start()
            there.close()
            self.idle.append(here)
            self._processes.append(process)

    def give(self, names: list[str]) -> None:
        worker = self.idle.pop()
        with _told():
            worker.send(names)
        self.busy[worker] = time.monotonic()

    def ended(self, timeout_s: float) -> list[float]:
        """Waits so long for one to end; answers what those that ended took, in seconds."""
        took = []
        for worker in wait([*self.busy], timeout_s):
            assert isinstance(worker, Connection)
            with _told():
                worker.recv()
            took.append(time.monotonic() - self.busy.pop(worker))
            self.idle.append(worker)
        return took

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


@contextmanager
def _told() -> Iterator[None]:
    """Of a process that died there is only the end of its pipe."""
    try:
        yield
    except (EOFError, OSError):
        raise Failed(
            "a process of the stacked engine ended; its message stands above. If memory was short, give a smaller --jobs. "
            "The same command goes on."
        ) from None


def _work(source: str, out: str, asked: Connection, parent: int, most: int) -> None:
    def orphan(study: Study, out: Path) -> None:
        if os.getppid() != parent:  # whoever goes on with the study would do the same runs
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends us
    engine = _Engine(load_study(source), Path(out), orphan, most)
    while True:
        try:
            names = asked.recv()
        except EOFError:
            return
        engine.run(names)
        asked.send(names)


def _refuse(study: Study) -> None:
    """An evaluation, or prompts, that the stack would not make as they are asked for."""
    asked = {name: study.evaluate[name] for name in FIXED if name in study.evaluate}
    odd = [f"evaluate: {name}: {value!r}" for name, value in asked.items() if value != FIXED[name]]
    odd += [f"evaluate: seeds: {study.evaluate['seeds']!r}"] * (not isinstance(study.evaluate.get("seeds", 1), int))
    for variant, settings in study.variants.items():
        if (own := merged(study.train, settings).get("prompt_format")) != FORMAT:
            odd.append(f"{variant}: prompt_format: {own!r}")
    if odd:
        raise UserError(
            f"study {study.name} has {odd[0]}, and the stacked engine samples at temperature 1 from prompts of the format "
            f"{FORMAT!r}: leave --engine out, or change that."
        )


def _stacks(study: Study, runs: Sequence[str], most: int) -> Iterator[list[str]]:
    """Runs that may be stacked, the first seed's first."""
    alike: dict[Any, list[str]] = {}
    turn = {run: study.seeds_of(study.variant_of(run)[0]).index(study.variant_of(run)[1]) for run in runs}
    for run in sorted(runs, key=lambda run: turn[run]):
        alike.setdefault((_data(study, run), size_of(_config(study, run)[0])), []).append(run)
    groups = [own[i : i + most] for own in alike.values() for i in range(0, len(own), most)]
    return iter(sorted(groups, key=lambda group: turn[group[0]]))


def _data(study: Study, run: str) -> tuple[str, int | None]:
    settings = study.settings_of(run)
    if "task" not in settings:
        raise UserError(f"run {run} names no task: the stacked engine trains on countdown-ltr and its kin alone.")
    return settings["task"], settings.get("rows")


def _config(study: Study, run: str) -> tuple[SAGEConfig, float | None]:
    """Its settings, and the chance of a random reward."""
    settings = study.settings_of(run)
    known = {f.name for f in fields(SAGEConfig)}
    if odd := sorted(set(settings) - known - BESIDE):
        raise UserError(
            f"run {run}: the stacked engine has no {', '.join(odd)}: leave --engine out, or take that out of the study."
        )
    own: dict[str, Any] = {key: value for key, value in settings.items() if key in known}
    plain: dict[str, Any] = {"output_dir": "", "use_cpu": True, "report_to": "none"}
    return SAGEConfig(**(plain | own)), settings.get("random_reward")


class _Engine:
    """What all stacks of a study share: the base, the worlds and their problems."""

    def __init__(self, study: Study, out: Path, watch: Watch, jobs: int | None = None):
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.study, self.out, self._watch, self._looked = study, out, partial(watch, study, out), 0.0
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.most = jobs or DEFAULT[self.device]
        self.compiled = self.device == "cuda"  # half a minute, once
        self.dtype = torch.bfloat16 if study.train.get("bf16") else torch.float32  # as autocast: weights stay float32
        if self.device == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32
        self.asked = EVALUATED | {key: study.evaluate[key] for key in EVALUATED if key in study.evaluate}
        if not (out / "base" / START).is_file():
            self._say("base", "running", "sft")
            write_whole(out / "base" / START, json.dumps({"model": self._base()}) + "\n")
        folder = start_model(out)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tests = {}
        for task in study.evaluate["tasks"]:
            world = World(task, self.tokenizer, self.device)
            self.tests[task] = world, world.problems(load_task(task, limit=self.asked["limit"], split="test"))
        self.drawn: dict[tuple[str, int | None], tuple[World, Problems]] = {}  # (task, rows) → its training problems
        done = status_of(out, "base")["state"] == "done"
        unprobed = study.probe_seed is not None and not (out / "base" / PROBE / COUNTS).is_file()
        if not done or unprobed:
            self._say("base", "running", "eval")
            own = Stack.of(self.model, 1, self.device, self.dtype)
            if not done:
                self._measure(own, ["base"])
            if unprobed:
                self._count(own, ["base"], PROBE, self.asked | {"seeds": [study.probe_seed]})
            self._say("base", "done", "eval", model=folder)

    # ---- a stack ------------------------------------------------------------------------------------------------------

    def run(self, names: list[str]) -> None:
        """Trained runs, and then the blends that are made of them; or blends of what was trained before."""
        if not self.study.blend_of(names[0]):
            self._train(names)
            done = [name for name in names if status_of(self.out, name)["state"] == "done"]
            names = [run for run in self.study.runs() if (blend := self.study.blend_of(run)) and blend[0] in done]
        for i in range(0, len(names), self.most):
            self._blend(names[i : i + self.most])
        self._watch()

    def _blend(self, names: list[str]) -> None:
        """Their weights lie between the base's and a trained run's: nothing is trained."""
        started, stack = time.time(), Stack.of(self.model, len(names), self.device, self.dtype, self.compiled)
        for r, name in enumerate(names):
            source, weight = self.study.blend_of(name) or ("", 0.0)
            trained = load_file(trained_weights(self.out, name, source) / "model.safetensors")
            for part, w in stack.weights.items():
                w[r].lerp_(trained[part].to(w), weight)
            self._say(name, "running", "blend", started=started)
        self._measure(stack, names)
        for r, name in enumerate(names):
            self._done(stack, r, name, started, len(names))

    def _train(self, names: list[str]) -> None:
        configs = [_config(self.study, name) for name in names]
        runs = [Run(name, args, chance) for name, (args, chance) in zip(names, configs)]
        where = _data(self.study, names[0])
        if where not in self.drawn:
            world = World(where[0], self.tokenizer, self.device)
            self.drawn[where] = world, world.problems(load_task(where[0], limit=where[1], split="train"))
        started = time.time()
        stack, base = (Stack.of(self.model, n, self.device, self.dtype, self.compiled) for n in (len(names), 1))
        every, path = max(1, int(runs[0].args.logging_steps)), self.study.evaluate.get("path", {})
        for name in names:
            (self.out / name / "train").mkdir(parents=True, exist_ok=True)
            self._say(name, "running", "train", started=started)

        def at(step: int) -> None:
            if step % every == 0 or step == runs[0].args.max_steps:
                for run in runs:
                    _write_log(self.out / run.name / "train" / "log.jsonl", run.log, every)
                self._look()
            if step in path.get("steps", []):
                self._measure(stack, names, step, path)

        world, problems = self.drawn[where]
        train(runs, stack, base, world, problems, at)
        self._measure(stack, names)
        for r, name in enumerate(names):
            if (step := runs[r].diverged) is not None:
                error = f"a number was not finite at step {step}: a smaller learning_rate, or another beta"
                self._say(name, "failed", "train", started=started, error=error)
                continue
            self._done(stack, r, name, started, len(names))

    def _done(self, stack: Stack, r: int, name: str, started: float, beside: int) -> None:
        """Saves the weights of the stack's run r, which shared its time with ``beside`` runs, itself among them."""
        folder, base = self.out / name / "train", copy.deepcopy(self.model.state_dict())
        stack.put(r, self.model)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        self.model.load_state_dict(base)  # the next stack starts from it again
        self._say(name, "done", "eval", started=started, seconds=(time.time() - started) / beside, model=str(folder))

    def _measure(
        self, stack: Stack, names: list[str], step: int | None = None, over: dict[str, Any] | None = None
    ) -> None:
        asked = self.asked | {key: value for key, value in (over or {}).items() if key in EVALUATED}
        folder = Path("eval") if step is None else at_step(Path("eval"), step)
        self._count(stack, names, folder.name, asked | {"seeds": range(asked["seeds"])})

    def _count(self, stack: Stack, names: list[str], where: str, asked: dict[str, Any]) -> None:
        """Writes every run's counts.json, as ``stats/counts.py`` keeps them: which solutions were found is left out."""
        found = {
            task: measure(stack, world, problems, asked["n"], asked["seeds"], asked["max_tokens"])
            for task, (world, problems) in self.tests.items()
        }
        for r, name in enumerate(names):
            folder = self.out / name / where
            folder.mkdir(parents=True, exist_ok=True)
            about = {
                "run": name,
                "model": str(self.out / name / "train"),
                "settings": asked | {"seeds": len(asked["seeds"]), "engine": "stacked"},
                "notes": [],
            }
            record = {"version": VERSION, **about, "tasks": {task: x.cells(r) for task, x in found.items()}}
            write_whole(folder / COUNTS, json.dumps(record) + "\n")
            write_whole(folder / "made.json", json.dumps(made_with()) + "\n")

    def _say(self, run: str, state: str, stage: str, **more: Any) -> None:
        (self.out / run).mkdir(parents=True, exist_ok=True)
        now = {"state": state, "stage": stage, **identity(), "started": time.time(), "updated": time.time(), **more}
        write_whole(self.out / run / STATUS, json.dumps(now) + "\n")
        self._look()

    def _look(self) -> None:
        """A look reads the state of every run of the study: every few seconds, that is."""
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            self._watch()

    # ---- the base -----------------------------------------------------------------------------------------------------

    def _base(self) -> str:
        """A scratch model is taught here; any other base is made as for the other engine."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        base = self.study.base
        if "scratch" not in base or not isinstance(base.get("sft"), dict) or "demonstrations" not in base:
            return build_base(base, self.out / "base")
        sft = base["sft"]
        folder = scratch_model(self.out / "base" / "scratch", **base["scratch"])
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        world = World(base["demonstrations"].get("task", "countdown-ltr"), tokenizer, self.device)
        stack = Stack.of(model, 1, self.device)
        rows = demonstration_rows(**base["demonstrations"])
        teach(stack, world, [rows], sft["max_steps"], sft["per_device_train_batch_size"], float(sft["learning_rate"]))
        stack.put(0, model)
        with whole_folder(self.out / "base" / "model") as part:
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
        return str(self.out / "base" / "model")


def _write_log(path: Path, log: list[dict[str, Any]], every: int) -> None:
    """Means over ``every`` steps, as a trainer logs them; what was written is taken off ``log``."""
    lines = []
    while log:
        part, log[:] = log[:every], log[every:]
        names = dict.fromkeys(name for entry in part for name in entry)
        means = {name: sum(float(entry[name]) for entry in part) / len(part) for name in names}
        lines.append(json.dumps(means | {"step": int(part[-1]["step"])}) + "\n")
    first = lines and json.loads(lines[0])["step"] <= every
    with path.open("w" if first else "a", encoding="utf-8") as f:
        f.writelines(lines)
