"""The playground in Chromium against the Python lab: the same descent, to three digits."""

import pytest
import torch

from sage_rlvr.anchor import BranchGuide, TemperedGuide
from sage_rlvr.lab import solutions
from sage_rlvr.lab.descent import Arm, train
from sage_rlvr.lab.playground import SEEDS, playground, written
from sage_rlvr.lab.world import random_world, tree
from tests.report.browser import Browser, needs_browser

GUIDES = {
    "none": lambda ratio, threshold: None,
    "branch": lambda ratio, threshold: BranchGuide(ratio=ratio, threshold=threshold, source="reference"),
    "tempered": lambda ratio, threshold: TemperedGuide(ratio=ratio, threshold=threshold, source="reference"),
}
RUN = "const [world, s] = arguments; const w = JSON.parse(document.getElementById('worlds').textContent)[world]; " + (
    "return (({ reached, promised, distance, moved }) => [reached, promised, distance, moved])"
    "(Lab.run({ ...s, world: Lab.world(w) }))"
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


@needs_browser
@pytest.mark.parametrize("guide", sorted(GUIDES))
@pytest.mark.parametrize("estimator", ["k3", "k2", "k3+", "forward", "k1-reward"])
def test_it_reaches_what_the_lab_reaches(browser, guide, estimator):
    place, beta, ratio, threshold = (1, 0.3, 0.8, 1.0) if guide == "branch" else (0, 0.25, 0.6, 0.9)
    settings = {"guide": guide, "estimator": estimator, "beta": beta, "ratio": ratio, "threshold": threshold}
    reached, promised, distance, _ = browser.js(RUN, place, settings)
    world = rounded(SEEDS[place])
    log_q = world.log_q(GUIDES[guide](ratio, threshold))
    mine = world.probs(train(world, [Arm(estimator, log_q)], beta))[0]
    theory = solutions.sage(world, beta, log_q)
    assert torch.tensor(reached, dtype=torch.float64) == pytest.approx(mine.numpy(), abs=5e-4)
    assert torch.tensor(promised, dtype=torch.float64) == pytest.approx(theory.numpy(), abs=5e-4)
    assert distance == pytest.approx(float(solutions.total_variation(mine, theory)), abs=1e-3)


@needs_browser
def test_a_refused_pair_changes_nothing_and_says_why(browser):
    b = browser
    for guide, estimator, inert in (("branch", "k3+", True), ("branch", "k3", False), ("tempered", "k2", False)):
        for name, value in (("guide", guide), ("estimator", estimator)):
            b.js(CHOOSE, name, value)
        assert ("changes nothing" in b.text("#why")) == inert
        assert (float(b.text("#moved")) == 0.0) == inert
    assert b.errors() == []
    assert [u for u in b.requests() if not u.startswith(("file://", "data:", "chrome"))] == []
