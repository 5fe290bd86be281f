"""The planes of pass@1 and pass@k on a study's page: gains, strata, verdicts, the figure. benchmarks/results.py calls it."""

from typing import Any

import numpy as np
import why
from claims import CONTROL, judged, over_control, pairs, verdict
from controls import HALF, MIXED, null, positive
from guess import guess_line
from room import families_of, over_low_rate, rules
from steady import steady

from sage_rlvr.show.figures_study import draw_frontier
from sage_rlvr.stats.frontier import Families, Frontier, Planes, frontiers, on_problems
from sage_rlvr.stats.intervals import FEWEST, Interval
from sage_rlvr.stats.matched import matched
from sage_rlvr.stats.table import markdown, shown
from sage_rlvr.study.plan import Study
from sage_rlvr.study.read import Finished, read_planes

REFERENCES = ("reference", "grpo_k3", "grpo_k3plus", "grpo_k1")  # the first is what studies/confirm.yaml holds all to
KS = (16, 64)  # beside n
ROOM, EASIEST = 25 / 256, 0.15  # share of the base's samples that are right; share of the problems
RAN = {"frontier": "verified_own_k1"}  # the guide that a search's confirmation ran


def frontier_part(page: Any, done: Finished, task: str, whole: Study | None) -> None:
    """Gains over each reference that was swept; nothing where none was. ``whole``: the study, once all of it is done."""
    planes = read_planes(done, task)
    families = planes.families()
    references = [r for r in REFERENCES if len(families.get(r, [])) > 1]
    if not references:
        return
    n, base = planes.k, steady(planes.start)
    asked = judged(families, references)
    found = {
        r: {f.family: f for f in steady(frontiers(families, r, max(1, len(asked)), heights=False))} for r in references
    }
    points = {r: {p.variant: p for p in steady(matched(families, r))} for r in references}
    swept = [family for family, own in families.items() if len(own) > 1]
    sizes = ", ".join(str(own.size) for own in planes.strata)
    unequal = " The study is not done: arms have unequal numbers of seeds, which alone can move a gain."
    page.add(
        f"### {task}: frontiers",
        f"Gain: mean height of a family's frontier (pass@{n} over pass@1, a line through all of its arms) minus the reference's, "
        "where both are (“on”: that range of pass@1). 95% intervals over problems and seeds; “–”: no range is shared."
        + f" Compared within {len(planes.strata)} strata ({sizes} problems), then averaged." * bool(planes.strata)
        + unequal * (whole is None),
        markdown(
            ["family", "points", *(f"gain over {r}" for r in references)],
            [
                [f, str(len(families[f])), *(_gain(found[r][f]) if f != r else "itself" for r in references)]
                for f in swept
            ],
        ),
    )
    at_k = {k: planes.families(k) for k in (*KS, planes.n) if k <= planes.n}
    smaller_k(page, {k: at_k[k] for k in at_k if k < planes.n}, references, swept)
    if planes.strata:
        controls_part(page, planes, references[0])
    one_setting(page, families, points, references, n)
    searched = "primary" in done.study.evaluate and references[0] != REFERENCES[0]
    chosen, guess = (
        references[0] if searched else reference_of(found),
        guess_line(task, planes.problems, n, planes.strata),
    )
    first = task == done.study.evaluate["tasks"][0]
    if searched and first:
        page.facts |= {"n": n, "base": base, "points": points[chosen], "guess": guess, "runs": runs_of(planes)}
        page.facts["rows"] = rows = families_of(done.study, families, found[chosen])
        page.add("The same over the control, GRPO at a third of the learning rate.", over_low_rate(rows))
    elif searched:
        page.facts["far"] = found[chosen]
    if whole is not None and first:
        page.facts |= {"n": n, "found": found[chosen], "judged": asked, "base": base, "points": points[chosen]}
        page.facts |= {"guess": guess, "runs": runs_of(planes), "control": CONTROL in families}
        page.facts |= {"room": strata_part(page, planes, at_k, references, asked, chosen), "room_of": _room(planes)}
        page.facts["over_control"] = {f: steady(over_control(families, f, len(asked))) for f in asked}
        told = rules(page.facts["rows"], families) if searched else None
        if searched and planes.strata:
            own = (done.probe[task], done.runs["base"][task])
            page.facts |= steady(why.facts(planes, *(counts.only(planes.problems) for counts in own)))
        page.facts["told"] = rules_part(page, whole, families, found, n, told)
    drawn = [*points[chosen].values()], [*found[chosen].values()]
    page.show(draw_frontier(f"{page.stem}-{task}-{chosen}.svg", *drawn, chosen, n, base, steady(guess)))


