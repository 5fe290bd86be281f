"""Running a study: the base and, once it is made, every variant × seed, several at a time; what is done is not done again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from sage_rlvr import lock
from sage_rlvr.processes import lives
from sage_rlvr.study.job import START, STATUS
from sage_rlvr.study.plan import Study, load_study, open_folder, read_folder

LOG = "job.log"
LOCK = "writer.lock"  # one study run a folder
JOB_MEMORY = 2 << 30  # bytes a run needs on a machine without a GPU: mostly Python and torch themselves
GRACE_S = 600  # that all runs together have to finish a step and save, once they are told to end
TRAINING = 0.85  # of a run's work; the rest is its evaluation


def default_jobs() -> int:
    """One a GPU; without one, one a core, four at most, and no more than memory allows."""
    import psutil
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    memory = psutil.virtual_memory().available  # not free: what the page cache holds gives way
    return max(1, min(os.cpu_count() or 1, 4, memory // JOB_MEMORY))


def run_study(
    source: str | Path,
    out: str | Path,
    jobs: int | None = None,
    watch: Callable[[Study, Path], None] | None = None,
    only: str = "*",
    admit: Callable[[int], bool] | None = None,
    engine: str = "trl",
) -> tuple[Study, list[str]]:
    """Runs what is missing, seed by seed, so that a study cut short has every variant at the seeds it has, and within a seed
    those first that took longest at others, so that none is left alone at the end; answers the study and the runs that
    failed. ``watch`` is called about twice a second; ``only`` is a pattern of runs, as in "grpo*-s0"; ``admit``, told how many
    run already, says whether one more may start now. ``engine``: trl or verl, which trains."""
    study, out = load_study(source), Path(out)
    if engine == "verl":
        from sage_rlvr.study import verl

        verl.check(study)
        jobs = jobs or 1  # each takes all GPUs
    with lock.held(out / LOCK):
        open_folder(study, out)
        took = _took(study, out)
        order = sorted(study.runs()[1:], key=lambda run: _turn(study, run, took))
        missing = _unfinished(out, ["base", *(run for run in order if fnmatch(run, only))])
        return study, _run(study, out, missing, jobs or default_jobs(), watch, admit, engine)


def _took(study: Study, out: Path) -> dict[str, float]:
    """variant → seconds of the longest of its finished runs."""
    took: dict[str, float] = {}
    for run in study.runs()[1:]:
        status = status_of(out, run)
        if status["state"] == "done" and {"started", "updated"} <= set(status):
            variant = study.variant_of(run)[0]
            took[variant] = max(took.get(variant, 0.0), status["updated"] - status["started"])
    return took


def _turn(study: Study, run: str, took: dict[str, float]) -> tuple[int, float]:
    variant, seed = study.variant_of(run)
    return study.seeds_of(variant).index(seed), -took.get(variant, 0.0)


def _unfinished(out: Path, runs: list[str]) -> list[str]:
    return [run for run in runs if status_of(out, run)["state"] != "done"]


def _run(
    study: Study, out: Path, runs: list[str], jobs: int, watch: Callable[[Study, Path], None] | None = None,
    admit: Callable[[int], bool] | None = None, engine: str = "trl",
) -> list[str]:  # fmt: skip
    waiting = list(runs)
    running: dict[str, subprocess.Popen[bytes]] = {}
    slots: dict[str, int] = {}  # run → which of the jobs' places it holds
    failed: list[str] = []
    try:
        while waiting or running:
            made = "base" not in runs or (out / "base" / START).is_file()  # then it is sampled beside the others
            if "base" in failed and not made:
                waiting.clear()
            for run in [run for run in waiting if made or run == "base"]:
                status = status_of(out, run)
                if status["state"] == "done":
                    waiting.remove(run)
                elif (source := (study.blend_of(run) or [None])[0]) in failed:
                    waiting.remove(run)  # there is nothing to blend
                elif source in waiting or source in running:
                    continue
                elif len(running) == jobs or (status["state"] == "running" and lives(status)):
                    continue  # what a killed study left is still ending; one of another machine is its own locks' affair
                elif admit is None or admit(len(running)):
                    waiting.remove(run)
                    slots[run] = min(set(range(jobs)) - {slots[r] for r in running})
                    running[run] = _start(out, run, slots[run], jobs, engine)
            for run, process in list(running.items()):
                if process.poll() is not None:
                    del running[run]
                    if process.returncode != 0:
                        failed.append(run)  # the others go on
            if watch is not None:
                watch(study, out)
            time.sleep(0.5)
    finally:
        if running:
            _end(list(running.values()))
    return failed


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    """Ctrl-C: trainings finish their step and save on SIGTERM, stores are whole at any moment. A second one kills them."""
    print(
        f"\ninterrupted: {len(running)} run{'s' * (len(running) > 1)} finish the step, save and end. Ctrl-C again ends at once.\n"
        "To go on, run the same command again.",
        file=sys.stderr,
        flush=True,
    )
    for process in running:
        process.send_signal(signal.SIGTERM)
    end = time.monotonic() + GRACE_S
    for i, process in enumerate(running):
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        except KeyboardInterrupt:
            for left in running[i:]:
                left.kill()
            raise


def _start(out: Path, run: str, slot: int, jobs: int, engine: str = "trl") -> subprocess.Popen[bytes]:
    """A process of its own. In a session of its own: a terminal's Ctrl-C reaches the study alone, which lets the runs save."""
    import torch

    (out / run).mkdir(parents=True, exist_ok=True)
    share = str(max(1, (os.cpu_count() or 1) // jobs))  # of the cores: else each run takes all
    env = {"OMP_NUM_THREADS": share, **os.environ}
    if (gpus := torch.cuda.device_count()) > 1 and (engine, jobs) != ("verl", 1):
        env["CUDA_VISIBLE_DEVICES"] = str(slot % gpus)
    with (out / run / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "sage_rlvr.study.job", str(out), run, engine], env=env, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


# ---- where each run stands -----------------------------------------------------------------------------------------


def status_of(out: Path, run: str) -> dict[str, Any]:
    """state: waiting, running, interrupted, failed or done; with the training step and its latest numbers where there are any."""
    try:
        status = json.loads((out / run / STATUS).read_text(encoding="utf-8"))
        _ = status["state"], status["stage"]  # another shape says as little as no file
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {"state": "waiting", "stage": ""}
    if status["state"] == "running" and lives(status) is False:  # of another machine it is believed
        status["state"] = "interrupted"
    return status | _progress(out / run)


def share_done(study: Study, out: Path) -> float:
    """How much of the study's work lies behind us, 0 to 1; a failed run counts as done."""
    weights = dict.fromkeys(study.runs(), 1.0)
    if not study.base.get("sft"):
        weights["base"] = 0.1  # it is only sampled
    return sum(w * _share(study, run, status_of(out, run)) for run, w in weights.items()) / sum(weights.values())


def _share(study: Study, run: str, status: dict[str, Any]) -> float:
    if status["state"] in ("done", "failed"):
        return 1.0
    if status["stage"] == "eval":
        return TRAINING
    steps = study.settings_of(run).get("max_steps", 0) if run != "base" else 0
    return TRAINING * min(1.0, status.get("step", 0) / steps) if steps > 0 else 0.0


def _progress(folder: Path) -> dict[str, Any]:
    try:
        with (folder / "train" / "log.jsonl").open("rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - 8192))
            lines = f.read().decode(errors="replace").splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "loss" in entry:
            return {k: entry.get(k) for k in ("step", "reward", "kl", "entropy")}
    return {}


def finished_runs(out: str | Path) -> dict[str, Path]:
    """run → folder of its evaluation, for the runs that are done."""
    study = read_folder(out)
    return {r: Path(out, r, "eval") for r in study.runs() if status_of(Path(out), r)["state"] == "done"}
