"""What a study's folder says: its runs' counts and logs, as the statistics want them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.files import read_lines
from sage_rlvr.stats.against import Standings
from sage_rlvr.stats.counts import TaskCounts, counts_of
from sage_rlvr.stats.distance import Run
from sage_rlvr.stats.estimates import pass_grid
from sage_rlvr.stats.frontier import Planes, Point
from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.stats.table import Row, common_problems, variant_row
from sage_rlvr.study.job import PROBE, STATUS
from sage_rlvr.study.plan import Study, read_folder
from sage_rlvr.study.run import finished_runs

KL, LAST = "kl_ref", 0.2  # the log's own KL to the plain reference, over the last fifth of training
Tasks = dict[str, TaskCounts]  # by the task's name
T = TypeVar("T")


@dataclass(frozen=True)
class Finished:
    """What a study's folder says of its finished runs. Where several tables are made of it, it is read once and passed along."""

    out: Path
    study: Study
    runs: dict[str, Tasks]
    log: Callable[[str], list[dict[str, Any]]]  # of a run's training; empty where there is none
    probe: Tasks  # the base's samples that sort the problems into strata; empty where the study has none


Source = str | Path | Finished


def finished(out: Source) -> Finished:
    """Reads the folder; what was read already is answered as it is."""
    if isinstance(out, Finished):
        return out
    folder = Path(out)

    def log(run: str) -> list[dict[str, Any]]:
        path = folder / run / "train" / "log.jsonl"
        return [*read_lines(path)] if path.is_file() else []

    runs = {run: counts_of(samples).tasks for run, samples in finished_runs(folder).items()}
    probe = folder / "base" / PROBE
    study = read_folder(folder)
    asked = study.probe_seed is not None and probe.is_dir()
    return Finished(folder, study, runs, log, counts_of(probe).tasks if asked else {})


def on_task(task: str, runs: dict[str, Tasks]) -> dict[str, TaskCounts]:
    """Of the runs that have it."""
    return {run: tasks[task] for run, tasks in runs.items() if task in tasks}


def by_variant(study: Study, runs: dict[str, T]) -> dict[str, list[T]]:
    """variant → what each of its seeds has; the base is a variant of its own."""
    out: dict[str, list[T]] = {}
    for run, own in runs.items():
        out.setdefault(study.variant_of(run)[0], []).append(own)
    return out


def study_rows(out: Source) -> list[Row]:
    """Rows for every finished run, the base first; a variant whose seeds are not all there is shown with those that are."""
    done = finished(out)
    rows = []
    for task in done.study.evaluate["tasks"]:
        counts = on_task(task, done.runs)
        common = common_problems(list(counts.values()))
        cut = by_variant(done.study, {run: c.only(common) for run, c in counts.items()})
        base = cut.get("base", [None])[0]
        rows += [variant_row(task, variant, runs, base) for variant, runs in cut.items()]
    return rows


def read_standings(out: Source) -> Standings:
    """Of every variant with a finished run, the base among them."""
    done = finished(out)
    runs, every = by_variant(done.study, done.runs), list(done.runs.values())
    asked = [t for t in done.study.evaluate["tasks"] if all(t in by for by in every)]
    common = {t: common_problems([by[t] for by in every]) for t in asked}
    tasks = [task for task, problems in common.items() if problems]
    if not tasks:
        raise UserError(f"{done.out}: no task has a problem that every finished run has whole.")
    n = min(by[task].n * len(by[task].seeds) for by in every for task in tasks)
    cut = {(t, v): [by[t].only(common[t]) for by in own] for t in tasks for v, own in runs.items()}
    return Standings(n, {place: np.stack([pass_grid(own, k) for k in (1, n)]) for place, own in cut.items()})


def read_planes(out: Source, task: str) -> Planes:
    done = finished(out)
    study, counts = done.study, on_task(task, done.runs)
    base = counts.pop("base", None)
    if not counts:
        raise UserError(
            f"{done.out}: no finished run has samples of {task}; the study evaluates {study.evaluate['tasks']}."
        )
    keep = common_problems([*counts.values()])
    runs: dict[str, dict[str, list[TaskCounts]]] = {}
    for variant, own in by_variant(study, {run: c.only(keep) for run, c in counts.items()}).items():
        runs.setdefault(study.family_of(variant), {})[variant] = own
    first = next(iter(counts.values()))
    n = first.n * len(first.seeds)
    base = base.only(keep) if base is not None and set(keep) <= set(base.problems) else None
    primary = study.evaluate.get("primary", {})
    strata, k = tuple[np.ndarray, ...](), primary.get("k", n)
    probe = base  # what the post-hoc strata of a page are made of
    if "strata" in primary:
        probe = done.probe.get(task)
        if probe is None or not set(keep) <= set(probe.problems):
            raise UserError(
                f"{done.out}: the strata need the base's probe, its samples of every problem that no run shares: remove "
                f"base/{STATUS} there and run the study again."
            )
        probe = probe.only(keep)
        strata = _strata(probe.rights, primary["strata"])
    if base is None or probe is None:
        return Planes(keep, n, None, runs, k, strata)
    start = Point("base", pass_grid([base], 1), pass_grid([base], k), strata).mean if (base.totals >= k).all() else None
    return Planes(keep, n, probe.rights, runs, k, strata, start, probe.n * len(probe.seeds))


def _strata(rights: np.ndarray, edges: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Problems by the probe's right answers: up to the first edge, up to the second, and so on."""
    of = np.searchsorted(edges, rights)  # 0: up to the first edge
    found = tuple(np.flatnonzero(of == i) for i in range(len(edges)))
    if few := [str(edge) for edge, own in zip(edges, found) if own.size < 2]:
        raise UserError(
            f"strata: fewer than two problems up to {', '.join(few)} right; name other edges, or more problems."
        )
    return found


def read_runs(out: Source, task: str) -> list[Run]:
    """The finished runs that logged their KL and have samples of ``task``."""
    done = finished(out)
    study, counts = done.study, on_task(task, done.runs)
    kls = {run: kl for run in counts if (kl := _last_kl(done.log(run))) is not None}
    keep = common_problems([counts[run] for run in kls])
    runs = []
    for run, kl in kls.items():
        cut, variant = counts[run].only(keep), study.variant_of(run)[0]
        estimator = study.settings_of(run).get("anchor_estimator", "k3")  # SAGEConfig's own default
        n = cut.n * len(cut.seeds)
        ks = [k for k in (1, 16, 64) if k < n] + [n]
        passes = {k: pass_at_k(cut.totals, cut.rights, k) for k in ks}
        runs.append(Run(study.family_of(variant), variant, estimator, kl, passes))
    return runs


def _last_kl(log: list[dict[str, Any]]) -> float | None:
    logged = [entry[KL] for entry in log if KL in entry]
    return float(np.mean(logged[-max(1, round(LAST * len(logged))) :])) if logged else None
