"""Which tokens count: against NumPy written apart, every choice there can be, and a softmax policy's exact entropy."""

import itertools

import numpy as np
import pytest
import torch

from sage_rlvr import UserError
from sage_rlvr.advantage import TokenAdvantage, Tokens, make_advantage, names_by_kind, register_advantage

NAN = float("nan")


def batch(rows=6, columns=9, seed=0, generator=None, **more) -> Tokens:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, columns + 1, (rows,), generator=draw)
    given = {
        "advantages": torch.randn(rows, 1, generator=draw).expand(rows, columns) * 2,
        "logps": -torch.rand(rows, columns, generator=draw) * 4,
        "entropies": torch.rand(rows, columns, generator=draw) * 3,
        "mask": torch.arange(columns) < lengths[:, None],
    }
    return Tokens(**(given | more), generator=generator or torch.Generator().manual_seed(seed))


def by_hand(t: Tokens) -> np.ndarray:
    """(N, T) covariances, NaN where no token is counted."""
    out = np.full(t.mask.shape, np.nan)
    on = t.mask.numpy()
    a, logp = (x.numpy().astype(np.float64)[on] for x in (t.advantages, t.logps))
    out[on] = (a - np.mean(a)) * (logp - np.mean(logp))
    return out


# ---- which are chosen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_covariance_is_numpys_and_its_mean_is_their_covariance(seed):
    t = batch(seed=seed)
    want, got = by_hand(t), t.covariance().numpy()
    assert np.allclose(got[t.mask], want[t.mask], rtol=1e-9, atol=1e-12)
    assert not got[~t.mask].any()
    on = t.mask
    covariance = np.cov(t.advantages[on].numpy(), t.logps[on].numpy(), bias=True)[0, 1]
    assert got.sum() / int(on.sum()) == pytest.approx(covariance, rel=1e-5)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_kl_cov_pulls_the_largest(share):
    t = batch(rows=8, seed=3)
    advantages, pull = make_advantage("kl_cov", share=share, coef=0.7).credit(t)
    assert torch.equal(advantages, torch.where(t.mask, t.advantages, 0.0))
    covariance = by_hand(t)
    order = [place for place in np.argsort(-covariance, axis=None) if covariance.flat[place] > 0]  # NaN last
    want = np.zeros(covariance.size)
    want[order[: max(1, int(share * int(t.mask.sum())))]] = 0.7
    assert np.allclose(pull.numpy().flatten(), want)


def test_clip_cov_drops_a_random_share_of_those_within_its_bounds():
    """Over many draws each that qualifies goes as often as any other, and no other ever does."""
    args = {"share": 0.06, "low": 0.3, "high": 2.0}
    adv, t = make_advantage("clip_cov", **args), batch(rows=10, seed=1)
    covariance = by_hand(t)
    within = (covariance > args["low"]) & (covariance < args["high"])
    count = int(args["share"] * int(t.mask.sum()))
    assert within.sum() > 2 * count > 2
    times, draws = np.zeros(t.mask.shape), 600
    for seed in range(draws):
        t = batch(rows=10, seed=1, generator=torch.Generator().manual_seed(seed))
        advantages, pull = adv.credit(t)
        gone = ((advantages == 0) & t.mask).numpy()
        assert gone.sum() == count
        assert not (gone & ~within).any()
        assert torch.equal(advantages[~gone], torch.where(t.mask, t.advantages, 0.0)[~gone])
        assert pull is None
        times += gone
    share = count / within.sum()
    spread = (share * (1 - share) / draws) ** 0.5
    assert np.abs(times[within] / draws - share).max() < 4.5 * spread


def test_one_goes_at_the_least_and_no_more_than_qualify():
    t = batch()
    covariance = by_hand(t)
    top = np.nanmax(covariance)
    only = make_advantage("clip_cov", share=1.0, low=top * 0.999, high=top * 1.001).credit(t)[0]
    assert ((only == 0) & t.mask).numpy().flatten().nonzero()[0].tolist() == [np.nanargmax(covariance)]
    one = make_advantage("clip_cov", low=0.0, high=1e9).credit(t)[0]  # 2e-4 of some thirty tokens
    assert int(((one == 0) & t.mask).sum()) == 1
    none = make_advantage("clip_cov", low=top + 1, high=top + 2).credit(t)[0]
    assert not ((none == 0) & t.mask).any()
    assert int((make_advantage("kl_cov").credit(t)[1] != 0).sum()) == 1


