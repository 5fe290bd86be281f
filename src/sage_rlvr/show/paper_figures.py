"""Figures 2 to 7 of the paper from runs. Each answers (figure or None where nothing was run, the numbers behind it)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.analysis.dynamics import Dynamics
from sage_rlvr.analysis.perplexity import perplexity
from sage_rlvr.analysis.scoring import source_of
from sage_rlvr.evaluate.results import results
from sage_rlvr.show import paper
from sage_rlvr.show.figures_analysis import draw_perplexity, draw_series, quantile_words
from sage_rlvr.show.figures_eval import Curve, pass_at_k_figure
from sage_rlvr.show.figures_lab import kl_figure
from sage_rlvr.show.paper_runs import Runs, model_name
from sage_rlvr.show.style import Figure, legend, line, panels, panels_for, save, whole_steps
from sage_rlvr.store import SampleStore

Drawn = tuple[Figure | None, dict[str, Any]]


def figure2(runs: Runs, path: Path) -> Drawn:
    """Training reward against held-out pass@1, a panel per run: with and without KL they part."""
    by_row: dict[str, Dynamics] = {row: read[0] for row in runs.rows if (read := runs.read_trainings(row))}
    runs.note(*(f"{row}: not run" for row in ("GRPO", "GRPO w/o KL") if row not in by_row))
    if not by_row:
        return None, {}
    words = []
    with panels_for(by_row, sharey=True) as (figure, axes):
        for ax, (row, d) in zip(axes.flat, by_row.items()):
            if "reward" in d.curves:
                draw_series(ax, d.curves["reward"], "training reward", 0)
            ones = {name: s for name, s in d.held_out.items() if name.endswith("pass@1")}
            for i, (name, series) in enumerate(ones.items(), start=1):
                ax.plot(*zip(*series), label=f"held-out {name}", **line(i))
            ax.set_title(row)
            whole_steps(ax.xaxis)
            o = d.overfit
            words.append(
                f"{row}: held-out pass@1 peaks at {o['peak']['held_out']:.3f} (step {o['peak']['step']}) and ends at "
                f"{o['end']['held_out']:.3f}, where the training reward is {o['end']['reward']}"
                if o
                else f"{row}: no held-out measurement was logged"
            )
        axes[0, 0].set_ylabel("share right")
        legend(figure, axes)
        made = save(figure, path, "Training reward and held-out pass@1 against steps. " + "; ".join(words) + ".")
    return made, {
        row: {"reward": d.curves.get("reward"), "held_out": d.held_out, "overfit": d.overfit}
        for row, d in by_row.items()
    }


# ---- pass@k ------------------------------------------------------------------------------------------------------


def _curves(
    runs: Runs, tasks: Sequence[str] | None, rows: Sequence[str] | None, by_model: bool = False
) -> dict[str, dict[str, Curve]]:
    """panel → row → curve. One evaluation a row and model: the first that can be read."""
    out: dict[str, dict[str, Curve]] = {}
    for row in [row for row in runs.rows if rows is None or row in rows]:
        for r in runs.read_evaluations(row, results):
            for task, t in r.tasks.items():
                if t.pass_at and (tasks is None or task in tasks):
                    panel = f"{model_name(Path(r.folder))} · {task}" if by_model else paper.TASKS.get(task, task)
                    out.setdefault(panel, {}).setdefault(row, t.pass_at)
    return out


def _pass_figure(curves: dict[str, dict[str, Curve]], path: Path, facts: dict[str, Any], what: str) -> Drawn:
    if not (curves or facts):
        return None, {}
    made = pass_at_k_figure(curves, path, f"{what}: pass@k against k", facts)
    return made, {"ours": curves, "paper": facts}


def figure3(runs: Runs, path: Path) -> Drawn:
    """GRPO and Branch (and the base, where it is there) on the three benchmarks, with the ends the paper's Table 1 gives."""
    rows = ("Base", "GRPO", "GRPO + Branch")
    runs.note(*(f"{row}: not run" for row in rows if row not in runs.rows))
    facts = paper.results(1)
    points = {
        title: {row: {k: facts[row][task, k].mean for k in (1, paper.TABLES[1]["top"])} for row in rows}
        for task, title in paper.TASKS.items()
    }
    return _pass_figure(_curves(runs, list(paper.TASKS), rows), path, points, "GRPO and Branch on three benchmarks")


def figure4(runs: Runs, path: Path) -> Drawn:
    return _pass_figure(_curves(runs, ["knights-knaves"], None), path, {}, "Knights and Knaves, out of distribution")


def figure5(runs: Runs, path: Path) -> Drawn:
    """No run behind it: two fits to a mixture."""
    return kl_figure(path), {}


def figure6(runs: Runs, path: Path) -> Drawn:
    """The small models, fully fine-tuned: a panel per model and task; labels such as full_1.5b, full_1.5b_grpo, full_3b."""
    return _pass_figure(_curves(runs, None, None, by_model=True), path, {}, "Small models, fully fine-tuned")


# ---- perplexity --------------------------------------------------------------------------------------------------


def figure7(runs: Runs, path: Path) -> Drawn:
    """Distributions of perplexity under the base on the first two problems that every run has."""
    rows = {row: e for row, folders in runs.rows.items() if (e := runs.evaluations(folders))}
    if "Base" not in rows:
        runs.note("Base: not run, and it is what perplexity is measured under")
        return None, {}
    base = source_of(rows["Base"][0])
    values: dict[str, dict[tuple[str, str], np.ndarray]] = {}  # row → (task, problem) → (m,)
    chosen = _first_two(rows)
    for row, folders in rows.items():
        for by_task in runs.read(folders[:1], lambda f: perplexity(f, base, problems=chosen)):
            values[row] = {(t, p): x for t, by in by_task.items() for p, x in by.items()}
    places = sorted({place for by in values.values() for place in by}, key=lambda tp: chosen.index(tp[1]))[:2]
    if not places:
        return None, {}
    words = []
    with panels(len(places)) as (figure, axes):
        for ax, place in zip(axes.flat, places):
            here = {row: by[place] for row, by in values.items() if place in by}
            draw_perplexity(ax, here)
            ax.set_title(f"{place[0]} · {place[1]}")
            words += [f"{place[1]}, {row}: {quantile_words(x)}" for row, x in here.items()]
        legend(figure, axes)
        made = save(figure, path, "Perplexity of samples under the base. " + "; ".join(words) + ".")
    return made, {row: {f"{t}/{p}": x for (t, p), x in by.items()} for row, by in values.items()}


def _first_two(rows: Mapping[str, list[Path]]) -> list[str]:
    asked = [[p for a in SampleStore(f[0], readonly=True).problems.values() for p in a.problems] for f in rows.values()]
    return [p for p in asked[0] if all(p in other for other in asked)][:2]


FIGURES = {f.__name__: f for f in (figure2, figure3, figure4, figure5, figure6, figure7)}
