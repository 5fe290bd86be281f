"""Figures 2 to 7 of the paper from runs. Each answers (figure or None where nothing was run, the numbers behind it)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.analysis.dynamics import Dynamics
from sage_rlvr.analysis.perplexity import perplexity
from sage_rlvr.analysis.scoring import source_of
from sage_rlvr.evaluate.results import Estimate, results
from sage_rlvr.show import paper
from sage_rlvr.show.figures_analysis import draw_perplexity, draw_series, panels_for, quantile_words
from sage_rlvr.show.figures_lab import kl_figure
from sage_rlvr.show.paper_runs import Runs, model_name
from sage_rlvr.show.style import PAPER, Figure, legend, line, log_scale, panels, save, whole_steps
from sage_rlvr.store import SampleStore

Drawn = tuple[Figure | None, dict[str, Any]]
Curve = Mapping[int, Estimate]


def figure2(runs: Runs, path: Path) -> Drawn:
    """Training reward against held-out pass@1, a panel per run: with and without KL they part."""
    by_row: dict[str, Dynamics] = {row: read[0] for row in runs.rows if (read := runs.read_trainings(row))}
    _note_missing(runs, [row for row in ("GRPO", "GRPO w/o KL") if row not in by_row])
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


def _note_missing(runs: Runs, rows: Sequence[str]) -> None:
    for row in rows:
        runs.note(f"{row}: not run")


# ---- pass@k ------------------------------------------------------------------------------------------------------


def _curves(
    runs: Runs, tasks: Sequence[str] | None, rows: Sequence[str] | None, by_model: bool = False
) -> dict[str, dict[str, Curve]]:
    """panel → row → curve. One evaluation a row and model: the first that can be read."""
    out: dict[str, dict[str, Curve]] = {}
    for label, folders in runs.labels.items():
        row = paper.row_of(label)
        if rows is not None and row not in rows:
            continue
        evaluations = runs.evaluations(folders)
        if not evaluations:
            runs.missing(label, folders, "evaluation")
        for r in runs.read(evaluations, results):
            for task, t in r.tasks.items():
                if t.pass_at and (tasks is None or task in tasks):
                    panel = f"{model_name(Path(r.folder))} · {task}" if by_model else paper.TASKS.get(task, task)
                    out.setdefault(panel, {}).setdefault(row, t.pass_at)
    return out


def _pass_figure(
    curves: dict[str, dict[str, Curve]], path: Path, points: dict[str, dict[str, dict[int, float]]], what: str
) -> Drawn:
    """``points[panel][row][k]``: the paper's values, drawn hollow and never joined."""
    titles = list(dict.fromkeys([*points, *curves]))
    if not titles:
        return None, {}
    rows = list(dict.fromkeys([r for by in curves.values() for r in by] + [r for by in points.values() for r in by]))
    words = []
    with panels_for(titles) as (figure, axes):
        for ax, title in zip(axes.flat, titles):
            for row, curve in curves.get(title, {}).items():
                _draw_curve(ax, row, curve, rows.index(row))
                ends = [f"{curve[k].value:.3f} at k={k}" for k in (min(curve), max(curve))]
                words.append(f"{title}, {row}: {' to '.join(ends)}")
            for row, at in points.get(title, {}).items():
                mark = {"marker": line(rows.index(row))["marker"], "mfc": "none", "mec": PAPER, "ms": 6}
                ax.plot(*zip(*at.items()), ls="", label=f"{row} (the paper's)", **mark)
                words.append(f"{title}, {row}, the paper's: " + ", ".join(f"{v:.3f} at k={k}" for k, v in at.items()))
            ks = sorted({k for by in (curves.get(title, {}), points.get(title, {})) for c in by.values() for k in c})
            ax.set_xscale("log", base=2)
            log_scale(ax.xaxis, ks[:: -(-len(ks) // 9)])
            ax.set(title=title, xlabel="k (samples per problem)")
        axes[0, 0].set_ylabel("pass@k")
        legend(figure, axes)
        made = save(figure, path, f"{what}: pass@k against k. " + "; ".join(words) + ".")
    data = {t: {r: {k: vars(e) for k, e in c.items()} for r, c in by.items()} for t, by in curves.items()}
    return made, {"ours": data, "paper": points}


def _draw_curve(ax: Any, row: str, curve: Curve, i: int) -> None:
    ks = sorted(curve)
    ax.plot(ks, [curve[k].value for k in ks], label=row, **line(i))
    banded = [k for k in ks if curve[k].low is not None]
    lows, highs = [curve[k].low for k in banded], [curve[k].high for k in banded]
    ax.fill_between(banded, lows, highs, color=line(i)["color"], alpha=0.12, lw=0)


def figure3(runs: Runs, path: Path) -> Drawn:
    """GRPO and Branch (and the base, where it is there) on the three benchmarks, with the ends the paper's Table 1 gives."""
    rows = ("Base", "GRPO", "GRPO + Branch")
    _note_missing(runs, [row for row in rows if row not in runs.rows])
    facts = paper.results(1)
    points = {
        title: {row: {k: facts[row][task, k].mean for k in (1, paper.TOP[1])} for row in rows}
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
    return made, {row: {f"{t}/{p}": x.tolist() for (t, p), x in by.items()} for row, by in values.items()}


def _first_two(rows: Mapping[str, list[Path]]) -> list[str]:
    asked = [[p for a in SampleStore(f[0], readonly=True).problems.values() for p in a.problems] for f in rows.values()]
    return [p for p in asked[0] if all(p in other for other in asked)][:2]


FIGURES = {f.__name__: f for f in (figure2, figure3, figure4, figure5, figure6, figure7)}
