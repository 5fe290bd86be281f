"""Advantages against what they are derived from: closed forms, every possible group written out, TRL's own code."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from trl.trainer.utils import nanstd

from sage_rlvr import UserError
from sage_rlvr.advantage import Advantage, make_advantage, names_by_kind, register_advantage
from sage_rlvr.stats.pass_at_k import pass_at_k

NAN = float("nan")
STRICT, POSITIVE, UNIT = ("passk", "pkpo", "signed"), ("maxrl",), ("focal", "beta")  # what their rewards may be
ALL = [name for names in names_by_kind().values() for name in names]


def given(n: int, seed: int = 0) -> dict:
    """Everything an advantage may ask for."""
    draw = torch.Generator().manual_seed(seed)
    logps, ref_logps = -torch.rand(n, generator=draw), -torch.rand(n, generator=draw)
    answers = [f"a{i % 3}" for i in range(n)]
    return {"logps": logps, "ref_logps": ref_logps, "answers": answers, "lengths": torch.arange(1.0, n + 1)}


def expected_update(adv: Advantage, p: float, group: int, times=lambda c: 1.0, **more) -> float:
    """E[(1/G)·Σ A_i·∂log π(y_i)/∂θ] for one prompt solved with chance p = sigmoid(θ), over every group there can be."""
    total = 0.0
    for c in range(group + 1):  # no completion's place matters: groups with as many right ones are alike
        rewards = torch.tensor([1.0] * c + [0.0] * (group - c), dtype=torch.float64)
        score = torch.where(rewards == 1, 1 - p, torch.tensor(-p, dtype=torch.float64))  # ∂log π/∂θ
        a = adv(rewards, group, **more) * times(c)
        total += math.comb(group, c) * p**c * (1 - p) ** (group - c) * float((a * score).mean())
    return total


def slope(p: float, k: int) -> float:
    """∂pass@k/∂θ, pass@k = 1 − (1 − p)^k."""
    return k * (1 - p) ** (k - 1) * p * (1 - p)


# ---- the gradients they promise --------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.03, 0.3, 0.8])
@pytest.mark.parametrize(("group", "k"), [(4, 1), (4, 2), (6, 3), (8, 4), (8, 7)])
def test_pkpo_is_the_gradient_of_pass_at_k(group, k, p):
    adv = make_advantage("pkpo", k=k, anneal=0.0)
    assert expected_update(adv, p, group) == pytest.approx(slope(p, k) / k, rel=1e-9)


@pytest.mark.parametrize("p", [0.03, 0.3, 0.8])
@pytest.mark.parametrize(("group", "k"), [(4, 1), (4, 2), (6, 3), (8, 4)])
def test_passk_times_its_normaliser_is_the_gradient_of_pass_at_k(group, k, p):
    def sigma(c):
        rho = float(pass_at_k(group, c, k))
        return math.sqrt(rho * (1 - rho))

    got = expected_update(make_advantage("passk", k=k), p, group, times=sigma)
    assert got == pytest.approx((1 / k - 1 / group) * slope(p, k), rel=1e-9)


@pytest.mark.parametrize("p", [0.03, 0.3, 0.8])
@pytest.mark.parametrize("group", [2, 5, 8])
def test_maxrl_is_the_gradient_of_the_log_likelihood_series_cut_short(group, p):
    series = sum((1 - p) ** (k - 1) for k in range(1, group)) * p * (1 - p)  # of −Σ_{k<G} (1 − p)^k/k
    assert expected_update(make_advantage("maxrl"), p, group) == pytest.approx(series, rel=1e-9)


@pytest.mark.parametrize("p", [0.1, 0.6])
def test_risk_is_the_gradient_of_the_soft_mean_as_groups_grow(p):
    """(1/b)·log E[e^{br}]: at p its slope is (e^b − 1)/(b·(1 + p(e^b − 1)))·p(1 − p); a large group estimates it."""
    b = 2.0
    wanted = math.expm1(b) / (b * (1 + p * math.expm1(b))) * p * (1 - p)
    off = [abs(expected_update(make_advantage("risk", b=b), p, g) - wanted) / wanted for g in (8, 80, 800)]
    assert off[2] < off[1] / 8 < off[0] / 30
    assert off[2] < 0.005


# ---- where two of them are one ---------------------------------------------------------------------------------------


def test_group_is_trls_bit_for_bit():
    rewards = torch.rand(64, generator=torch.Generator().manual_seed(1))
    rewards[[3, 8, 9, 10, 11, 12, 13, 14, 15]] = NAN  # one of a group; a whole group
    rows = rewards.view(-1, 8)
    mean = torch.nanmean(rows, dim=1).repeat_interleave(8, dim=0)
    group = nanstd(rows, dim=1).repeat_interleave(8, dim=0)
    wanted = {"none": rewards - mean, "group": (rewards - mean) / (group + 1e-4)}
    wanted["batch"] = (rewards - mean) / (nanstd(rewards).expand_as(rewards) + 1e-4)
    for scale, advantages in wanted.items():
        got = make_advantage("group", scale=scale)(rewards, 8)
        assert torch.equal(got, torch.nan_to_num(advantages, nan=0.0)), scale


def test_special_cases():
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])
    plain = make_advantage("group")(rewards, 4)
    assert torch.equal(make_advantage("focal", gamma=0.0)(rewards, 4), plain)
    assert torch.allclose(
        make_advantage("focal", gamma=2.0)(rewards, 4), plain * torch.tensor([0.75**2] * 4 + [0.25**2] * 4)
    )
    p = torch.tensor([0.25] * 4 + [0.75] * 4)
    assert torch.allclose(make_advantage("passk", k=1)(rewards, 4), (rewards - p) / (p * (1 - p)).sqrt())
    others = (p * 4 - rewards) / 3
    assert torch.allclose(make_advantage("pkpo", k=1)(rewards, 4), rewards - others)  # RLOO
    assert torch.equal(make_advantage("signed", right=1.0)(rewards, 4), 2 * rewards - 1)
    assert torch.equal(make_advantage("signed", right=0.0)(rewards, 4), rewards - 1)  # NSR
    assert torch.allclose(make_advantage("risk", b=1e-4)(rewards, 4), rewards - p, atol=1e-4)
    assert torch.equal(make_advantage("smooth", gamma=0.0)(rewards, 4, **given(8)), plain)
    for name in ("rarity", "coverage", "unlikely"):
        assert torch.equal(make_advantage(name, share=0.0)(rewards, 4, **given(8)), plain), name


def test_pkpo_falls_to_one_over_its_share_of_training():
    adv = make_advantage("pkpo", k=4, anneal=0.5)
    assert [adv.k_at(step, 80) for step in (0, 9, 10, 20, 30, 39, 40, 79)] == [4, 4, 3, 2, 1, 1, 1, 1]
    assert [make_advantage("pkpo", k=4, anneal=0.0).k_at(step, 80) for step in (0, 79)] == [4, 4]


# ---- which right answers ---------------------------------------------------------------------------------------------


def pay(name: str, rewards: list[float], **more) -> Tensor:
    """What a reward stage pays: with scale none and one wrong answer beside, the advantage is pay minus the group's mean."""
    args = more.pop("args", {})
    adv = make_advantage([name, "group"], **{name: args, "group": {"scale": "none"}})
    out = adv(torch.tensor(rewards), len(rewards), **more)
    return out - out[rewards.index(0.0)]


