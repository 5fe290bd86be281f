"""Training as it went: gradient norm by thirds (Table 5), training reward against held-out pass@1 (Fig. 2), entropy, KL, q."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.analysis.records import read_log

CURVES = (  # names in the log
    "reward", "grad_norm", "entropy", "kl", "kl_ref", "sage/pseudo_kl", "sage/q_mean", "sage/q_max", "loss",
)  # fmt: skip
THIRDS = ("early", "mid", "late")
Series = list[tuple[int, float]]  # (step, value)


@dataclass
class Third:
    mean: float | None  # None: no step of it is logged
    std: float | None  # over its logged steps; None with fewer than two
    steps: int


@dataclass
class Dynamics:
    folder: str
    steps: int
    planned: int | None
    finished: bool | None
    grad_norm: dict[str, Third]
    curves: dict[str, Series]  # names of CURVES that were logged
    held_out: dict[str, Series]  # "TASK/pass@k"
    overfit: dict[str, Any] | None  # training reward and held-out pass@1 at the held-out peak and at the end
    notes: list[str]


def dynamics(folder: str | Path) -> Dynamics:
    log = read_log(folder)
    curves = {name: series for name in CURVES if (series := log.series(name))}
    names = dict.fromkeys(name for entry in log.entries for name in entry if name.startswith("held_out/"))
    held_out = {name.removeprefix("held_out/"): log.series(name) for name in names}
    norms = thirds(curves.get("grad_norm", []), log.planned or log.last_step)
    overfit = _overfit(curves.get("reward"), held_out)
    return Dynamics(log.folder, log.last_step, log.planned, log.finished, norms, curves, held_out, overfit, log.notes)


def thirds(series: Series, total: int) -> dict[str, Third]:
    """Steps 1..total cut in three: step s is in third ⌈3s/total⌉. Of a half-finished run the last ones are empty."""
    parts: dict[str, list[float]] = {name: [] for name in THIRDS}
    for step, value in series:
        parts[THIRDS[min(max(-(-3 * step // total) - 1, 0), 2)]].append(value)
    return {
        name: Third(float(np.mean(x)) if x else None, float(np.std(x, ddof=1)) if len(x) > 1 else None, len(x))
        for name, x in parts.items()
    }


def smoothed(series: Series, window: int) -> Series:
    """Mean of the last ``window`` values at each step (of those there are)."""
    values = [value for _, value in series]
    return [(step, float(np.mean(values[max(0, i + 1 - window) : i + 1]))) for i, (step, _) in enumerate(series)]


def _overfit(reward: Series | None, held_out: dict[str, Series]) -> dict[str, Any] | None:
    """Mean held-out pass@1 over tasks at the steps all have. Reward is smoothed over a tenth of the run."""
    ones = [dict(series) for name, series in held_out.items() if name.split("/")[-1] == "pass@1"]
    shared = sorted(set.intersection(*(set(d) for d in ones))) if ones else []
    if not shared or not reward:
        return None
    score = {s: float(np.mean([d[s] for d in ones])) for s in shared}
    smooth = smoothed(reward, max(1, len(reward) // 10))
    peak, last = max(shared, key=lambda s: (score[s], -s)), shared[-1]

    def at(step: int) -> dict[str, Any]:
        before = [value for s, value in smooth if s <= step]
        return {"step": step, "held_out": score[step], "reward": before[-1] if before else None}

    return {"peak": at(peak), "end": at(last), "lost": score[peak] - score[last]}
