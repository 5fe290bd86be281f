"""What a study's page says beside pass@k: who keeps and who finds problems against the base, and how each variant got there."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from sage_rlvr.show.style import Figure, legend, line, panels, save, whole_steps
from sage_rlvr.stats.pass_at_k import support_metrics
from sage_rlvr.stats.table import common_problems
from sage_rlvr.study.read import Source, by_variant, finished, on_task

RATIOS = ("SRR", "NDR", "SDS", "NSCR")
Curves = dict[str, dict[str, list[list[float]]]]  # variant → what was logged → [step, mean over the finished seeds]


def support_rows(out: Source, task: str) -> list[dict[str, Any]]:
    """A row a variant: P, E, S, O and their ratios at the full budget, means over seeds with their spread; no base, no rows."""
    done = finished(out)
    counts = on_task(task, done.runs)
    if "base" not in counts:
        return []
    keep = common_problems(list(counts.values()))
    solved = {run: c.only(keep).rights > 0 for run, c in counts.items()}
    base = solved.pop("base")
    groups = by_variant(done.study, {run: vars(support_metrics(base, own)) for run, own in solved.items()})
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


def training_curves(out: Source, names: Sequence[str]) -> Curves:
    """What the logs of the finished runs say of ``names``."""
    done, curves = finished(out), dict[str, dict[str, dict[int, list[float]]]]()
    for run in done.runs:
        for entry in done.log(run) if run != "base" else ():
            own = curves.setdefault(done.study.variant_of(run)[0], {})
            for name in names:
                if isinstance(value := entry.get(name), int | float):
                    own.setdefault(name, {}).setdefault(entry["step"], []).append(value)
    return {
        variant: {name: [[step, fmean(v)] for step, v in sorted(at.items())] for name, at in named.items()}
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