def test_rarity_moves_reward_and_adds_none():
    ref = torch.tensor([-1.0, -3.0, -5.0, -2.0])
    got = pay("rarity", [1, 1, 0.0, 1], ref_logps=ref, args={"share": 0.5})
    assert torch.allclose(got, 0.5 * torch.tensor([1, 1, 0, 1.0]) + 0.5 * torch.tensor([0.5, 1.5, 0, 1.0]))
    assert got.sum() == pytest.approx(3)
    unknown = pay("rarity", [1, 1, 0.0, 1], ref_logps=torch.tensor([NAN, -3.0, -5.0, -2.0]))
    assert torch.allclose(unknown, torch.tensor([1, 3 / 2.5, 0, 2 / 2.5]))


def test_coverage_pays_each_its_shapley_value():
    answers = ["x", "x", "y", "w", None, None]
    got = pay("coverage", [1, 1, 1, 0.0, 1, 1], answers=answers)
    others = [i for i in range(6) if i != 3]

    def worth(members):  # distinct right answers; what cannot be read is like no other
        return len({answers[i] or i for i in members})

    shapley = [0.0] * 6
    for order in itertools.permutations(others):
        for place, i in enumerate(order):
            shapley[i] += (worth(order[: place + 1]) - worth(order[:place])) / math.factorial(5)
    assert got.tolist() == pytest.approx(shapley)


