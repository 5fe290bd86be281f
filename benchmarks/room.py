"""The harder miniature: what its search says of each family, and which ones are confirmed (docs/protocols/hard.md).

A study is such a search if it names a primary measure and has no family called ``reference``. Its reference is GRPO with k3.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims import CONTROL, OverControl, over_control, verdict

from sage_rlvr.show.figures_study import GREY, GUESS
from sage_rlvr.show.style import INK, MARK, Figure, legend, panels, save
from sage_rlvr.stats.frontier import Families, Frontier, in_order
from sage_rlvr.stats.table import markdown, shown
from sage_rlvr.study.plan import Study

GRPO = "grpo_k3"
CONFIRMED = ("advantage", "guide", "cross")  # rule 2 takes the best of each
PLAIN = (None, "group")  # GRPO's own advantage
FIGURE = "room.svg"


@dataclass(frozen=True)
class Family:
    name: str
    kind: str
    gain: Frontier  # over GRPO
    control: OverControl | None  # over the low rate, one family alone; the control's own is None


def kind_of(study: Study, family: str) -> str:
    """By its settings: a guide, an advantage, or a cross of two of these; else a control, or plain GRPO."""
    settings = next(own for variant, own in study.variants.items() if study.family_of(variant) == family)
    named = settings.get("advantage")
    ways = [way for way in (named if isinstance(named, list) else [named]) if way not in PLAIN]
    guided = settings.get("guide", "none") != "none"
    if len(ways) + guided > 1:
        return "cross"
    if ways or guided:
        return "advantage" if ways else "guide"
    return "GRPO" if family.startswith("grpo") else "control"


def families_of(study: Study, families: Families, found: dict[str, Frontier]) -> list[Family]:
    """Every swept family but GRPO (k3), the highest lower end first, those that share no range with GRPO last."""
    rows = [
        Family(name, kind_of(study, name), f, over_control(families, name) if f.gain else None)
        for name, f in found.items()
        if name != GRPO and len(families[name]) > 1
    ]
    return sorted(rows, key=lambda row: row.gain.gain.low if row.gain.gain else -1.0, reverse=True)


def confirmed(rows: list[Family]) -> dict[str, Family]:
    """Rule 2: of each kind the family with the highest lower end."""
    return {kind: next(row for row in rows if row.kind == kind and row.gain.gain) for kind in CONFIRMED}


def rules(rows: list[Family], families: Families) -> list[str]:
    """What rules 1 and 2 say of a search that is done."""
    told = []
    for row in (row for row in rows if row.kind != "GRPO" and row.name != CONTROL):
        control = over_control(families, row.name, row.gain.comparisons)
        told.append((row.name, verdict(row.gain, len(families[row.name]), control)))
    moved = [f"- Rule 1: `{name}`: {said}." for name, said in told if "moves the frontier" in said]
    taken = [f"`{row.name}` ({kind}, {shown(row.gain.gain, sign='+')})" for kind, row in confirmed(rows).items()]
    return [
        *(moved or [f"- Rule 1: none of {len(told)} families moves the frontier."]),
        f"- Rule 2: the confirmation takes {', '.join(taken)}.",
    ]


def over_low_rate(rows: list[Family]) -> str:
    body = [[f"`{row.name}`", shown(row.control.gain if row.control else None, sign="+")] for row in rows]
    return markdown(["family", f"gain over {CONTROL}"], [row for row in body if CONTROL not in row[0]])


def table(rows: list[Family], far: dict[str, Frontier], minutes: dict[str, float]) -> str:
    """``far``: gains out of distribution; ``minutes``: of a GPU, by family."""
    head = [
        "family",
        "kind",
        "seeds",
        "gain over GRPO",
        "gain over the low rate",
        "far set: gain over GRPO",
        "GPU-minutes",
    ]
    body = [
        [
            f"`{row.name}`",
            row.kind,
            str(row.gain.seeds),
            shown(row.gain.gain, sign="+"),
            "itself" if row.name == CONTROL else shown(row.control.gain if row.control else None, sign="+"),
            shown(far[row.name].gain, sign="+"),
            f"{minutes[row.name]:.1f}",
        ]
        for row in rows
    ]
    return markdown(head, body)


def room_figure(stem: Path, facts: dict[str, Any]) -> Figure | None:
    """The plane of the primary measure: GRPO, the low rate, the best of each kind, each point one β."""
    if "rows" not in facts:
        return None
    best = [row.name for row in confirmed(facts["rows"]).values()]
    drawn = {GRPO: (GREY, "-"), CONTROL: (GREY, "--")} | {name: (ink, "-") for name, ink in zip(best, INK)}
    names = {GRPO: "GRPO (k3)", CONTROL: "GRPO, a third of the learning rate"}
    with panels(1, width=6.4, height=4.2) as (figure, axes):
        ax = axes[0, 0]
        for (family, (colour, dash)), mark in zip(drawn.items(), MARK):
            own = in_order([p for p in facts["points"].values() if p.family == family])
            x, y = ([getattr(p, which).mean for p in own] for which in ("pass_1", "pass_n"))
            ax.plot(x, y, color=colour, ls=dash, marker=mark, ms=4, label=names.get(family, family))
        ax.plot(*facts["base"], "*", color="black", ms=10, ls="none", label="base")
        below = f"guessing: {facts['guess']:.2f}, far below"  # as a line it would press the others flat
        ax.annotate(below, (0.99, 0.02), xycoords="axes fraction", ha="right", color=GUESS)
        ax.set_xlabel("pass@1")
        ax.set_ylabel(f"pass@{facts['n']}")
        legend(figure, axes)
        gains = ", ".join(f"{row.name} {shown(row.gain.gain, sign='+')}" for row in confirmed(facts["rows"]).values())
        told = (
            f"Harder miniature: pass@{facts['n']} against pass@1, a point for each β. Gains over GRPO: {gains}. The base's "
            f"pass@{facts['n']} is {facts['base'][1]:.2f}, guessing has {facts['guess']:.2f}."
        )
        return save(figure, stem.with_name(FIGURE), told)
