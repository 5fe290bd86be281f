"""What may be said of a family's gain over a frontier: the one place where a study's claims are decided.

"Moves the frontier" needs three things: an interval above 0 that holds for all judged families at once (Bonferroni), a gain above
0 over the low-rate control as well, and three seeds. A smaller learning rate alone keeps pass@k, so a gain that it gives too
belongs to no method. A study without that control claims nothing, whatever its intervals say.

And what is told beside it: an arm against the reference's at the same setting, a family against the references that share its
estimator of the KL.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sage_rlvr.stats.against import detectable
from sage_rlvr.stats.distance import Excess, Run, excesses
from sage_rlvr.stats.frontier import Frontier, Point, by_stratum, frontiers, setting
from sage_rlvr.stats.intervals import FEWEST, Interval, crossed
from sage_rlvr.stats.matched import matched
from sage_rlvr.stats.table import shown

CONTROL = "low_rate"  # the family, or the one arm, of plain GRPO at a smaller learning rate
NO_CONTROL = "not claimed: this study has no low-rate control"


@dataclass(frozen=True)
class OverControl:
    """A family's gain over the low-rate control; None where the two share no range of pass@1."""

    gain: Interval | None
    seeds: int


def over_control(families: dict[str, list[Point]], family: str, comparisons: int = 1) -> OverControl | None:
    """None where the study has no such control. A control with one setting is a point: the family's line is held against it."""
    if CONTROL not in families or family == CONTROL:
        return None
    two = {name: families[name] for name in (family, CONTROL)}
    seeds = min(len(p.x) for points in two.values() for p in points)
    if len(two[CONTROL]) > 1:
        return OverControl(frontiers(two, CONTROL, comparisons)[0].corrected, seeds)
    point = matched(two, family, 1 - 0.05 / comparisons)[-1].gain
    return OverControl(None if point is None else Interval(-point.mean, -point.high, -point.low), seeds)


def verdict(f: Frontier, settings: int, control: OverControl | None) -> str:
    """One sentence without its subject. ``settings``: how many the family has; ``control``: its gain over the low rate."""
    if settings == 1:
        return "has one setting, so no frontier, and is not judged"
    if f.seeds < FEWEST:
        return f"is not judged ({f.seeds} seed{'s' * (f.seeds > 1)} of {FEWEST})"
    if f.gain is None or f.corrected is None:
        return "shares no range of pass@1 with the reference and is not judged"
    gain = shown(f.gain, 4 if abs(f.gain.low) < 0.0005 else 3, "+") + _all_at_once(f)
    if f.corrected.high < 0:
        return f"{gain}; it lies below the frontier"
    if f.gain.low <= 0:
        size = f"{detectable(f.gain):.3f}"
        return f"{gain}; no detectable difference, minimum detectable effect (80% power) {size}"
    return f"{gain}; {_claim(f.corrected, control)}"


def _all_at_once(f: Frontier) -> str:
    if f.comparisons == 1 or f.corrected is None:
        return ""
    return f" ([{f.corrected.low:+.3f}, {f.corrected.high:+.3f}] corrected for {f.comparisons} families)"


def _claim(corrected: Interval, control: OverControl | None) -> str:
    if control is None:
        return NO_CONTROL
    if corrected.low <= 0:
        return "not claimed: the corrected interval holds 0"
    if control.seeds < FEWEST:
        return f"not claimed: the low-rate control has fewer than {FEWEST} seeds"
    if control.gain is None:
        return "not claimed: it shares no range of pass@1 with the low-rate control"
    if control.gain.low <= 0:
        return f"not claimed: over the low-rate control it has {shown(control.gain, sign='+')}"
    return f"moves the frontier ({shown(control.gain, sign='+')} over the low-rate control)"


def judged(families: dict[str, list[Point]], but: Sequence[str]) -> list[str]:
    """The families that a verdict is asked of: swept, and neither a reference nor the control."""
    return [name for name, own in families.items() if len(own) > 1 and name not in (*but, CONTROL)]


# ---- beside it ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """An arm minus the reference's at the same setting of the sweep."""

    variant: str
    against: str
    pass_1: Interval
    pass_n: Interval
    seeds: int  # of the two, the fewer

    @property
    def better_on_both(self) -> bool:
        return self.seeds >= FEWEST and self.pass_1.low > 0 and self.pass_n.low > 0


def pairs(families: dict[str, list[Point]], reference: str) -> list[Pair]:
    """Every arm whose setting the reference has too. A family's intervals hold all at once with 95% (Bonferroni): with six
    settings one of them would else look better too often."""
    found = []
    at = {setting(p.variant): p for p in families[reference]}
    for family, points in families.items():
        level = 1 - 0.05 / len(points)
        for p in points:
            theirs = at.get(setting(p.variant))
            if family == reference or theirs is None or setting(p.variant) is None:
                continue
            strata, size = by_stratum([p, theirs]), len(p.tables)
            one, many = (crossed(*([a[i] / size, -b[i] / size] for a, b in strata)).interval(level) for i in (0, 1))
            found.append(Pair(p.variant, theirs.variant, one, many, min(len(p.x), len(theirs.x))))
    return found


def like_for_like(runs: Sequence[Run], references: Sequence[str]) -> list[Excess]:
    """Every family but the references, against the curve of those that share its estimator; where there are none, or too few
    for a curve, against the curve of all of them."""
    found: dict[str, Excess] = {}
    for estimator in dict.fromkeys(r.estimator for r in runs):
        alike = [r for r in runs if r.estimator == estimator]
        curve = [f for f in references if any(r.family == f for r in alike)]
        with_all = [*alike, *(r for r in runs if r.family in references and r.estimator != estimator)]
        found |= {e.family: e for e in (excesses(alike, curve) if curve else []) or excesses(with_all, references)}
    return [found[f] for f in dict.fromkeys(r.family for r in runs) if f in found and f not in references]
