"""Training as it went: gradient norm by thirds (Table 5), training reward against held-out pass@1 (Fig. 2), entropy, KL, q."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.analysis.records import TrainLog, read_log

CURVES = {  # name in the log → what it is
    "reward": "mean training reward",
    "grad_norm": "gradient norm before clipping",
    "entropy": "mean token entropy of the policy, nats",
    "kl": "penalty toward the shaped anchor",
    "kl_ref": "k3 toward the plain reference",
    "sage/pseudo_kl": "k1 mean of the pseudo-KL to q·π_ref",
    "sage/q_mean": "mean q",
    "sage/q_max": "largest q",
    "loss": "loss",
}
THIRDS = ("early", "mid", "late")


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
    curves: dict[str, list[tuple[int, float]]]  # names of CURVES that were logged
    held_out: dict[str, list[tuple[int, float]]]  # "TASK/pass@k"
    overfit: dict[str, Any] | None  # training reward and held-out pass@1 at the held-out peak and at the end
    notes: list[str]


def dynamics(folder: str | Path) -> Dynamics:
    log = read_log(folder)
    curves = {name: found for name in CURVES if (found := log.series(name))}
    held = held_out(log)
    total = log.planned or log.last_step
    norms = thirds(curves.get("grad_norm", []), total)
    return Dynamics(
        log.folder, log.last_step, log.planned, log.finished, norms, curves, held, _overfit(curves, held), log.notes
    )


def thirds(series: list[tuple[int, float]], total: int) -> dict[str, Third]:
    """Steps 1..total cut in three: step s is in third ⌈3s/total⌉. Of a half-finished run the last ones are empty."""
    parts: dict[str, list[float]] = {name: [] for name in THIRDS}
    for step, value in series:
        parts[THIRDS[min(max(-(-3 * step // total) - 1, 0), 2)]].append(value)
    return {
        name: Third(float(np.mean(x)) if x else None, float(np.std(x, ddof=1)) if len(x) > 1 else None, len(x))
        for name, x in parts.items()
    }


def held_out(log: TrainLog) -> dict[str, list[tuple[int, float]]]:
    """ "TASK/pass@k" → (step, value), for everything logged as held_out/…"""
    names = dict.fromkeys(k for e in log.entries for k in e if k.startswith("held_out/"))
    return {name.removeprefix("held_out/"): log.series(name) for name in names}


def smoothed(series: list[tuple[int, float]], window: int) -> list[tuple[int, float]]:
    """Mean of the last ``window`` values at each step (of those there are)."""
    values = np.cumsum([0.0, *(v for _, v in series)])
    low = [max(0, i + 1 - window) for i in range(len(series))]
    return [(s, float((values[i + 1] - values[low[i]]) / (i + 1 - low[i]))) for i, (s, _) in enumerate(series)]


def _overfit(
    curves: dict[str, list[tuple[int, float]]], held: dict[str, list[tuple[int, float]]]
) -> dict[str, Any] | None:
    """Mean held-out pass@1 over tasks at the steps all have. Reward is smoothed over a tenth of the run."""
    ones = [dict(series) for name, series in held.items() if name.split("/")[-1] == "pass@1"]
    if not ones or "reward" not in curves:
        return None
    shared = sorted(set.intersection(*(set(d) for d in ones)))
    if not shared:
        return None
    score = {s: float(np.mean([d[s] for d in ones])) for s in shared}
    reward = smoothed(curves["reward"], max(1, len(curves["reward"]) // 10))
    peak, last = max(shared, key=lambda s: (score[s], -s)), shared[-1]

    def at(step: int) -> dict[str, Any]:
        seen = [v for s, v in reward if s <= step]
        return {"step": step, "held_out": score[step], "reward": seen[-1] if seen else None}

    return {"peak": at(peak), "end": at(last), "lost": score[peak] - score[last]}
