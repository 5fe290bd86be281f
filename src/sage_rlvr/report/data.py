"""What the page knows: overview, results, support and training curves, as one JSON object.

Everything a reader could see on a screen is in it; completions come apart (completions.py), because they are the bulk.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sage_rlvr import provenance
from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.compare import AVERAGE, compare
from sage_rlvr.evaluate.results import Estimate, Results, results
from sage_rlvr.files import read_json
from sage_rlvr.report.find import EvalRun, FoundRuns, TrainRun
from sage_rlvr.report.standing import standing, unhealthy
from sage_rlvr.stats.estimates import first_right
from sage_rlvr.stats.intervals import RESAMPLES

DRAWS = 20_000_000  # numbers that compare() may hold for a task
STATEMENT = 1_500  # characters shown of a problem
POINTS = 150_000  # of all training curves together, about 2 MB
NOT_CURVES = {"step", "epoch", "total_flos", "train_runtime", "train_samples_per_second", "train_steps_per_second"}
HELD_OUT = "held_out/"
MAIN = (  # what a reader asks first: does it learn, does it hold elsewhere, how far did it move, is it healthy
    "reward", HELD_OUT, "kl_ref", "entropy", "completions/clipped_ratio", "sage/zero_variance_groups", "sage/active",
    "sage/q_mean", "kl", "grad_norm",
)  # fmt: skip
KNOWN = ("machine", "commit", "release")  # of run.json and made.json, where they are there


def page_data(runs: FoundRuns, resamples: int = RESAMPLES, tell: Callable[[str], Any] = str) -> dict[str, Any]:
    """The whole object. Runs are referred to by their number: evaluations first, then trainings. ``tell`` hears what is
    being done."""
    scores: list[dict[str, Any] | None] = []
    for i, run in enumerate(runs.evals, 1):
        tell(f"scoring {run.name} ({i} of {len(runs.evals)})")
        try:
            scores.append(_scores(results(run.counts, resamples=resamples)))
        except UserError as e:
            scores.append(None)
            run.notes.append(str(e))
    tell("comparing")
    more = {
        "level": 0.95,
        "scores": scores,
        "first": standing(runs.evals, runs.trains),
        "paired": _paired(runs.evals, resamples),
        "training": curves(runs.trains, first=len(runs.evals)),
    }
    return _what_is_there(runs) | finite(more)


def tokens_data(runs: FoundRuns) -> dict[str, Any]:
    """Of a page with the token explorer alone: runs, problems and who solved which; no score, and none computed."""
    return _what_is_there(runs) | {"only_tokens": True}


def _what_is_there(runs: FoundRuns) -> dict[str, Any]:
    tasks = dict.fromkeys(t for run in runs.evals for t in run.counts.tasks)
    out = {
        "made": made_with(),
        "absent": runs.absent,
        "tasks": {t: support(t, runs.evals) for t in tasks},
        "questions": questions(runs.evals),
        "runs": [_eval_row(run) for run in runs.evals] + [_train_row(run) for run in runs.trains],
    }
    return finite(out)


def questions(evals: Sequence[EvalRun]) -> dict[str, dict[str, str]]:
    """task → problem → its statement, from the runs that wrote problems.json; long ones are cut."""
    out: dict[str, dict[str, str]] = {}
    for run in evals:
        try:
            for task, problems in read_json(run.folder / "problems.json").items():
                for name, problem in problems.items():
                    text = str(problem["question"])
                    short = text if len(text) <= STATEMENT else text[:STATEMENT] + " …"
                    out.setdefault(task, {}).setdefault(name, short)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            run.notes.append("problems.json cannot be read, so its questions are not shown")
    return out


def finite(x: Any) -> Any:
    """JSON has no nan: null stands for it. Floats keep 5 digits: more than any screen shows."""
    if isinstance(x, dict):
        return {str(k): finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [finite(v) for v in x]
    if isinstance(x, float):
        return float(f"{x:.5g}") if math.isfinite(x) else None
    return x if x is None or isinstance(x, str | int | bool) else str(x)


def made_with() -> dict[str, str]:
    """When, with what and where the page was made."""
    here, date = provenance.made_with(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    out = {"date": date, "sage-rlvr": here["release"], "machine": here["machine"]}
    return out | ({"commit": here["commit"]} if here["commit"] else {})


# ---- overview ----------------------------------------------------------------------------------------------------


def _eval_row(run: EvalRun) -> dict[str, Any]:
    counts = run.counts
    try:
        made = dict(read_json(run.folder / "made.json"))
    except (OSError, UserError, TypeError, ValueError):
        made = {}  # not there, or spoilt
    return {
        "name": run.name,
        "kind": "evaluation",
        "model": counts.model,
        "status": run.status,
        "notes": run.notes,
        "samples": run.samples,
        "tasks": {t.task: [len(t.problems), t.n, len(t.seeds)] for t in counts.tasks.values()},
        "settings": dict(counts.settings),
        "about": {k: v for k, v in made.items() if k in KNOWN and v},
    }


def _train_row(run: TrainRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "kind": "training",
        "model": str(run.settings.get("model_name_or_path", "")),
        "status": run.status,
        "notes": run.notes,
        "steps": max((r["step"] for r in run.log), default=0),
        "flags": unhealthy(run.log, run.settings),
        "settings": run.settings,
        "about": {k: run.record[k] for k in KNOWN if k in run.record},
    }


# ---- results -----------------------------------------------------------------------------------------------------


def _triple(e: Estimate | None) -> list[float | None] | None:
    return [e.value, e.low, e.high] if e else None


def _scores(r: Results) -> dict[str, Any]:
    groups: dict[str, Any] = dict(r.tasks) | ({AVERAGE: r.average} if r.average and len(r.average.tasks) > 1 else {})
    out: dict[str, dict[str, Any]] = {}
    for name, t in groups.items():
        if t.pass_at:
            out[name] = {
                "pass": {k: _triple(e) for k, e in t.pass_at.items()},
                "majority": {k: _triple(e) for k, e in t.majority_at.items()},
            }
    for name, t in r.tasks.items():
        if name in out:
            more = {"distinct": _triple(t.distinct_solutions or t.distinct_answers), "rates": t.rates}
            out[name] |= {"problems": t.problems, "n": t.n, "seeds": len(t.seeds)} | more
    return out


def _paired(evals: Sequence[EvalRun], resamples: int) -> dict[str, Any] | None:
    """compare()'s table over the complete runs: common problems, and each run's paired difference from the first."""
    whole = [i for i, run in enumerate(evals) if run.status == "complete"]
    if len(whole) < 2:
        return None
    columns = 3 * len(whole) * max(t.n.bit_length() + 1 for i in whole for t in evals[i].counts.tasks.values())
    resamples = min(resamples, max(2000, DRAWS // columns))  # 10,000 up to some 60 runs; below that memory is the limit
    try:
        table = compare([evals[i].counts for i in whole], resamples=resamples)
    except UserError:
        return None
    at = {str(run.counts.folder): i for i, run in enumerate(evals)}
    rows = {}
    for row in table.rows:
        cells = {
            g: {k: [c.value, c.low, c.high, c.bold, c.minus_first] for k, c in by_k.items()}
            for g, by_k in row.cells.items()
            if g != AVERAGE or len(table.averaged) > 1
        }
        rows[at[row.folder]] = cells
    return {"first": whole[0], "problems": table.problems, "rows": rows, "notes": table.notes}


# ---- support -----------------------------------------------------------------------------------------------------


def support(task: str, evals: Sequence[EvalRun]) -> dict[str, Any]:
    """``first``: run → for each problem, which of its samples (1, 2, …: by seed, then index) is the first right one.

    0: none is. −1: the problem is not there, or not whole. ``drawn``: how many samples there are, one number where all
    problems have the same. The two give evaluate's solved_in for every budget.
    """
    by_run = {i: run.counts.tasks[task] for i, run in enumerate(evals) if task in run.counts.tasks}
    problems = list(dict.fromkeys(p for counts in by_run.values() for p in counts.problems))
    first, rate = {}, {}
    drawn: dict[int, int | list[int]] = {}
    for i, counts in by_run.items():
        at = {p: j for j, p in enumerate(counts.problems)}
        ranks, totals = first_right(counts), counts.totals
        share = counts.rights / np.maximum(totals, 1)
        rows = [at.get(p) for p in problems]
        first[i] = [-1 if j is None or not totals[j] else int(ranks[j]) for j in rows]
        have = [0 if j is None else int(totals[j]) for j in rows]
        drawn[i] = have[0] if len(set(have)) == 1 else have
        rate[i] = [None if j is None or not totals[j] else round(float(share[j]), 3) for j in rows]
    return {"problems": problems, "first": first, "drawn": drawn, "rate": rate}


# ---- training ----------------------------------------------------------------------------------------------------


def curves(trains: Sequence[TrainRun], first: int, points: int = POINTS) -> dict[str, Any]:
    """series → run → [steps, values]; long ones are averaged in equal bins of steps, so that all fit in ``points``."""
    logs = [_series(run.log) for run in trains]
    names = sorted({n for log in logs for n in log}, key=_order)
    each = max(50, min(1000, points // max(1, sum(len(log) for log in logs))))
    out: dict[str, Any] = {}
    widest = 1
    for name in names:
        out[name] = {}
        for i, log in enumerate(logs):
            if name in log:
                steps, values, width = binned(*log[name], each)
                widest = max(widest, width)
                out[name][first + i] = [steps, values]
    return {"series": out, "averaged_over": widest}


def _order(name: str) -> tuple[int, str]:
    kind = HELD_OUT if name.startswith(HELD_OUT) else name
    return MAIN.index(kind) if kind in MAIN else len(MAIN), name


def _series(log: Sequence[dict[str, Any]]) -> dict[str, tuple[list[float], list[float]]]:
    """name → (steps, values), every logged number; of a step that was logged twice the later line counts."""
    out: dict[str, dict[float, float]] = {}
    for entry in sorted(log, key=lambda e: e["step"]):
        for name, value in entry.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if number and name not in NOT_CURVES:
                out.setdefault(name, {})[entry["step"]] = float(value)
    return {name: (list(v), list(v.values())) for name, v in out.items()}


def binned(steps: Sequence[float], values: Sequence[float], most: int) -> tuple[list[float], list[float], int]:
    """At most ``most`` points, each the mean of the same number of logged ones (the last may have fewer), and that number."""
    width = -(-len(steps) // most)
    if width <= 1:
        return list(steps), list(values), 1
    cut = range(0, len(steps), width)
    ends = [steps[min(i + width, len(steps)) - 1] for i in cut]
    return ends, [float(np.mean(values[i : i + width])) for i in cut], width
