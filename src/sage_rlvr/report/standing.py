"""The first screen: one row per variant, how it stands against the base and against GRPO, a verdict, and what is unhealthy.

A variant is a run without its seed: ``branch-s0`` and ``branch-s1`` are two seeds of ``branch``. Differences are paired by
problem. Their intervals are those of a study (stats/intervals.py): over seeds and problems; over problems alone with one seed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.compare import AVERAGE
from sage_rlvr.files import read_json
from sage_rlvr.report.find import EvalRun, TrainRun
from sage_rlvr.stats.against import MEAN, Standings
from sage_rlvr.stats.counts import TaskCounts, shared
from sage_rlvr.stats.intervals import FEWEST
from sage_rlvr.stats.pass_at_k import pass_at_k
from sage_rlvr.stats.table import Row, variant_row

SEEDED = re.compile(r"(.+)-s(\d+)")
CHECKPOINT = re.compile(r"eval-\d+")  # an evaluation of earlier weights: a point of a path, not a variant
FIFTH = 5  # health compares the last fifth of a log with the first
PLAIN: tuple[Any, ...] = (None, "group", [], ["group"])  # GRPO's own advantage
TRUNCATED, IDLE, NO_VARIANCE = 0.2, 0.01, 0.8


@dataclass(frozen=True)
class Variant:
    """Runs of one recipe: ``runs`` and ``trains`` are numbers of the page's runs, one per seed."""

    name: str
    runs: list[int]
    trains: list[int]
    settings: dict[str, Any]  # of the first training; empty where there is none


def standing(evals: Sequence[EvalRun], trains: Sequence[TrainRun]) -> dict[str, Any] | None:
    """What the first screen shows; None where no complete evaluation shares a problem with the first."""
    variants = variants_of(evals, trains)
    runs = [evals[i].counts for v in variants for i in v.runs]
    tasks = [t for t in (runs[0].tasks if runs else {}) if all(t in r.tasks for r in runs)]
    top = min((r.tasks[t].n for r in runs for t in tasks), default=0)
    counts: dict[str, list[list[TaskCounts]]] = {}  # task → by variant, its runs on the problems that all have
    for task in tasks:
        cut, _ = shared(runs, task, top)
        rest = iter(cut)
        if cut[0].problems:
            counts[task] = [[next(rest) for _ in v.runs] for v in variants]
    if not counts:
        return None
    grpo = grpo_of(variants)
    first = variants[0].name
    references = {"base" if Path(first).name == "base" else first: 0} | ({"GRPO": grpo} if grpo else {})
    groups = _groups(counts, references, top)
    for group in groups.values():
        for v, row in zip(variants, group["rows"]):
            own = [unhealthy(trains[t - len(evals)].log, trains[t - len(evals)].settings) for t in v.trains]
            cut_off = ["truncated"] if (row["truncated"] or 0) >= TRUNCATED else []
            row["flags"] = list(dict.fromkeys([*(flag for flags in own for flag in flags), *cut_off]))
        group["verdict"] = {ref: verdict([v.name for v in variants], ref, at, group) for ref, at in references.items()}
    words = [anchor_words(v.settings) if v.trains else "" for v in variants]
    about = [{"name": v.name, "words": w, "runs": v.runs, "seeds": len(v.runs)} for v, w in zip(variants, words)]
    return {"variants": about, "references": references, "fewest": FEWEST, "groups": groups}


# ---- variants ------------------------------------------------------------------------------------------------------


def variants_of(evals: Sequence[EvalRun], trains: Sequence[TrainRun]) -> list[Variant]:
    """Complete evaluations by variant: the first evaluation's first, then in the study's order, or else as they come."""
    out: dict[str, Variant] = {}
    for i, run in enumerate(evals):
        if run.status != "complete" or CHECKPOINT.fullmatch(run.folder.name):
            continue
        label = own_name(run.name)
        seeded = SEEDED.fullmatch(label)
        name = seeded[1] if seeded else label
        mine = [t for t, x in enumerate(trains) if own_name(x.name) == label][:1]
        variant = out.setdefault(name, Variant(name, [], [], trains[mine[0]].settings if mine else {}))
        variant.runs.append(i)
        variant.trains.extend(len(evals) + t for t in mine)
    order = study_order(evals)
    names = list(out)
    names[1:] = sorted(names[1:], key=lambda name: order.get(Path(name).name, len(order)))
    return [out[name] for name in names]


def study_order(evals: Sequence[EvalRun]) -> dict[str, int]:
    """Variant → its place in the study whose folder the evaluations lie in; empty where they lie in none."""
    for record in dict.fromkeys(run.folder.parent.parent / "study.json" for run in evals):
        try:
            variants = read_json(record, variants=dict)["variants"]
        except (OSError, UserError):
            continue
        return {name: i for i, name in enumerate(variants)}
    return {}


