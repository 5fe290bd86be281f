"""What may be claimed of a gain: by lines whose heights are known, with and without the low-rate control."""

import numpy as np
import pytest

from benchmarks.claims import CONTROL, NO_CONTROL, judged, over_control, verdict
from sage_rlvr.stats.frontier import Point, frontiers

SEEDS, PROBLEMS = 4, 60


def line(name, above, seeds=SEEDS, noise=0.02, at=(0.1, 0.2, 0.3)):
    """A family ``above`` the line from (.1, .9) to (.3, .5); its seeds differ by ``noise`` in pass@n."""
    luck = np.random.default_rng(len(name)).normal(0, noise, (len(at), seeds, 1))
    return [
        Point(
            f"{name}+beta{i}",
            np.full((seeds, PROBLEMS), x),
            1.1 - 2 * x + above + luck[i] + np.zeros((seeds, PROBLEMS)),
        )
        for i, x in enumerate(at)
    ]


def said(families, name="new", comparisons=1):
    (found,) = (f for f in frontiers(families, "grpo", comparisons) if f.family == name)
    return verdict(found, len(families[name]), over_control(families, name, comparisons))


def test_an_interval_above_0_is_no_claim_without_the_low_rate_control():
    families = {"grpo": line("grpo", 0.0), "new": line("new", 0.2)}
    assert frontiers(families, "grpo")[1].gain.low > 0.1
    assert said(families).endswith(NO_CONTROL)


@pytest.mark.parametrize(
    ("low_rate", "end"),
    [
        (line(CONTROL, 0.0), r"over the low-rate control\)"),  # the control gives nothing: the method does
        (line(CONTROL, 0.2), "not claimed: over the low-rate control it has"),  # the control gives it all
        (line(CONTROL, 0.0)[1:2], r"over the low-rate control\)"),  # one arm: the family's line is held against it
        (line(CONTROL, 0.2)[1:2], "not claimed: over the low-rate control it has"),
        (line(CONTROL, 0.0, seeds=2), "fewer than 3 seeds"),
        (line(CONTROL, 0.0, at=(0.5, 0.6)), "shares no range of pass@1 with the low-rate control"),
    ],
)
def test_a_claim_needs_a_gain_over_the_control_too(low_rate, end):
    families = {"grpo": line("grpo", 0.0), "new": line("new", 0.2), CONTROL: low_rate}
    text = said(families)
    assert ("moves the frontier" in text) == end.startswith("over"), text
    assert end.replace("\\", "") in text


def test_many_families_at_once_need_more():
    """Above 0 by itself, not for a thousand families: no claim, and the sentence gives both intervals."""
    families = {"grpo": line("grpo", 0.0), "new": line("new", 0.035), CONTROL: line(CONTROL, -0.3)}
    assert "moves the frontier" in said(families)
    assert "not claimed: the corrected interval holds 0" in said(families, comparisons=1000)
    assert "corrected for 1000 families" in said(families, comparisons=1000)


def test_below_undecided_and_not_judged():
    families = {
        "grpo": line("grpo", 0.0), "low": line("low", -0.2), "same": line("same", 0.0, noise=0.03),
        "two": line("two", 0.2, seeds=2), "one": line("one", 0.2)[:1], "far": line("far", 0.0, at=(0.5, 0.6)),
    }  # fmt: skip
    assert said(families, "low").endswith("it lies below the frontier")
    assert "no detectable difference, minimum detectable effect (80% power) 0." in said(families, "same")
    assert said(families, "two") == "is not judged (2 seeds of 3)"
    assert said(families, "one") == "has one setting, so no frontier, and is not judged"
    assert said(families, "far") == "shares no range of pass@1 with the reference and is not judged"
    assert judged(families | {CONTROL: line(CONTROL, 0)}, ["grpo"]) == ["low", "same", "two", "far"]