def test_the_choice_is_the_tokens_not_the_paddings():
    """Wider padding, and what lies in it, changes nothing: two ranks see wider rows than one."""
    wide = {"advantages": 99.0, "logps": -50.0, "entropies": 7.0, "mask": 0}
    for name, args in (("clip_cov", {"share": 0.2, "low": 0.0}), ("kl_cov", {"share": 0.2}), ("entropy", {})):
        t = batch(seed=2)
        more = {
            key: torch.cat([getattr(t, key), torch.full((6, 4), value, dtype=getattr(t, key).dtype)], 1)
            for key, value in wide.items()
        }
        adv = make_advantage(name, **args)
        for a, b in zip(adv.credit(t), adv.credit(batch(seed=2, **more)), strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                assert torch.equal(a, b[:, :9])
                assert not b[:, 9:].any()


def test_of_equal_ones_the_first():
    logps = torch.tensor([[-1.0, -3.0, -1.0, -1.0], [-3.0, -3.0, -1.0, -3.0]])
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 4)  # covariance +1 six times, −1 twice
    t = Tokens(advantages, logps, torch.ones(2, 4, dtype=torch.bool))
    assert t.covariance().tolist() == [[1, -1, 1, 1], [1, 1, -1, 1]]
    for count, want in ((1, [0]), (3, [0, 2, 3]), (5, [0, 2, 3, 4, 5]), (8, [0, 2, 3, 4, 5, 7])):
        _, pull = make_advantage("kl_cov", share=count / 8).credit(t)
        assert pull.flatten().nonzero().flatten().tolist() == want


def test_entropy_adds_up_to_half_and_turns_no_sign():
    t = batch(rows=20, seed=4)
    got, pull = make_advantage("entropy").credit(t)
    a, h = t.advantages.numpy(), t.entropies.numpy()
    want = np.where(t.mask, a + np.minimum(0.4 * h, np.abs(a) / 2), 0)
    assert np.allclose(got, want)
    assert pull is None
    bound = (0.4 * h > np.abs(a) / 2) & t.mask.numpy()
    assert 0.1 < bound.sum() / int(t.mask.sum()) < 0.9
    assert (np.sign(got.numpy()) == np.sign(a))[t.mask].all()
    assert torch.equal(make_advantage("entropy", alpha=0.0).credit(t)[0], torch.where(t.mask, t.advantages, 0.0))
    flat = batch(advantages=torch.zeros(6, 9))
    assert not make_advantage("entropy").credit(flat)[0].any()


# ---- strange batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, -1.0])
def test_advantages_all_alike_choose_nothing(value):
    t = batch(advantages=torch.full((6, 9), value, dtype=torch.float64))  # whose sum over n, divided by n, is not it
    assert not t.covariance().any()
    assert not make_advantage("kl_cov", share=0.5).credit(t)[1].any()
    got = make_advantage("clip_cov", share=0.5, low=0.0).credit(t)[0]
    assert torch.equal(got, torch.where(t.mask, t.advantages, 0.0))


@pytest.mark.parametrize("name", names_by_kind()["tokens"])
def test_no_token_or_one(name):
    for on in ([], [(2, 0)]):
        mask = torch.zeros(6, 9, dtype=torch.bool)
        for place in on:
            mask[place] = True
        t = batch(mask=mask)
        got, pull = make_advantage(name).credit(t)
        assert not got[~mask].any()
        assert pull is None or not pull.any()
        if on and name != "entropy":
            assert got[2, 0] == t.advantages[2, 0]


@pytest.mark.parametrize("name", names_by_kind()["tokens"])
def test_padding_may_hold_anything(name):
    clean = batch(seed=5)
    spoilt = {key: torch.where(clean.mask, getattr(clean, key), NAN) for key in ("advantages", "logps", "entropies")}
    for a, b in zip(
        make_advantage(name).credit(clean), make_advantage(name).credit(batch(seed=5, **spoilt)), strict=True
    ):
        assert a is b is None or torch.equal(a, b)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: make_advantage("entropy").credit(batch(entropies=None)), "needs entropies"),
        (lambda: make_advantage("clip_cov").credit(batch(logps=torch.zeros(6, 8))), "one per token"),
        (lambda: make_advantage("clip_cov").credit(batch(mask=torch.ones(6, 9))), "give a bool"),
        (lambda: make_advantage("kl_cov").credit(batch(logps=torch.full((6, 9), NAN))), "not finite"),
        (lambda: make_advantage("clip_cov", share=0.0), "share=0.0"),
        (lambda: make_advantage("kl_cov", share=2), "share=2"),
        (lambda: make_advantage("kl_cov", coef=0.0), "coef=0.0"),
        (lambda: make_advantage("clip_cov", low=5.0, high=1.0), "low=5.0"),
        (lambda: make_advantage("entropy", alpha=-1.0), "negative"),
        (lambda: make_advantage("entropy", kappa=1.0), "turns signs"),
        (lambda: make_advantage(["clip_cov", "entropy"]), "both about tokens"),
    ],
)
def test_a_sentence_for_what_cannot_be(make, says):
    with pytest.raises(UserError, match=says):
        make()