def own_name(name: str) -> str:
    """``study/branch-s0/eval`` and ``study/branch-s0/train`` are both of ``study/branch-s0``."""
    path = Path(name.removesuffix(" (training)"))
    return str(path.parent) if path.name in ("eval", "train") and path.parent.name else str(path)


def grpo_of(variants: Sequence[Variant]) -> int | None:
    """The variant to hold others against: plain GRPO with a KL penalty, by its settings or else by its name."""
    plain = [i for i, v in enumerate(variants) if v.trains and _is_grpo(v.settings)]
    named = [i for i, v in enumerate(variants) if i and Path(v.name).name == "grpo"]
    return next(iter([i for i in plain if i in named] + named + [i for i in plain if i]), None)


def _is_grpo(settings: dict[str, Any]) -> bool:
    """No guide, GRPO's own advantage, and a KL penalty."""
    return settings.get("guide", "none") == "none" and settings.get("advantage") in PLAIN and bool(settings.get("beta"))


def anchor_words(settings: dict[str, Any]) -> str:
    """Anchor and advantage in words: "KL to branch q·π_ref (k3), β 0.05; rarity advantage"."""
    guide, beta = settings.get("guide") or "none", settings.get("beta")
    ways = settings.get("advantage") or []
    ways = [way for way in ([ways] if isinstance(ways, str) else list(ways)) if way != "group"]  # TRL's own: not said
    if not beta:
        anchor = "no KL"
    else:
        what = "π_ref" if guide == "none" else f"{guide} q·π_ref"
        size = f"{beta:g}" if isinstance(beta, int | float) else str(beta)
        anchor = f"KL to {what} ({settings.get('anchor_estimator') or 'k3'}), β {size}"
    return "; ".join([anchor, *([f"{' + '.join(map(str, ways))} advantage"] if ways else [])])


# ---- numbers -------------------------------------------------------------------------------------------------------


def _groups(counts: dict[str, list[list[TaskCounts]]], references: dict[str, int], top: int) -> dict[str, Any]:
    """Each task, and before them the mean of several. Variants by number; the first is what a study calls its base."""
    ks = (1, top) if top > 1 else (1,)
    names = ["base", *map(str, range(1, len(next(iter(counts.values())))))]
    grids = {
        (task, name): np.stack([[pass_at_k(r.totals, r.rights, k) for r in own] for k in (1, top)])  # (2, S, P)
        for task, by in counts.items()
        for name, own in zip(names, by)
    }
    found = Standings(top, grids)
    alone = {(s.task, s.variant): s for s in found.standing()}
    less = {ref: {(s.task, s.variant): s for s in found.less(names[at])} for ref, at in references.items()}
    groups = {}
    for task in [t for t in found.tasks if t == MEAN] + list(counts):
        tasks = list(counts) if task == MEAN else [task]
        rows = []
        for v, name in enumerate(names):
            own = alone[task, name]
            ticks = np.mean([grids[t, name].mean(2) for t in tasks], axis=0)  # (2, S)
            minus = {ref: by[task, name] for ref, by in less.items() if (task, name) in by}
            row = {
                "pass": dict(zip(ks, map(list, (own.pass_1, own.pass_n)))),
                "ticks": dict(zip(ks, ticks.tolist())),
                "minus": {ref: dict(zip(ks, map(list, (x.pass_1, x.pass_n)))) for ref, x in minus.items()},
                "judged": {ref: dict(zip(ks, map(list, x.corrected or ()))) for ref, x in minus.items()},
            }
            rows.append(row | _beside([variant_row(t, name, counts[t][v], counts[t][0][0]) for t in tasks]))
        problems = sum(counts[t][0][0].state.shape[0] for t in tasks)
        groups[AVERAGE if task == MEAN else task] = {"k": top, "problems": problems, "n": top, "rows": rows}
    return groups


def _beside(told: list[Row]) -> dict[str, float | None]:
    """Of a variant's rows, one a task: problems that only the base or only it solves; means over tasks where they are known."""
    distinct = [row.solutions.mean for row in told if row.solutions]
    cut = [row.truncated for row in told if row.truncated is not None]
    return {
        "lost": sum(row.lost for row in told),
        "gained": sum(row.gained for row in told),
        "distinct": float(np.mean(distinct)) if distinct else None,
        "truncated": float(np.mean(cut)) if len(cut) == len(told) else None,
    }


# ---- words ---------------------------------------------------------------------------------------------------------