def test_unlikely_pays_by_rank():
    got = pay("unlikely", [1, 1, 0.0, 1], logps=torch.tensor([-1.0, -3.0, -2.0, -1.0]))
    assert torch.allclose(got, torch.tensor([1 - 0.25 * 2.5 / 4, 1, 0, 1 - 0.25 * 2.5 / 4]))


def test_alike_makes_right_answers_equally_likely():
    """Ascent of E[pay − β·log(π/π_ref)] over a whole world at once, a group that holds every answer: the right ones end alike."""
    beta, ref = 0.3, torch.tensor([0.4, 0.05, 0.25, 0.01, 0.29], dtype=torch.float64)
    rewards = torch.tensor([1.0, 1, 0, 1, 0], dtype=torch.float64)
    lifted = make_advantage(["alike", "group"], alike={"beta": beta}, group={"scale": "none"})(
        rewards, 5, ref_logps=ref.log()
    )
    logits = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    for _ in range(4000):
        logp = logits.log_softmax(0)
        objective = (logp.exp() * (lifted - beta * (logp - ref.log()))).sum()
        (gradient,) = torch.autograd.grad(objective, logits)
        logits.data += 1.0 * gradient
    end = logits.detach().softmax(0)
    assert end[[0, 1, 3]].tolist() == pytest.approx([end[0].item()] * 3, rel=1e-6)
    assert end[0] / end[2] == pytest.approx(ref[0].item() * math.exp(1 / beta) / ref[2].item(), rel=1e-4)
    means = make_advantage("alike")(rewards, 5, ref_logps=ref.log() / 7, lengths=torch.full((5,), 7.0))
    assert torch.allclose(means, make_advantage("alike")(rewards, 5, ref_logps=ref.log()))


def test_smooth_spreads_right_answers_and_not_wrong_ones():
    rewards, logps = torch.tensor([1.0, 0, 1, 0]), torch.tensor([-1.0, -2.0, -3.0, NAN])
    got = make_advantage("smooth", gamma=0.1)(rewards, 4, logps=logps) - make_advantage("group")(rewards, 4)
    assert torch.allclose(got, torch.tensor([0.1, -0.2, 0.3, 0.0]))


# ---- strange groups --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("signed", "smooth")])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_groups_that_are_all_alike_teach_nothing(name, value):
    same = {**given(8), "logps": torch.full((8,), -1.0), "ref_logps": torch.full((8,), -1.0), "answers": ["x"] * 8}
    same["lengths"] = torch.ones(8)
    assert torch.allclose(make_advantage(name)(torch.full((8,), value), 8, **same), torch.zeros(8), atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_what_nobody_could_judge_counts_for_nothing(name):
    """A NaN answers 0 and changes no other's advantage: the group is as if it had not been drawn."""
    adv = make_advantage(name, **({"k": 2} if name in ("passk", "pkpo") else {}))
    rewards = torch.tensor([1.0, 0, 1, 0, 0, 0, 1, 0, 1, 0])
    more = given(10)
    whole = adv(rewards, 5, **more)
    wide = torch.tensor([1.0, 0, NAN, 1, 0, 0, 0, 1, 0, 1, NAN, 0])
    keep = [i for i in range(12) if i not in (2, 10)]
    spread = {
        key: value.new_zeros(12).index_copy(0, torch.tensor(keep), value)
        for key, value in more.items()
        if key != "answers"
    }
    spread["answers"] = [dict(zip(keep, more["answers"])).get(i) for i in range(12)]
    got = adv(wide, 6, **spread)
    assert got[[2, 10]].tolist() == [0, 0]
    assert torch.allclose(got[keep], whole, atol=1e-6)
    assert adv(torch.full((6,), NAN), 6, **given(6)).tolist() == [0] * 6


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("signed", "smooth", "passk", "pkpo")])
def test_one_completion_teaches_nothing(name):
    assert make_advantage(name)(torch.tensor([1.0, 0.0]), 1, **given(2)).tolist() == [0, 0]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("rewards", [[0.5, 1, 0, 0], [-1.0, 1, 0, 0], [2.0, 1, 0, 0]])
