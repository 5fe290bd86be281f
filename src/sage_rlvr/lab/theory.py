"""The paper's statements, and ours about them, as checks that compute both sides."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sage_rlvr.anchor import BranchGuide, GroupGuide, Guide, RandomGuide, TemperedGuide, TokenGuide, anchor_penalty
from sage_rlvr.lab import difficulty, solutions
from sage_rlvr.lab.budget import never_sampled
from sage_rlvr.lab.descent import Arm, descend, expected_gradient, train
from sage_rlvr.lab.world import World, random_world, tree

BETA = 0.3


def guides() -> dict[str, Guide | None]:
    """The guides of METHOD section 4's table: strong enough to see, deterministic but for random's one draw."""
    return {
        "none": None,
        "branch": BranchGuide(ratio=0.8, threshold=1.0, source="reference"),
        "token": TokenGuide(alpha=0.3, sigma=0.0),
        "tempered": TemperedGuide(ratio=0.5, threshold=1.0, source="reference"),
        "random": RandomGuide(epsilon=1.0, sigma=0.15),
    }


def held_log_q(world: World) -> dict[str, Tensor]:
    return {name: world.log_q(guide, torch.Generator().manual_seed(0)) for name, guide in guides().items()}


@dataclass(frozen=True)
class Check:
    statement: str
    measured: str
    holds: bool


def checks(seed: int = 0) -> Iterator[Check]:
    """Every check in turn, so that a caller can show progress."""
    world = random_world(seed)
    log_q = held_log_q(world)
    yield identity_23(world, log_q)
    yield theorem_4_3(world, log_q)
    yield entropy_bonus(world)
    yield forward_kl(world)
    yield separation()
    yield appendix_c()
    yield random_is_noise(world)
    yield k3_value(world, log_q)
    yield endless()
    yield theorem_4_2()
    yield grows_with_difficulty()
    yield a_perfect_value(world)


def identity_23(world: World, log_q: dict[str, Tensor]) -> Check:
    rlvr = solutions.reverse_kl(world, BETA)
    errors = [(solutions.amplified(rlvr, q) - solutions.sage(world, BETA, q)).abs().max() for q in log_q.values()]
    error = float(max(errors))
    return Check("Identity 23: π_SAGE = q·π_RLVR / E[q]", f"largest difference {error:.1e}", error < 1e-12)


def theorem_4_3(world: World, log_q: dict[str, Tensor]) -> Check:
    """For every right answer and a range of ε: if the left side exceeds ε, it is on SAGE's support. ``gained`` are those
    that were not on the support of reverse-KL RLVR: the theorem must not be empty."""
    rlvr, gained, broken = solutions.reverse_kl(world, BETA), 0, 0
    for q in log_q.values():
        left, final = solutions.amplified(rlvr, q), solutions.sage(world, BETA, q)
        for epsilon in torch.logspace(-4, -1, 200, dtype=torch.float64):
            premise = world.valid & (left > epsilon * (1 + 1e-9))
            reached = solutions.on_support(final, world, float(epsilon))
            broken += int((premise & ~reached).sum())
            gained += int((reached & ~solutions.on_support(rlvr, world, float(epsilon))).sum())
    text = f"{broken} exceptions, {gained} lifted"
    return Check("Theorem 4.3: enough q lifts a right answer over ε", text, not broken and gained > 0)


def entropy_bonus(world: World, eta: float = 0.2) -> Check:
    """A.2 by descent on the objective itself, autodiff through the enumerated π."""

    def gradient(logits: Tensor) -> Tensor:
        logits = logits.detach().requires_grad_()
        logp = world.logps(logits).sum(-1)
        objective = (logp.exp() * (world.reward - BETA * (logp - world.ref.log()) - eta * logp)).sum()
        return torch.autograd.grad(-objective, logits)[0]

    reached = world.probs(descend(world, gradient))[0]
    gap = float(solutions.total_variation(reached, solutions.entropy_bonus(world, BETA, eta)))
    statement = "A.2: an entropy bonus is a temperature, π ∝ π_ref^{β/(β+η)}·exp(r/(β+η))"
    return Check(statement, f"TV {gap:.1e}", gap < 1e-6)


def forward_kl(world: World) -> Check:
    """A.4 by descent, with the ratio of whole completions: every completion becomes one token of a one-step world."""
    count = len(world.ref)
    each, root = torch.arange(count)[:, None], torch.zeros(count, 1, dtype=torch.long)
    flat = World(world.ref.log()[None], world.reward, each, root)
    reached = flat.probs(train(flat, [Arm("forward", flat.log_q(None))], BETA))[0]
    gap = float(solutions.total_variation(reached, solutions.forward_kl(world, BETA)[0]))
    return Check("A.4: forward KL with the sequence ratio reaches β·π_ref/(λ − r)", f"TV {gap:.1e}", gap < 1e-6)


def separation(worlds: int = 100) -> Check:
    """A.4's sufficient condition over random worlds and betas: where it holds, SAGE puts less mass on wrong answers. Without a
    guide it is necessary too, so a laxer one would have exceptions here."""
    cases = []  # guide, condition, conclusion
    for seed in range(worlds):
        world = random_world(seed, right=4 + seed % 40)
        beta = (0.1, 0.3, 1.0, 3.0)[seed % 4]
        fkl = solutions.forward_kl(world, beta)
        cases += [(name, *solutions.separates(world, beta, q, *fkl)) for name, q in held_log_q(world).items()]
    held = sum(condition for _, condition, _ in cases)
    broken = sum(condition and not conclusion for _, condition, conclusion in cases)
    exact = sum(condition == conclusion for name, condition, conclusion in cases if name == "none")
    both = len({conclusion for name, _, conclusion in cases if name == "none"}) == 2
    text = f"held {held} of {len(cases)} times, {broken} exceptions; without a guide it decides, {exact} of {worlds}"
    holds = held > 0 and not broken and exact == worlds and both
    return Check("A.4: the separation condition implies less wrong mass than forward KL", text, holds)


def toy_world() -> tuple[World, int, int]:
    """Appendix C with paths that part before the fork: (world, frequent right answer, rare right answer).

    The root chooses between a sure road (token 0) and a forked one (token 1); only the forked road's state is uncertain.
    """
    sure = torch.tensor([0.97, 0.01, 0.01, 0.01], dtype=torch.float64)
    fork = torch.full((4,), 0.25, dtype=torch.float64)
    rows = [torch.tensor([0.94, 0.04, 0.01, 0.01], dtype=torch.float64), sure, fork, *[sure] * 18]
    reward = torch.zeros(64, dtype=torch.float64)
    reward[[0, 16]] = 1.0  # (0, 0, 0) and (1, 0, 0)
    return tree(torch.stack(rows).log(), reward, depth=3), 0, 16


def appendix_c(epsilon: float = 0.012) -> Check:
    world, frequent, rare = toy_world()
    log_q = world.log_q(guides()["branch"])
    rlvr, target = solutions.reverse_kl(world, BETA), solutions.sage(world, BETA, log_q)
    reached = world.probs(train(world, [Arm("k1-reward", log_q)], BETA))[0]
    only_fork = bool((log_q[rare] > 0).tolist() == [False, True, False]) and not bool(log_q[frequent].any())
    crossed = rlvr[rare] < epsilon < target[rare] and reached[rare] > epsilon
    text = f"rare answer {rlvr[rare]:.4f} → {reached[rare]:.4f}, ε = {epsilon}"
    return Check("Appendix C: the branch guide lifts the rare answer over ε", text, bool(only_fork and crossed))


def random_is_noise(world: World, draws: int = 1500, read: int = 20) -> Check:
    """Under k3 the gradient is linear in q and E[q] = 1: over draws, the random guide's gradient is that of no guide. The first
    is exact; the second is told in standard errors of the mean over draws."""
    guide, g = RandomGuide(epsilon=1.0, sigma=0.15), torch.Generator().manual_seed(0)
    logits = world.ref_logits + 0.5 * torch.randn(world.ref_logits.shape, generator=g, dtype=torch.float64)
    q = torch.stack([world.log_q(guide, g).exp() for _ in range(draws)])

    def gradient(own: Tensor) -> Tensor:
        return expected_gradient(world, logits[None], [Arm("k3", own.log())], BETA)[0]

    bent = float((torch.stack([gradient(own) for own in q[:read]]).mean(0) - gradient(q[:read].mean(0))).abs().max())
    z = (q.mean(0) - 1) / (q.std(0) / draws**0.5)
    off = float(z.square().mean().sqrt())
    text = f"not linear by {bent:.1e}; the mean of {draws:,} draws of q is {off:.2f} standard errors from 1 (rms)"
    return Check("The random guide under k3 is GRPO plus noise", text, bent < 1e-12 and off < 1.25)


def k3_value(world: World, log_q: dict[str, Tensor]) -> Check:
    """E[k3] = D̃ + E[Σ_t (Z_t − 1)], Z_t = Σ_v q·π_ref: with unnormalised q, k3 is a biased value of the pseudo-KL."""
    q = log_q["branch"]
    logits = world.ref_logits * 0.5
    logps, pi = world.logps(logits), world.probs(logits)
    value = float((pi * anchor_penalty(logps, world.ref_logps, q, "k3").sum(-1)).sum())
    pseudo = float((pi * (logps - world.ref_logps - q).sum(-1)).sum())
    excess = float((pi * (q.exp() - 1).sum(-1)).sum())  # branch: q is one number per state, so Z_t = q_t
    gap = abs(value - pseudo - excess)
    text = f"E[k3] {value:.4f}, D̃ {pseudo:.4f}, excess {excess:.4f}, gap {gap:.1e}"
    return Check("k3 over-counts the pseudo-KL by E[Σ(Z − 1)]", text, gap < 1e-6 and excess > 0.01)


def ending_world(chance: float, cut: int) -> World:
    """A text that ends with the same chance at every token, or is cut: completion n goes on n times, the last is the cut one."""
    go = math.log1p(-chance) - math.log(chance)
    ref_logits = torch.tensor([[0.0, go]] * cut + [[0.0, -1e9]], dtype=torch.float64)  # the last node: it has ended
    n, t = torch.arange(cut + 1)[:, None], torch.arange(cut)[None]
    return World(ref_logits, torch.zeros(cut + 1, dtype=torch.float64), (t < n).long(), torch.where(t <= n, t, cut))


def endless(chance: float = 0.01, cuts: tuple[int, int] = (200, 800)) -> Check:
    """Eq. 4 where every token has the same q: with (1 − chance)·q < 1 texts end, above it most are cut, wherever the cut is."""

    def share_cut(q: float, cut: int) -> float:
        world = ending_world(chance, cut)
        return float(solutions.sage(world, BETA, math.log(q) * (world.nodes < cut).double())[-1])

    def closed_form(q: float, cut: int) -> float:
        ratio = (1 - chance) * q
        return ratio**cut / (ratio**cut + chance * q * (ratio**cut - 1) / (ratio - 1))

    small, large = 1.005, 1.05
    below, above = ([share_cut(q, cut) for cut in cuts] for q in (small, large))
    closed = [closed_form(q, cut) for q in (small, large) for cut in cuts]
    gap = max(abs(x - y) for x, y in zip(below + above, closed))
    limit = ((1 - chance) * large - 1) / (large - 1)
    text = "share cut at {} and {}: below {:.2f}, {:.2f}; above {:.2f}, {:.2f}".format(*cuts, *below, *above)
    holds = gap < 1e-9 and below[1] < 0.05 < below[0] and abs(above[1] - limit) < 1e-9 and limit > 0.5
    return Check("A guide with (1 − chance to end)·q > 1 has no optimum of finite length", text, holds)


def theorem_4_2() -> Check:
    *both, never_drawn = never_sampled()
    (grpo, grpo_se), (sage, sage_se) = ((float(x.mean()), float(x.std()) / len(x) ** 0.5) for x in both)
    text = f"log-odds GRPO {grpo:+.3f} ± {2 * grpo_se:.3f}, SAGE {sage:+.3f} ± {2 * sage_se:.3f}"
    holds = never_drawn and grpo + 2 * grpo_se <= 0 and sage - 2 * sage_se > 0
    statement = "a right answer never drawn gains no odds; behind a drawn fork, under SAGE, it does"
    return Check(f"Theorem 4.2, sampled: {statement}", text, holds)


def grows_with_difficulty(worlds: int = 45, most: int = 64) -> Check:
    """Δ of the group guide grows with difficulty, and at the same mean pass@1 its pass@k is above that of any β, where prompts
    differ; a Δ that is the same for all (γ = 0) and prompts that are alike gain nothing."""
    g = torch.Generator().manual_seed(0)
    least, none, falls = math.inf, 0.0, True
    for number in range(worlds):
        rates = 10 ** (-0.5 - 3 * torch.rand(2 + number % 5, generator=g, dtype=torch.float64)).sort().values
        beta, gamma = (0.1, 0.3, 1.0)[number % 3], (0.5, 1.0, 3.0)[number // 3 % 3]
        ends = difficulty.grouped(rates, beta, GroupGuide(gamma=gamma))
        delta = ends.logit() - rates.logit() - 1 / beta
        falls &= bool((delta.diff() < 0).all())  # rates rise
        seen = [k for k in (2, 8, most) if difficulty.pass_at(ends, k) < 0.99]  # else there is no room for a gain
        least = min([least, *(difficulty.gain(rates, ends, k) for k in seen)])
        flat = difficulty.gain(rates, difficulty.grouped(rates, beta, GroupGuide(gamma=0.0)), most)
        same = rates[:1].expand(3)
        alike = difficulty.gain(same, difficulty.grouped(same, beta, GroupGuide(gamma=gamma)), most)
        none = max(none, abs(flat), abs(alike))
    text = f"{worlds} sets of prompts: least gain {least:.1e}; γ = 0 or prompts alike: {none:.0e}"
    holds = falls and least > 0 and none < 1e-9
    return Check("A guide whose Δ grows with difficulty beats every β in mean pass@k", text, holds)


def a_perfect_value(world: World, kappa: float = 2.0) -> Check:
    """log q_t = κ·(V_t − V_{t−1}) with the true chance V under π_ref: the sum is κ·(r − V_0), and 1/β becomes 1/β + κ."""
    log_q = kappa * difficulty.values(world, world.ref_logits).diff(dim=-1)
    arms = [Arm("k1-reward", log_q, credit) for credit in ("sequence", "to_go")]
    ends = world.probs(train(world, arms, BETA))
    target = solutions.reverse_kl(world, 1 / (1 / BETA + kappa))
    gap = float(solutions.total_variation(ends, target).max())
    text = f"TV {gap:.1e} under either credit"
    return Check("A value head that knows everything is another β: 1/β + κ", text, gap < 1e-6)
