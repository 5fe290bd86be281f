"""One picture per analysis, each with its description in words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.analysis.dynamics import Dynamics, smoothed
from sage_rlvr.analysis.grid import Grid
from sage_rlvr.analysis.patterns import TaskPatterns
from sage_rlvr.evaluate.results import SupportTask
from sage_rlvr.show.style import INK, Figure, legend, line, log_scale, panels, panels_for, save, whole_steps

HATCH = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")


def patterns_figure(runs: Mapping[str, Mapping[str, TaskPatterns]], path: Path) -> Figure:
    """``runs[run][task]``: bars per pattern, one per run, a panel per task. A run has its place and colour in every panel."""
    tasks = list(dict.fromkeys(t for by in runs.values() for t in by))
    words, wide = [], 0.8 / len(runs)
    with panels_for(tasks, width=4.4) as (figure, axes):
        for ax, task in zip(axes.flat, tasks):
            here = [(i, run, by[task]) for i, (run, by) in enumerate(runs.items()) if task in by]
            names = list(dict.fromkeys(n for *_, t in here for n in t.frequency))
            for i, run, t in here:
                own = [t.frequency[n] for n in names]
                y = np.array([f.per_problem for f in own])
                reach = np.abs(np.array([[f.low, f.high] for f in own]).T - y)
                at = np.arange(len(names)) + (i - (len(runs) - 1) / 2) * wide
                style = {"color": INK[i % len(INK)], "hatch": HATCH[i % len(HATCH)], "edgecolor": "white"}
                ax.bar(at, y, wide, yerr=np.nan_to_num(reach), label=run, alpha=0.75, **style)
                words.append(f"{task}, {run}: " + ", ".join(f"{n} {v:.3f}" for n, v in zip(names, y)))
            ax.set(title=task, ylabel="share of right solutions", ylim=(0, None))
            ax.set_xticks(range(len(names)), names, rotation=15)
        legend(figure, axes)
        text = "Pattern frequency among right solutions, a mean over problems. " + "; ".join(words) + "."
        return save(figure, path, text)


def perplexity_figure(values: Mapping[str, np.ndarray], marks: Mapping[str, float], path: Path) -> Figure:
    """Two views of ``values[run]``: densities of log perplexity, and the share above each value (the tail, log scale)."""
    with panels(2, width=4.4) as (figure, axes):
        draw_perplexity(axes[0, 0], values)
        ax = axes[0, 1]
        for i, (run, x) in enumerate(values.items()):
            share = 1 - np.arange(len(x)) / len(x)
            ax.step(np.sort(x), share, where="pre", label=run, **(line(i) | {"marker": ""}))
        style = {"fontsize": 6, "rotation": 90, "va": "top", "ha": "right", "color": "#555555"}
        for i, (name, mark) in enumerate(marks.items()):  # one below the other: they may lie close together
            ax.axvline(mark, color="#999999", lw=0.8, ls=":")
            ax.text(mark, 0.98 - 0.22 * (i % 4), name, transform=ax.get_xaxis_transform(), **style)
        ax.set(xscale="log", yscale="log", xlabel="perplexity under the base", ylabel="share of samples at or above")
        for axis in (ax.xaxis, ax.yaxis):
            log_scale(axis)
        legend(figure, axes)
        words = "; ".join(f"{run}: {quantile_words(x)}" for run, x in values.items())
        return save(figure, path, f"Perplexity of each run's samples under the base. {words}.")


def quantile_words(x: np.ndarray) -> str:
    return f"median {np.median(x):.2f}, 95% quantile {np.quantile(x, 0.95):.2f}"


def draw_perplexity(ax: Any, values: Mapping[str, np.ndarray]) -> None:
    """A smoothed histogram per run, over log perplexity."""
    logs = [(i, run, np.log(x)) for i, (run, x) in enumerate(values.items()) if len(x)]
    low, high = min(x.min() for *_, x in logs), max(x.max() for *_, x in logs)
    grid = np.linspace(low - 0.1, high + 0.1, 256)
    for i, run, x in logs:
        width = max(1.06 * x.std() * len(x) ** -0.2, (high - low) / 100, 1e-3)  # Silverman's rule
        weights = np.zeros_like(grid)
        for part in np.array_split(x, max(1, len(x) // 4096)):
            weights += np.exp(-0.5 * ((grid[:, None] - part[None]) / width) ** 2).sum(1)
        density = weights / (len(x) * width * np.sqrt(2 * np.pi))
        ax.plot(np.exp(grid), density, label=run, **(line(i) | {"marker": ""}))
    ax.set(xscale="log", xlabel="perplexity under the base", ylabel="density of log perplexity", ylim=(0, None))
    log_scale(ax.xaxis)


def support_figure(runs: Mapping[str, Mapping[str, SupportTask]], path: Path) -> Figure:
    """``runs[run][task]``: a stacked bar per run and task; the shares of problems preserved, gained, lost, never solved."""
    rows = [(run, task, s) for run, by in runs.items() for task, s in by.items()]
    kinds = {"P": ("both", INK[0], ""), "E": ("gained", INK[2], "//"), "S": ("lost", INK[1], "xx")}
    kinds["O"] = ("neither", "#d9d9d9", "")
    with panels(1, width=7, height=0.5 + 0.4 * len(rows)) as (figure, axes):
        ax, left = axes[0, 0], np.zeros(len(rows))
        for letter, (label, ink, hatch) in kinds.items():
            share = np.array([len(getattr(s, letter)) for _, _, s in rows], dtype=float)
            share /= [len(s.P) + len(s.E) + len(s.S) + len(s.O) for _, _, s in rows]
            ax.barh(range(len(rows)), share, left=left, color=ink, hatch=hatch, edgecolor="white", label=label)
            left += share
        ax.set_yticks(range(len(rows)), [f"{run} · {task} (k={s.budget})" for run, task, s in rows])
        ax.invert_yaxis()
        ax.set(xlabel="share of problems", xlim=(0, 1))
        legend(figure, axes)
        words = "; ".join(
            f"{run} on {task} at k={s.budget}: {len(s.P)} both, {len(s.E)} gained, {len(s.S)} lost, {len(s.O)} neither"
            for run, task, s in rows
        )
        return save(figure, path, f"Problems solved against the base. {words}.")


def dynamics_figure(runs: Mapping[str, Dynamics], path: Path) -> Figure:
    """Reward and held-out pass@1, gradient norm, entropy, KL shaped and plain, q: a panel each, a line per run."""
    plots = ("reward", "grad_norm", "entropy", "kl", "kl_ref", "sage/q_mean")
    with panels(2, 3, height=2.6) as (figure, axes):
        for ax, name in zip(axes.flat, plots):
            for i, (run, d) in enumerate(runs.items()):
                if series := d.curves.get(name):
                    draw_series(ax, series, run, i)
            ax.set_title("reward, and held-out pass@1 (markers)" if name == "reward" else name)
            whole_steps(ax.xaxis)
        for i, d in enumerate(runs.values()):
            for name, series in d.held_out.items():
                if name.split("/")[-1] == "pass@1":
                    axes[0, 0].plot(*zip(*series), **(line(i) | {"ls": "", "ms": 4.5, "mfc": "none"}))
        legend(figure, axes)
        ends = [
            f"{run}: " + ", ".join(f"{n} {s[-1][1]:.4g}" for n, s in d.curves.items() if n in plots)
            for run, d in runs.items()
        ]
        return save(figure, path, "Training curves against steps; at the last step " + "; ".join(ends) + ".")


def draw_series(ax: Any, series: list[tuple[int, float]], label: str, i: int) -> None:
    """The raw values pale, their running mean over a twentieth of them strong."""
    style = line(i) | {"marker": ""}
    if len(series) > 40:
        ax.plot(*zip(*series), color=style["color"], lw=0.5, alpha=0.25)
        series = smoothed(series, len(series) // 20)
    ax.plot(*zip(*series), label=label, **style)


def grid_figure(grid: Grid, path: Path) -> Figure:
    """Two heat maps with their numbers written in: pass@1 and pass@top over τ and ρ."""
    taus, rhos = sorted({c.threshold for c in grid.cells}), sorted({c.ratio for c in grid.cells})
    with panels(2, width=3.8) as (figure, axes):
        for ax, name in zip(axes.flat, ("pass_1", "pass_top")):
            table = np.full((len(taus), len(rhos)), np.nan)
            for c in grid.cells:
                table[taus.index(c.threshold), rhos.index(c.ratio)] = getattr(c, name)
            ax.imshow(table, cmap="Greys", aspect="auto", vmin=np.nanmin(table) - 0.1, vmax=np.nanmax(table) + 0.1)
            for (i, j), v in np.ndenumerate(table):
                text = "not run" if np.isnan(v) else f"{v:.3f}"
                ax.text(j, i, text, ha="center", va="center", bbox={"fc": "white", "ec": "none", "pad": 1.5})
            ax.grid(visible=False)
            ax.set_xticks(range(len(rhos)), [f"{r:g}" for r in rhos])
            ax.set_yticks(range(len(taus)), [f"{t:g}" for t in taus])
            ax.set(xlabel="ratio ρ", ylabel="threshold τ", title=f"pass@{1 if name == 'pass_1' else grid.top}")
        words = "; ".join(f"τ={c.threshold:g}, ρ={c.ratio:g}: {c.pass_1:.3f} and {c.pass_top:.3f}" for c in grid.cells)
        text = f"pass@1 and pass@{grid.top} on {grid.task} over the branch guide's settings. {words}."
        return save(figure, path, text)