def runs_of(planes: Planes) -> dict[str, int]:
    return {family: sum(map(len, arms.values())) for family, arms in planes.runs.items()}


def reference_of(found: dict[str, dict[str, Frontier]]) -> str:
    """Rule 2: "reference" in a confirmation; else the estimator with the highest gain over the first, if any is above 0."""
    first = next(iter(found))
    gains = {r: f.gain.mean for r, f in found[first].items() if r in found and f.gain is not None and f.gain.mean > 0}
    return first if first == REFERENCES[0] else max(gains, key=lambda r: gains[r], default=first)


def smaller_k(page: Any, at_k: dict[int, Families], references: list[str], swept: list[str]) -> None:
    if not at_k:
        return
    at = {(r, k): _gains(at_k[k], r) for r in references for k in at_k}
    page.add(
        "The same at smaller k: gain in pass@k at the same pass@1.",
        markdown(
            ["family", *(f"pass@{k} over {r}" for r, k in at)],
            [[f, *("itself" if f == r else shown(at[r, k][f], sign="+") for r, k in at)] for f in swept],
        ),
    )


def _gains(families: Families, reference: str) -> dict[str, Interval | None]:
    return {f.family: f.gain for f in steady(frontiers(families, reference, heights=False))}


def controls_part(page: Any, planes: Planes, family: str) -> None:
    """Does the instrument find a gain that is there, and none where there is none?"""
    arms = planes.runs[family].values()
    seeds, drawn = min(map(len, arms)), min(len(run.seeds) for own in arms for run in own)
    if seeds < 2 * FEWEST or drawn < 2:
        page.add(
            "### Controls of the instrument",
            f"Not judged: `{family}` has {seeds} seeds and {drawn} evaluation seeds; the controls need {2 * FEWEST} and 2.",
        )
        return
    rows = []
    for control, name, made in (("positive", MIXED, positive), ("null", HALF, null)):
        gain = _gains(made(planes, family).families(), family)[name]
        found = gain is not None and gain.low > 0
        rows.append(
            [
                control,
                name,
                shown(gain, sign="+"),
                "as it must be" if found == (control == "positive") else "**not so**",
            ]
        )
    page.add(
        "### Controls of the instrument",
        f"Both are made of `{family}`'s own samples. Two seeds mixed, half of the samples of each, have more pass@k by "
        "arithmetic: a gain must be found. Half of the seeds against the other half: none may be found.",
        markdown(["control", f"`{family}` against", "gain", ""], rows),
    )


def one_setting(page: Any, families: Families, points: dict[str, Any], references: list[str], n: int) -> None:
    body = [
        [v, str(p.seeds), shown(p.pass_1), shown(p.pass_n), *(shown(points[r][v].gain, sign="+") for r in references)]
        for v, p in points[references[0]].items()
        if len(families[p.family]) == 1
    ]
    if body:
        page.add(
            f"Arms with one setting. Matched gain: pass@{n} minus that of the reference's frontier at the arm's own pass@1; "
            "“–”: the frontier does not reach that far, or so nearly that a tenth of studies would say so. Near the end of a "
            "steep frontier these intervals hold 85 to 90 times in 100, not 95, so they decide nothing.",
            markdown(
                ["variant", "seeds", "pass@1", f"pass@{n}", *(f"matched gain over {r}" for r in references)], body
            ),
        )


def _room(planes: Planes) -> str:
    return f"base right ≤ {round(ROOM * planes.sorts)} of {planes.sorts}"


