"""The lab: where descent ends, against the closed forms; and each check's ability to fail."""

import io
import json
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sage_rlvr import anchor_penalty, cli
from sage_rlvr.lab import solutions, theory
from sage_rlvr.lab.descent import Arm, expected_gradient, train
from sage_rlvr.lab.world import World, random_world
from sage_rlvr.show import console_lab as page
from sage_rlvr.show import figures_lab as figures


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """``sage-rlvr lab`` of seed 0, once for all tests: its exit status, what it printed, its folder, and the policies that
    descent left, with their arms. In half of the verb's steps, by which it has stopped (asked below), and with fewer draws of
    noise than in the slow test."""
    folder, kept, out = tmp_path_factory.mktemp("lab") / "lab", [], io.StringIO()

    def keeping(world, arms, beta, **how):
        kept.append((world, arms, train(world, arms, beta, **how)))
        return kept[-1][-1]

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(page, "train", keeping)
        patch.setattr(page, "STEPS", 300)
        patch.setattr(theory, "random_is_noise", partial(theory.random_is_noise, draws=400))
        code = cli.main(["lab", "--out", str(folder)])
    return SimpleNamespace(code=code, printed=out.getvalue(), folder=folder, ended=kept[0])


@pytest.fixture(scope="module")
def measured(said):
    record = json.loads((said.folder / "lab.json").read_text())
    return page.Distances(record["distances"], record["guide_moves_target"], record["guide_against_none"])


IMAGES = Path(__file__).parents[2] / "docs" / "img"
GUIDES = ["none", "branch", "token", "tempered", "random"]
PAST_ONLY = ["none", "branch", "tempered", "random"]


@pytest.mark.parametrize("guide", GUIDES)
def test_k1_reward_reaches_its_solution(measured, guide):
    assert measured.final["k1-reward"][guide] < 1e-3


def test_to_go_credit_is_exact_for_the_past_alone(measured):
    for guide in PAST_ONLY:
        assert measured.final["k1-reward, to_go"][guide] < 1e-3
    assert measured.final["k1-reward, to_go"]["token"] > 5e-3, "the token guide looks ahead, and misses"


@pytest.mark.parametrize("guide", GUIDES)
def test_k3_does_not_reach_it(measured, guide):
    assert measured.final["k3"][guide] > 0.05


@pytest.mark.parametrize("estimator", ["k2", "k3+"])
def test_branch_is_inert_and_tempered_is_not(measured, estimator):
    assert measured.inert[estimator]["branch"] < 1e-6
    assert measured.inert[estimator]["tempered"] > 1e-3
    assert measured.moved["branch"] > 0.01, "though it does move the target"


def test_estimators_with_one_gradient_end_in_one_place(measured):
    for guide in GUIDES:
        assert measured.final["k2"][guide] == pytest.approx(measured.final["k3+"][guide], abs=1e-9)
        assert measured.final["k3"][guide] == pytest.approx(measured.final["forward"][guide], abs=1e-9)


def test_descent_has_converged(said):
    """To the last digit, but for forward-value: its pull is at most 1/e, so it lets go and the rest is a slow crawl."""
    world, arms, logits = said.ended
    assert len(arms) == len(page.ROWS) * len(GUIDES)
    left = expected_gradient(world, logits, arms, theory.BETA).abs().amax((1, 2))
    for arm, gradient in zip(arms, left):
        assert gradient < (1e-6 if arm.estimator == "forward-value" else 1e-10), arm.estimator


def test_forward_value_cannot_hold_a_policy_that_has_left():
    """∂/∂log π of ρ·log ρ − ρ + 1 is −ρ·log ρ: never above 1/e, and vanishing far from the anchor; k3's grows to 1."""
    logps = torch.linspace(0, 20, 400, dtype=torch.float64)[None].requires_grad_()  # the anchor is at 0
    zero = torch.zeros_like(logps)
    pull = {
        e: torch.autograd.grad(anchor_penalty(logps, zero, zero, e).sum(), logps)[0]
        for e in ("forward-value", "k3", "k2")
    }
    assert float(pull["forward-value"].max()) == pytest.approx(1 / torch.e, abs=1e-3)
    assert pull["forward-value"][0, -1] < 1e-6
    assert pull["k3"][0, -1] > 0.999
    assert pull["k2"][0, -1] > 19


@pytest.mark.slow
def test_every_check_holds(monkeypatch):
    """In another world than the verb's, of which a faster test says the same below. What has its own worlds is the same there."""
    for name in ("separation", "appendix_c", "endless", "theorem_4_2", "grows_with_difficulty"):
        monkeypatch.setattr(theory, name, lambda: theory.Check("", "", True))
    results = list(theory.checks(seed=1))
    assert len(results) == 12
    assert [c.statement for c in results if not c.holds] == []


def test_checks_can_fail(monkeypatch):
    """A wrong Eq. 4 (q forgotten, then q squared) is caught by the identity, the toy and the solution itself."""
    world = random_world(0)
    log_q = theory.held_log_q(world)
    right = solutions.sage
    for wrong in (lambda w, b, q: right(w, b, 0 * q), lambda w, b, q: right(w, b, 2 * q)):
        monkeypatch.setattr(solutions, "sage", wrong)
        assert not theory.identity_23(world, log_q).holds
        assert not theory.endless().holds
    monkeypatch.setattr(solutions, "sage", lambda w, b, q: right(w, b, 0 * q))
    assert not theory.appendix_c().holds
    monkeypatch.undo()
    monkeypatch.setattr(solutions, "entropy_bonus", lambda w, b, e: solutions.reverse_kl(w, b))
    assert not theory.entropy_bonus(world).holds
    monkeypatch.setattr(theory, "never_sampled", lambda: (torch.ones(4), torch.ones(4), True))
    assert not theory.theorem_4_2().holds