def verdict(names: Sequence[str], ref: str, at: int, group: dict[str, Any]) -> list[str]:
    """At most two sentences, by the rule of the studies: better means better on both numbers, with three seeds or more, and
    intervals corrected for the number of variants."""
    k, rows = group["k"], group["rows"]
    others = [i for i in range(len(names)) if i not in (0, at)]
    if not others and (at == 0 or len(names) == 1):
        own = ", ".join(f"pass@{x} {_numbers(rows[0]['pass'][x])}" for x in dict.fromkeys((1, k)))
        return [f"{names[0]}: {own}. There is nothing to compare it with."]
    if not others:
        return [f"Only {names[at]} was trained: choose “against base”."]
    seeds = min(len(rows[i]["ticks"][1]) for i in ([*others, at] if at else others))
    what = "the base" if ref == "base" else names[at]
    if seeds < FEWEST:
        return [
            f"Not judged: {seeds} seed{'s' * (seeds > 1)} per variant, and {FEWEST} are needed.",
            _moves(names, rows, others, ref, "minus", k, f"In these runs, against {what}: "),
        ]
    better = [i for i in others if all(_side(rows[i]["judged"][ref][x]) > 0 for x in {1, k})]
    if better:
        best = max(better, key=lambda i: rows[i]["minus"][ref][k][0])
        gains = ", ".join(f"pass@{x} {_numbers(rows[best]['minus'][ref][x], '+')}" for x in dict.fromkeys((1, k)))
        also = [names[i] for i in better if i != best]
        more = [f"so {'is' if len(also) == 1 else 'are'} {', '.join(also)}"] if also else []
        broken = [f"{names[i]} ({', '.join(rows[i]['flags'])})" for i in better if rows[i]["flags"]]
        more += [f"flagged: {', '.join(broken)}"] if broken else []
        second = "; ".join(more)
        return [
            f"{names[best]} is better than {what} on both numbers: {gains}.",
            f"{second[:1].upper()}{second[1:]}." if second else "",
        ]
    return [
        f"No variant is better than {what} on both pass@1 and pass@{k}.",
        _moves(names, rows, others, ref, "judged", k, "Against it, "),
    ]


def _moves(names: Sequence[str], rows: list[Any], others: list[int], ref: str, which: str, k: int, lead: str) -> str:
    """Which variants' intervals exclude 0, in one sentence. A gain of a run with a health flag is never told without it."""
    parts = []
    for x in dict.fromkeys((1, k)):
        for word, side in (("higher", 1), ("lower", -1)):
            moved = [i for i in others if _side(rows[i][which][ref][x]) == side]
            if moved:
                told = [names[i] + " (flagged)" * (side > 0 and bool(rows[i]["flags"])) for i in moved]
                parts.append(f"pass@{x} is {word} for {', '.join(told)}")
    return f"{lead}{'; '.join(parts) or 'no difference is detected'}."


def _side(interval: Sequence[float]) -> int:
    """Of (mean, low, high): 1 where it lies above 0, −1 below, else 0."""
    return 1 if interval[1] > 0 else -1 if interval[2] < 0 else 0


def _numbers(interval: Sequence[float], sign: str = "") -> str:
    """The page's numbers have five digits, so that the words round what the page rounds."""
    mean, low, high = (f"{float(f'{x:.5g}'):{sign}.3f}".replace("-", "−") for x in interval)
    return f"{mean} [{low}, {high}]" if interval[1] == interval[1] else mean


# ---- health --------------------------------------------------------------------------------------------------------


def unhealthy(log: Sequence[dict[str, Any]], settings: dict[str, Any]) -> list[str]:
    """Flags of one log, each from the last fifth of what it logged."""

    def ends(name: str) -> tuple[float, float] | None:
        values = [float(e[name]) for e in log if isinstance(e.get(name), int | float)]
        part = max(1, len(values) // FIFTH)
        return (float(np.mean(values[:part])), float(np.mean(values[-part:]))) if values else None

    def last(*names: str) -> float:
        known = [pair[1] for pair in map(ends, names) if pair]
        return known[0] if known else float("nan")

    guided = settings.get("guide", "none") not in (None, "none") and settings.get("beta")
    entropy, reward = ends("entropy"), ends("reward")
    flags = {
        "truncated": last("completions/clipped_ratio") >= TRUNCATED,
        "idle guide": bool(guided) and last("sage/active") < IDLE,
        "bonus above reward": last("sage/bonus_to_reward") > 1,
        "no variance in groups": last("sage/zero_variance_groups", "frac_reward_zero_std") >= NO_VARIANCE,
        "entropy run-away": entropy is not None and entropy[1] > max(2 * entropy[0], entropy[0] + 0.5),
        "reward fell": reward is not None and reward[1] < reward[0] / 2,
    }
    return [name for name, on in flags.items() if on]