def strata_part(
    page: Any, planes: Planes, at_k: dict[int, Families], references: list[str], asked: list[str], chosen: str
) -> dict[str, Interval | None]:
    """Gains where the base had room and where it had none: by the base's counts alone, never by an arm's. Answers those with
    room, at n, over the reference that was ``chosen``."""
    if planes.base is None or planes.n <= max(KS):
        return {}
    base, room = planes.base, round(ROOM * planes.sorts)
    with_room = dict[str, Interval | None]()
    strata = {
        f"without the base's easiest {EASIEST:.0%}": np.argsort(base, kind="stable")[
            : round((1 - EASIEST) * base.size)
        ],
        _room(planes): np.flatnonzero(base <= room),
        f"base right > {room} of {planes.sorts}": np.flatnonzero(base > room),
    }
    body, ks = [], (*KS, planes.n)
    for name, own in strata.items():
        if own.size > 1:
            here = {k: on_problems(at_k[k], own) for k in ks}
            at = {(r, k): _gains(here[k], r) for r in references for k in ks}
            with_room = at[chosen, planes.n] if name == _room(planes) else with_room
            body += [[f"{name} ({own.size})", f, *(shown(x[f], sign="+") for x in at.values())] for f in asked]
    page.add(
        "### By what the base could do",
        "**Post hoc:** made after the study's own numbers were known, corrected for nothing. A reason to confirm, not a result. "
        "Problems are sorted by the base's right answers; gains at the same pass@1 as above.",
        markdown(["problems", "family", *(f"pass@{k} over {r}" for r in references for k in ks)], body),
    )
    return with_room


def rules_part(
    page: Any,
    study: Study,
    families: Families,
    found: dict[str, dict[str, Frontier]],
    n: int,
    told: list[str] | None = None,
) -> list[str]:
    """What the protocol's rules say of a study that is done: ``told``, or 2 and 3 of a search without a primary measure, or the
    verdicts of a confirmation. Answers the sentences."""
    reference = reference_of(found) if told is None else next(iter(found))
    gains = {name: f.gain for name, f in found[reference].items() if f.gain is not None}
    if told is not None:
        pass
    elif reference == REFERENCES[0]:
        rule = 1 if "primary" in study.evaluate else 4  # of its own protocol
        named = [f for f in found[reference].values() if f.family not in found and f.family != CONTROL]
        told = [f"- Rule {rule}: `{f.family}`: {_verdict(f, families)}." for f in named]
    else:
        swept = [name for name in gains if len(families[name]) >= len(families[reference])]
        others = {name: gains[name] for name in swept if name not in found}
        guided = {
            study.family_of(v) for v, settings in study.variants.items() if settings.get("guide", "none") != "none"
        }
        told = [f"- Rule 2: the reference is `{reference}`."]
        if others.keys() & guided:
            best = max(others.keys() & guided, key=lambda name: (others[name].low, name))
            ran = RAN.get(study.name, best)
            told.append(
                f"- Rule 3: of the guides the highest lower end has `{best}`, {shown(others[best], sign='+')}."
                + f" The confirmation ran `{ran}`, which a line through the best arms alone had named." * (ran != best)
            )
        if others:
            best = max(others, key=lambda name: (others[name].mean, name))
            told.append(
                f"- Of all families, rewards of our own too, the highest gain has `{best}`, {shown(others[best], sign='+')}."
            )
        above = [name for name in others if (wide := found[reference][name].corrected) is not None and wide.low > 0]
        count = found[reference][next(iter(others), reference)].comparisons
        told.append(
            f"- Corrected for {count} families (Bonferroni), {', '.join(f'`{x}`' for x in above) or 'no family'} has an interval "
            "above 0." + " This study has no low-rate control: nothing is claimed." * (CONTROL not in families)
        )
    both = steady(pairs(families, reference))
    page.add(
        "### What the rules say",
        "\n".join(told),
        f"Arm against arm at the same setting: the difference to `{reference}`, intervals over problems and seeds that hold with "
        "95% for all settings of a family at once.",
        markdown(
            ["variant", f"pass@1 minus {reference}'s", f"pass@{n} minus {reference}'s", "better on both"],
            [
                [p.variant, shown(p.pass_1, sign="+"), shown(p.pass_n, sign="+"), "yes" if p.better_on_both else "no"]
                for p in both
            ],
        ),
    )
    return told


def _verdict(f: Frontier, families: Families) -> str:
    swept = len(families[f.family]) > 1
    control = steady(over_control(families, f.family, f.comparisons)) if swept else None
    return verdict(f, len(families[f.family]), control)


def _gain(f: Frontier) -> str:
    return "–" if f.over is None else f"{shown(f.gain, sign='+')} on {f.over[0]:.3f}–{f.over[1]:.3f}"