def test_a_laxer_separation_condition_has_exceptions(monkeypatch):
    honest = solutions.separates
    monkeypatch.setattr(solutions, "separates", lambda w, b, q, fkl, lam: honest(w, b, q, fkl, 1.05 * lam))
    assert not theory.separation().holds


def test_noise_whose_mean_is_not_one_is_seen_and_a_gradient_that_is_not_linear_too(monkeypatch):
    world, honest = random_world(0), World.log_q
    monkeypatch.setattr(World, "log_q", lambda *args: honest(*args) + 0.02)  # 2% more
    assert not theory.random_is_noise(world, draws=400).holds
    monkeypatch.undo()
    monkeypatch.setattr(theory, "expected_gradient", lambda w, logits, arms, beta: arms[0].log_q.square()[None])
    assert not theory.random_is_noise(world, draws=100).holds


def test_closed_forms_are_stationary_points_of_their_objectives():
    """Independent of descent: the objective of a perturbed solution is lower in every direction."""
    world, beta, eta = random_world(1), 0.3, 0.2
    log_q = theory.held_log_q(world)["branch"]
    ref, q, r = world.ref, log_q.sum(-1), world.reward

    def kl(a, b):
        return (a * (a.log() - b)).sum()

    objectives = {
        "eq2": (solutions.reverse_kl(world, beta), lambda p: (p * r).sum() - beta * kl(p, ref.log())),
        "eq4": (solutions.sage(world, beta, log_q), lambda p: (p * r).sum() - beta * kl(p, ref.log() + q)),
        "a2": (
            solutions.entropy_bonus(world, beta, eta),
            lambda p: (p * r).sum() - beta * kl(p, ref.log()) - eta * (p * p.log()).sum(),
        ),
        "a4": (
            solutions.forward_kl(world, beta)[0],
            lambda p: (p * r).sum() - beta * (ref * (ref.log() - p.log())).sum(),
        ),
    }
    g = torch.Generator().manual_seed(0)
    for name, (best, objective) in objectives.items():
        assert float(best.sum()) == pytest.approx(1.0, abs=1e-9)
        for _ in range(50):
            other = (best.log() + 0.05 * torch.randn(best.shape, generator=g, dtype=torch.float64)).softmax(-1)
            assert objective(other) < objective(best), name


def test_enumeration_sums_to_one_and_gradients_match_finite_differences():
    world = random_world(2)
    assert float(world.ref.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(world.visits(world.ref)[0]) == pytest.approx(1.0, abs=1e-12)
    arm = Arm("k1-reward", theory.held_log_q(world)["tempered"])
    grad = expected_gradient(world, world.ref_logits[None], [arm], 0.3)[0]

    def objective(logits):
        logp = world.logps(logits).sum(-1)
        return float((logp.exp() * (world.reward - 0.3 * (logp - (world.ref_logps + arm.log_q).sum(-1)))).sum())

    for node, token in ((0, 1), (3, 2), (20, 0)):
        step = torch.zeros_like(world.ref_logits)
        step[node, token] = 1e-5
        slope = (objective(world.ref_logits + step) - objective(world.ref_logits - step)) / 2e-5
        assert float(-grad[node, token]) == pytest.approx(slope, abs=1e-8)


def test_reverse_kl_seeks_and_forward_kl_covers():
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    mean, std = figures.fit_gaussian("forward", x)
    p = figures.mixture(x) * float(x[1] - x[0])
    moment = float((p * x).sum())
    assert mean == pytest.approx(moment, abs=1e-3), "forward KL matches moments"
    assert std == pytest.approx(float((p * (x - moment) ** 2).sum()) ** 0.5, abs=1e-3)
    mean, std = figures.fit_gaussian("reverse", x)
    assert abs(mean + 2.0) < 0.1, "reverse KL sits on the larger bump"
    assert std < 1.0


def test_the_verb_prints_the_table_and_writes_what_it_says(said, tmp_path):
    assert said.code == 0
    assert "k1-reward" in said.printed
    assert "Theorem 4.2" in said.printed
    record = json.loads((said.folder / "lab.json").read_text())
    assert record["distances"]["k3"]["branch"] > 0.05
    assert len(record["checks"]) == 12
    assert all(check["holds"] for check in record["checks"])
    again = figures.distance_figure(record["distances"], tmp_path / "again.svg").files[0]
    assert (said.folder / "estimators.svg").read_bytes() == again.read_bytes()


def test_the_committed_figure_is_that_of_the_committed_numbers_and_its_dots_lie_at_them(tmp_path, monkeypatch):
    final = json.loads((IMAGES / "lab.json").read_text())["distances"]
    drawn = figures.distance_figure(final, tmp_path / "estimators.svg").files[0]
    assert (IMAGES / "estimators.svg").read_bytes() == drawn.read_bytes()
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, path, description: kept.append(figure))
    figures.distance_figure(final, tmp_path / "x")
    (branch,) = [x for x in kept[0].axes[0].lines if x.get_label() == "branch"]
    told = [final[row]["branch"] for row in ("k3", "k2", "forward-value", "k1-reward", "k1-reward, to_go")]
    assert list(branch.get_xdata()) == told  # forward ends where k3 does, k3+ where k2 does


def test_an_unwritable_folder_is_a_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["lab", "--out", str(tmp_path / "file" / "lab")]) == 2
    assert "cannot make the folder" in capsys.readouterr().err
