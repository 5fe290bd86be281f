"""The playground in Chromium against the Python lab: the same descent, to three digits."""

import math
from functools import partial

import pytest
import torch

from sage_rlvr.anchor import BranchGuide, TemperedGuide
from sage_rlvr.lab import groups, solutions
from sage_rlvr.lab.descent import Arm, train
from sage_rlvr.lab.playground import ADVANTAGES, SEEDS, playground, written
from sage_rlvr.lab.world import random_world, tree
from tests.report.browser import Browser, needs_browser

GUIDES = {
    "none": lambda ratio, threshold: None,
    "branch": lambda ratio, threshold: BranchGuide(ratio=ratio, threshold=threshold, source="reference"),
    "tempered": lambda ratio, threshold: TemperedGuide(ratio=ratio, threshold=threshold, source="reference"),
}
RUN = "const [world, s] = arguments; const w = JSON.parse(document.getElementById('worlds').textContent)[world]; " + (
    "return (({ reached, promised, distance, moved }) => [reached, promised, distance, moved])"
    "(Lab.run({ ...s, world: Lab.world(w), pay: JSON.parse(document.getElementById('pays').textContent)[s.advantage] }))"
)

CHOOSE = "const x = document.getElementById(arguments[0]); x.value = arguments[1]; x.dispatchEvent(new Event('change'))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = tmp_path_factory.mktemp("playground") / "playground.html"
    path.write_text(playground(), encoding="utf-8")
    b = Browser()
    b.size(1200)
    b.driver.get(path.as_uri())
    yield b
    b.close()


def rounded(seed):
    """The page's own world: logits of four digits."""
    there = written(random_world(seed))
    return tree(torch.tensor(there["ref"], dtype=torch.float64), torch.tensor(there["reward"], dtype=torch.float64), 3)


ESTIMATORS = ("k3", "k2", "k3+", "forward", "k1-reward")


def promised(world, beta, log_q, pay):
    """(Y,) Eq. 4 with the reward gap(p), where p agrees with itself: logit p = logit p₀ + gap(p)/β, p₀ the chance to be right
    under q·π_ref. Of several solutions the first that is met from π_ref."""
    start = float(solutions.sage(world, math.inf, log_q)[world.valid].sum().logit())

    def short(x):
        return start + pay.gap(1 / (1 + math.exp(-x))) / beta - x

    low = float(world.ref[world.valid].sum().logit())
    step = 0.1 if short(low) > 0 else -0.1
    while short(low + step) * step > 0:
        low += step
    high = low + step
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) * step > 0 else (low, middle)
    return solutions.sage(world, beta / pay.gap(1 / (1 + math.exp(-low))), log_q)


def compare(browser, place, settings, theory, arms, world):
    """Every arm's end and promise, the page's against the lab's; the page's distances by estimator."""
    ends, distances = world.probs(train(world, arms, settings["beta"])), {}
    for arm, mine in zip(arms, ends):
        reached, promised, distance, _ = browser.js(RUN, place, settings | {"estimator": arm.estimator})
        assert torch.tensor(reached, dtype=torch.float64) == pytest.approx(mine.numpy(), abs=5e-4)
        assert torch.tensor(promised, dtype=torch.float64) == pytest.approx(theory.numpy(), abs=5e-4)
        assert distance == pytest.approx(float(solutions.total_variation(mine, theory)), abs=1e-3)
        distances[arm.estimator] = distance
    return distances


@needs_browser
@pytest.mark.parametrize("guide", sorted(GUIDES))
def test_it_reaches_what_the_lab_reaches(browser, guide):
    place, beta, ratio, threshold = (1, 0.3, 0.8, 1.0) if guide == "branch" else (0, 0.25, 0.6, 0.9)
    settings = {"guide": guide, "beta": beta, "ratio": ratio, "threshold": threshold}
    world = rounded(SEEDS[place])
    log_q = world.log_q(GUIDES[guide](ratio, threshold))
    arms = [Arm(estimator, log_q) for estimator in ESTIMATORS]
    compare(browser, place, settings, solutions.sage(world, beta, log_q), arms, world)


@needs_browser
@pytest.mark.parametrize("advantage", sorted(ADVANTAGES))
def test_every_advantage_reaches_what_the_lab_reaches(browser, advantage):
    settings = {"guide": "branch", "beta": 0.3, "ratio": 0.8, "threshold": 1.0, "advantage": advantage}
    world = rounded(SEEDS[2])
    log_q = world.log_q(GUIDES["branch"](0.8, 1.0))
    name, args = ADVANTAGES[advantage]
    pay = groups.credit(name, **args)
    arms = [Arm(estimator, log_q, pay=partial(pay.of, world)) for estimator in ("k3", "k1-reward")]
    distances = compare(browser, 2, settings, promised(world, 0.3, log_q, pay), arms, world)
    assert distances["k1-reward"] < 1e-3 < distances["k3"]  # the exact gradient reaches the closed form


@needs_browser
def test_a_refused_pair_changes_nothing_and_says_why(browser):
    b = browser
    for guide, estimator, inert in (("branch", "k3+", True), ("branch", "k3", False), ("tempered", "k2", False)):
        for name, value in (("guide", guide), ("estimator", estimator)):
            b.js(CHOOSE, name, value)
        assert ("changes nothing" in b.text("#why")) == inert
        assert (float(b.text("#moved")) == 0.0) == inert
    b.js(CHOOSE, "advantage", "GRPO: group")
    assert float(b.text("#gap")) > 1.5  # the advantage is used
    assert b.js("return [...document.querySelectorAll('select, input')].filter((x) => !x.labels.length).length") == 0
    assert len(b.all("#picture rect")) == 1 + 3 * 64
    assert b.errors() == []
    assert [u for u in b.requests() if not u.startswith(("file://", "data:", "chrome"))] == []
