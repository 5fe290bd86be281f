"""The figure of the README: pass@1 against pass@256 over β, from the records of the confirmation alone (``make results``)."""

import io
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from steady import steady_names

from sage_rlvr.show.style import panels
from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.study.read import Finished, on_task
from sage_rlvr.tasks import load_task
from sage_rlvr.tasks.countdown import guess

STUDY, TASK, K = "confirm", "countdown-ltr-fresh", 256
FAMILIES = {  # of studies/confirm.yaml → what the reader calls it
    "grpo_k3": "GRPO, KL by k3",
    "reference": "GRPO, KL by k3+ (TRL's)",
    "winner": "SAGE, guide verified",
    "best": "rewards by rarity, KL by k3",
}
THEMES = {  # text and axes, then one colour per family
    "light": ("#1f2328", ["#1f2328", "#7d8590", "#1a7f8e", "#c55a11"]),
    "dark": ("#e6edf3", ["#e6edf3", "#8b949e", "#4fc3d0", "#f0975a"]),
}


@dataclass(frozen=True)
class Point:
    """One setting of a family: means over seeds and problems, and twice the standard error over seeds."""

    beta: float
    seeds: int
    pass_1: float
    pass_k: float
    spread_1: float
    spread_k: float


def read(done: Finished) -> tuple[dict[str, list[Point]], tuple[float, float]]:
    """Family → its points by β; and where the base stands."""
    found = defaultdict[tuple[str, float], list[tuple[float, float]]](list)
    base = (np.nan, np.nan)
    for name, counts in on_task(TASK, done.runs).items():
        one, many = (float(pass_at_k(counts.totals, counts.rights, k).mean()) for k in (1, K))
        family, _, rest = name.partition("+beta")
        if rest:
            found[family, float(rest.rpartition("-s")[0])].append((one, many))
        else:
            base = one, many
    points = defaultdict[str, list[Point]](list)
    for (family, beta), runs in sorted(found.items()):
        mean, spread = np.mean(runs, 0), 2 * np.std(runs, 0, ddof=1) / np.sqrt(len(runs))
        points[family].append(Point(beta, len(runs), *map(float, mean), *map(float, spread)))
    return {family: points[family] for family in FAMILIES}, base


def draw(points: dict[str, list[Point]], base: tuple[float, float], guessed: float, theme: str) -> bytes:
    """An SVG without a background."""
    ink, colours = THEMES[theme]
    with panels(1, width=7.2, height=3.4) as (figure, axes):
        ax = axes[0, 0]
        ax.axhline(guessed, color=ink, lw=0.9, ls=":")
        ax.annotate(
            f"random valid guesses: {guessed:.2f}", (0.131, guessed), (0, 4), textcoords="offset points", color=ink
        )
        for (family, own), colour, marker in zip(points.items(), colours, "osD^"):
            x, y = [p.pass_1 for p in own], [p.pass_k for p in own]
            bars = [p.spread_k for p in own], [p.spread_1 for p in own]
            ax.errorbar(
                x, y, *bars, color=colour, marker=marker, ms=4.5, lw=1.3, elinewidth=0.8, label=FAMILIES[family]
            )
        for p in points["grpo_k3"]:
            ax.annotate(
                f"{p.beta:g}", (p.pass_1, p.pass_k), (-6, -10), textcoords="offset points", ha="right", color=ink
            )
        ax.plot(*base, "*", color=ink, ms=11, ls="none", label="before RL")
        ax.set_xlabel("pass@1")
        ax.set_ylabel(f"pass@{K}")
        ax.legend(loc="center left", frameon=False, labelcolor=ink, title="numbers: β of GRPO by k3", alignment="left")
        ax.get_legend().get_title().set_color(ink)
        ax.tick_params(colors=ink)
        for part in (ax.xaxis.label, ax.yaxis.label):
            part.set_color(ink)
        for spine in ax.spines.values():
            spine.set_color(ink)
        out = io.BytesIO()
        with rc_context({"svg.fonttype": "path"}):  # GitHub shows it: its letters are drawn, whatever fonts there are
            figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return steady_names(out.getvalue())


def files(done: Finished) -> dict[Path, bytes]:
    """Path from the repository's root → content, of both themes."""
    points, base = read(done)
    guessed = float(guess(load_task(TASK, limit=1000, split="test"), K).mean())
    return {Path(f"docs/img/frontier-{theme}.svg"): draw(points, base, guessed, theme) for theme in THEMES}