# ---- in the room -----------------------------------------------------------------------------------------------------


def test_rewards_know_nothing_of_tokens():
    rewards, ref = torch.tensor([1.0, 1, 0, 0, 1, 0, 0, 0]), -torch.rand(8)
    alone = make_advantage("clip_cov")
    assert alone.token_part is alone
    assert torch.equal(alone(rewards, 4), make_advantage("group")(rewards, 4))
    three = make_advantage(["entropy", "rarity", "focal"], entropy={"alpha": 0.1})
    assert three.token_part.settings() == {"alpha": 0.1, "kappa": 2.0}
    assert [part.name for part in three.parts] == ["rarity", "focal", "entropy"]
    two = make_advantage(["rarity", "focal"])
    assert two.token_part is None
    assert torch.equal(three(rewards, 4, ref_logps=ref), two(rewards, 4, ref_logps=ref))
    assert {"clip_cov", "entropy", "kl_cov"} <= set(names_by_kind()["tokens"])


def test_one_of_ones_own():
    @register_advantage("first-token")
    class FirstToken(TokenAdvantage):
        def per_token(self, t):
            return t.advantages * (torch.arange(t.mask.shape[1]) == 0)

    t = batch()
    got, pull = make_advantage("first-token").credit(t)
    assert torch.equal(got[:, 0], t.advantages[:, 0])
    assert not got[:, 1:].any()
    assert pull is None


# ---- what they are for: the entropy of a softmax policy, exactly -----------------------------------------------------

COUNTS = torch.tensor([8, 4, 2, 1, 1])  # of 16 tokens, as often as the policy draws them
WORTH = torch.tensor([1.0, 0.6, -0.4, -1.0, -8.6], dtype=torch.float64)  # Σ COUNTS·WORTH = 0


def world(**more):
    """(the policy's logits, a batch in which each of five actions stands as often as it is drawn)."""
    action = torch.repeat_interleave(torch.arange(5), COUNTS)
    logits = (COUNTS / 16).double().log()
    t = Tokens(WORTH[action][:, None], logits[action][:, None], torch.ones(16, 1, dtype=torch.bool), **more)
    return logits, action, t


def entropy(logits):
    return torch.special.entr(logits.softmax(-1)).sum(-1)


def moved(logits, action, advantages, step):
    """Each action's logit by step times the mean of its tokens' advantages: the natural gradient's step."""
    mean = torch.zeros(5, dtype=torch.float64).index_add_(0, action, advantages.flatten()) / COUNTS
    return logits + step * mean


def test_the_mean_covariance_is_the_slope_of_the_entropy():
    logits, action, t = world()
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(entropy(moved(logits, action, t.advantages, step)), step)
    assert slope.item() == pytest.approx(-t.covariance().mean().item(), rel=1e-9)
    assert slope < 0, "plain updates lower the entropy here"


def test_clip_cov_keeps_entropy_whichever_tokens_it_drops():
    """Every choice there can be: each leaves more entropy after the update than the plain one does."""
    logits, action, t = world()
    adv = make_advantage("clip_cov", share=2 / 16, low=0.2, high=5.0)
    within = ((t.covariance() > 0.2) & (t.covariance() < 5.0)).flatten().nonzero().flatten().tolist()
    plain = entropy(moved(logits, action, t.advantages, 0.3))
    kept = {}
    for pair in itertools.combinations(within, 2):
        advantages = t.advantages.clone()
        advantages[list(pair)] = 0
        kept[pair] = entropy(moved(logits, action, advantages, 0.3))
    assert len(kept) > 10
    assert min(kept.values()) > plain
    for seed in range(20):
        advantages, _ = adv.credit(world(generator=torch.Generator().manual_seed(seed))[2])
        assert tuple((advantages == 0).flatten().nonzero().flatten().tolist()) in kept


def test_kl_cov_keeps_entropy_from_the_second_update_on():
    logits, action, t = world()
    _, pull = make_advantage("kl_cov", share=0.5, coef=1.0).credit(t)
    ends = []
    for weight in (torch.zeros_like(pull), pull):
        at, path = logits.clone().requires_grad_(True), []
        for _ in range(3):
            log_ratio = at.log_softmax(-1)[action][:, None] - t.logps
            loss = (-t.advantages * log_ratio.exp() + weight * log_ratio.abs()).mean()
            (gradient,) = torch.autograd.grad(loss, at)
            at = (at - 0.5 * gradient).detach().requires_grad_(True)
            path.append(entropy(at).item())
        ends.append(path)
    plain, held = ends
    assert held[0] == plain[0], "the first update is plain: |x| has no slope at 0"
    assert held[1] > plain[1] + 1e-3
    assert held[2] > plain[2] + 1e-3
    assert plain[2] < plain[1] < entropy(logits)
