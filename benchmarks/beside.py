"""What a study's page says beside pass@k: who keeps and who finds problems against the base, and how each variant got there."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.files import read_lines
from sage_rlvr.show.style import Figure, legend, line, panels, save, whole_steps
from sage_rlvr.stats.pass_at_k import support_metrics
from sage_rlvr.stats.table import common_problems
from sage_rlvr.study.plan import read_folder
from sage_rlvr.study.read import by_variant, finished, on_task
from sage_rlvr.study.run import finished_runs

RATIOS = ("SRR", "NDR", "SDS", "NSCR")
Curves = dict[str, dict[str, list[list[float]]]]  # variant → what was logged → [step, mean over the finished seeds]


def support_rows(out: str | Path, task: str) -> list[dict[str, Any]]:
    """A row a variant: P, E, S, O and their ratios at the full budget, means over seeds with their spread; no base, no rows."""
    study, runs = finished(out)
    counts = on_task(task, runs)
    if "base" not in counts:
        return []
    keep = common_problems(list(counts.values()))
    solved = {run: c.only(keep).rights > 0 for run, c in counts.items()}
    base = solved.pop("base")
    groups = by_variant(study, {run: vars(support_metrics(base, own)) for run, own in solved.items()})
    budget = counts["base"].n * len(counts["base"].seeds)
    return [{"task": task, "variant": v, "budget": budget, "seeds": len(g)} | _means(g) for v, g in groups.items()]


def _means(seeds: list[dict[str, float]]) -> dict[str, Any]:
    """Means over the seeds in which a ratio is defined; the spread over them for the ratios."""
    found: dict[str, Any] = {}
    for name in seeds[0]:
        values = np.array([s[name] for s in seeds], dtype=float)
        values = values[~np.isnan(values)]
        found[name] = float(values.mean()) if len(values) else None
        if name in RATIOS:
            found[f"{name}_std"] = float(values.std(ddof=1)) if len(values) > 1 else None
    return found


def training_curves(out: str | Path) -> Curves:
    """Every number in the logs of the finished runs."""
    study, curves = read_folder(out), defaultdict[str, dict[str, dict[int, list[float]]]](dict)
    for run in finished_runs(out):
        log = Path(out, run, "train", "log.jsonl")
        if run == "base" or not log.is_file():
            continue
        for entry in read_lines(log):
            for name, value in entry.items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    at = curves[study.variant_of(run)[0]].setdefault(name, {})
                    at.setdefault(entry["step"], []).append(value)
    return {
        variant: {name: [[step, float(np.mean(v))] for step, v in sorted(at.items())] for name, at in named.items()}
        for variant, named in curves.items()
    }


def draw_curves(path: str | Path, curves: Curves, names: dict[str, str]) -> Figure:
    """A panel for each of ``names`` (what was logged → its title), a line a variant."""
    with panels(len(names), width=5.6) as (figure, axes):
        for ax, (name, title) in zip(axes.flat, names.items()):
            for i, (variant, logged) in enumerate(curves.items()):
                if name in logged:
                    steps, values = zip(*logged[name])
                    ax.plot(steps, values, label=variant, markevery=max(1, len(steps) // 6), **line(i))
            whole_steps(ax.xaxis)
            ax.set_title(title)
        legend(figure, axes)
        told = f"{' and '.join(names.values())} over training, means over seeds: {', '.join(curves)}."
        return save(figure, path, told)