def test_rewards_outside_0_and_1(name, rewards):
    """Either a sentence, or finite numbers that rank a better reward no lower."""
    adv = make_advantage(name, **({"k": 2} if name in ("passk", "pkpo") else {}))
    same = {**given(4), "logps": torch.full((4,), -1.0), "ref_logps": torch.full((4,), -1.0), "lengths": torch.ones(4)}
    same["answers"] = [None] * 4
    if name in STRICT or (name in POSITIVE and min(rewards) < 0):
        with pytest.raises(UserError, match="reward"):
            adv(torch.tensor(rewards), 4, **same)
        return
    if name in UNIT and not all(0 <= r <= 1 for r in rewards):
        with pytest.raises(UserError, match="between 0 and 1"):
            adv(torch.tensor(rewards), 4, **same)
        return
    out = adv(torch.tensor(rewards), 4, **same)
    order = sorted(range(4), key=lambda i: rewards[i])
    assert all(out[a] <= out[b] + 1e-6 for a, b in itertools.pairwise(order)), (name, out)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: make_advantage("passk", k=9)(torch.zeros(8), 8), "num_generations"),
        (lambda: make_advantage("pkpo", k=8)(torch.zeros(8), 8), "num_generations"),
        (lambda: make_advantage("passk", k=0), "whole number"),
        (lambda: make_advantage("focal", gamma=-1), "negative"),
        (lambda: make_advantage("focal", gama=1), "no argument"),
        (lambda: make_advantage("focal", gamma="1e-1"), "not a number"),
        (lambda: make_advantage("focla"), "perhaps you mean focal"),
        (lambda: make_advantage("rarity")(torch.zeros(4), 2), "ref_logps"),
        (lambda: make_advantage("group")(torch.zeros(5), 2), "whole number of groups"),
        (lambda: make_advantage("group")(torch.tensor([1.0, math.inf]), 2), "infinite"),
        (lambda: make_advantage("coverage")(torch.zeros(4), 2, answers=["x"]), "one per completion"),
        (lambda: make_advantage(["rarity", "coverage"]), "both about answers"),
        (lambda: make_advantage(["passk", "risk"]), "both make the advantages"),
        (lambda: make_advantage(["rarity", "passk"]), "pays unequally"),
        (lambda: make_advantage(["rarity", "focal"], share=0.5), "under a name"),
        (lambda: make_advantage([]), "names none"),
        (lambda: register_advantage("focal")(type("Mine", (Advantage,), {})), "registered already"),
    ],
)
def test_a_sentence_for_what_cannot_be(make, says):
    with pytest.raises(UserError, match=says):
        make()


def test_a_pair_is_its_parts_in_the_order_of_their_stages():
    rewards, more = torch.tensor([1.0, 1, 0, 0, 1, 0, 0, 0]), given(8)
    both = make_advantage(["focal", "rarity"], rarity={"share": 0.5}, focal={"gamma": 2.0})
    assert both.needs == {"ref_logps"}
    rare = make_advantage("rarity", share=0.5)(rewards, 4, **more)
    assert torch.allclose(both(rewards, 4, **more), rare * torch.tensor([0.25] * 4 + [0.5625] * 4))
    smooth = make_advantage(["smooth", "focal"])(rewards, 4, **more)  # the term comes last: it is not scaled
    term = make_advantage("smooth")(rewards, 4, **more) - make_advantage("group")(rewards, 4)
    assert torch.allclose(smooth, make_advantage("focal")(rewards, 4) + term, atol=1e-6)


def test_ten_lines_of_ones_own():
    @register_advantage("solved-once")
    class SolvedOnce(Advantage):
        kind, stage = "prompts", "factor"

        def shape(self, r):
            return (r.right.sum(1, keepdim=True) == 1).float()

    rewards = torch.tensor([1.0, 0, 0, 1, 1, 0])
    got = make_advantage("solved-once")(rewards, 3)
    assert torch.allclose(got, make_advantage("group")(rewards, 3) * torch.tensor([1.0, 1, 1, 0, 0, 0]))
    assert make_advantage("tests.advantage.test_advantage:Nothing")(rewards, 3).tolist() == [0] * 6


class Nothing(Advantage):
    def shape(self, r):
        return torch.zeros_like(r.rewards)
