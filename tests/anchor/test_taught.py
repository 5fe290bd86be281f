"""The taught guides: formulas, what a head may have seen when it speaks, and what its state is worth."""

import io
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from sage_rlvr import Signals, UserError, make_guide

NAN = math.nan


def signals(rewards, lengths=None, columns=5, **more):
    rows = len(rewards)
    lengths = torch.tensor(lengths if lengths is not None else [1 + i % columns for i in range(rows)])
    mask = torch.arange(columns)[None] < lengths[:, None]
    zero = torch.zeros(rows, columns)
    return Signals(logps=zero, ref_logps=zero, mask=mask, rewards=torch.tensor(rewards), **more)


# ---- group ---------------------------------------------------------------------------------------------------------

GROUPS = {  # rewards of one group → (1 − the mean of the others that could be judged)^γ times its own, γ = 2
    "rarely right": ([1.0, 0.0, 0.0, 0.0], [1, 0, 0, 0]),
    "half": ([1.0, 1.0, 0.0, 0.0], [4 / 9, 4 / 9, 0, 0]),
    "all right": ([1.0] * 4, [0.0] * 4),
    "all wrong": ([0.0] * 4, [0.0] * 4),
    "not judged": ([1.0, NAN, 0.0, NAN], [1, 0, 0, 0]),
    "nobody to compare with": ([1.0, NAN, NAN, NAN], [0, 0, 0, 0]),
    "shares": ([0.5, 1.0, 0.0, 0.0], [0.5 * (2 / 3) ** 2, (1 - 0.5 / 3) ** 2, 0, 0]),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_right_answer_earns_by_how_rarely_the_others_are_right_and_not_by_its_length(name):
    rewards, weights = GROUPS[name]
    other = [0.0, 1.0, 1.0, 1.0]  # another group, whose rate is its own affair
    s = signals(rewards + other, lengths=[1, 5, 2, 0, 3, 1, 4, 5], group=4, beta=0.1)
    log_q = make_guide("group", strength=0.8, gamma=2.0)(s)
    counted = s.mask.any(1).tolist()
    told = [w * c for w, c in zip([*weights, *[0, *[(1 / 3) ** 2] * 3]], counted)]
    assert log_q.sum(1).tolist() == pytest.approx([0.8 / 0.1 * w for w in told], abs=1e-5)
    for row, on in zip(log_q, s.mask):
        assert len(set(row[on].tolist())) <= 1, "each counted token carries the same part"


def test_one_completion_in_a_group_has_nobody_to_compare_with():
    assert not make_guide("group")(signals([1.0, 0.0], group=1, beta=0.1)).any()


def test_at_gamma_1_the_expected_bonus_is_by_the_chance_itself():
    """Every outcome of a group of 5, each with its chance: E[Σ log q of the first | it is right] = (s/β)·(1 − p). With itself in
    the rate it would be (G − 1)/G of that."""
    p, size, found = 0.3, 5, 0.0
    for outcome in product([0.0, 1.0], repeat=size - 1):
        rewards = [1.0, *outcome]
        chance = math.prod(p if r else 1 - p for r in outcome)
        found += chance * float(make_guide("group")(signals(rewards, group=size, beta=0.25)).sum(1)[0])
    assert found == pytest.approx((1 - p) / 0.25, rel=1e-5)


def test_what_taking_the_groups_mean_off_does_to_it():
    """A trainer takes the group's mean bonus off each, and those of the others depend on this one: of (1 − p) there remains
    (1 − p) − (1 − 2p)/G. Enumerated: the slope of the expected credit, E[(b₁ − b̄)(r₁ − p)]/(p(1 − p))."""
    p, size, found = 0.3, 4, 0.0
    for outcome in product([0.0, 1.0], repeat=size):
        chance = math.prod(p if r else 1 - p for r in outcome)
        bonus = make_guide("group")(signals(list(outcome), group=size, beta=1.0)).sum(1).double()
        found += chance * float(bonus[0] - bonus.mean()) * (outcome[0] - p)
    assert found / (p * (1 - p)) == pytest.approx((1 - p) - (1 - 2 * p) / size, rel=1e-5)


@pytest.mark.parametrize(("change", "sentence"), [
    ({"rewards": torch.tensor([1.0, -1.0, 0.0, 0.0])}, "takes rewards between 0 and 1, how much of it is right, and one is -1"),
    ({"rewards": torch.tensor([1.0, 2.5, 0.0, 0.0])}, "one is 2.5: use a 0/1 reward"),
    ({"group": None}, "needs Signals.group, which is None"),
    ({"beta": None}, "needs Signals.beta, which is None"),
    ({"rewards": None}, "needs Signals.rewards, which is None"),
])  # fmt: skip
def test_what_the_group_guide_cannot_take(change, sentence):
    with pytest.raises(UserError, match=sentence):
        make_guide("group")(replace(signals([1.0, 0.0, 0.0, 0.0], group=4, beta=0.1), **change))


def test_arguments_and_groups_are_checked():
    for args, sentence in (
        ({"strength": 0}, "strength=0 must be above 0"),
        ({"gamma": -1}, "gamma=-1 must not be negative"),
    ):
        with pytest.raises(UserError, match=sentence):
            make_guide("group", **args)
    for args, sentence in (
        ({"kappa": 0}, "kappa=0 and rate"), ({"rate": -1}, "must both be above 0"), ({"width": -1}, "width=-1, passes=4"),
        ({"passes": 0}, "passes the steps the head takes"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=sentence):
            make_guide("value", **args)
    with pytest.raises(ValueError, match=r"Signals\.group is 3, but 4 rows are no whole number of groups"):
        make_guide("group")(signals([1.0, 0.0, 0.0, 0.0], group=3, beta=0.1))
    with pytest.raises(
        ValueError, match=r"hidden has shape \(2, 5, 3\), the mask \(2, 5\): it is \(rows, tokens \+ 1, size\)"
    ):
        make_guide("value")(signals([1.0, 0.0], hidden=torch.zeros(2, 5, 3)))


# ---- value ---------------------------------------------------------------------------------------------------------

SIZE = 6


def batch(seed=0, rows=16, columns=5, rewards=None, dtype=torch.float32):
    """A hidden state that says after half the tokens whether the answer will be right."""
    g = torch.Generator().manual_seed(seed)
    right = torch.randint(0, 2, (rows,), generator=g).float()
    hidden = 3 * torch.randn(rows, columns + 1, SIZE, generator=g)
    hidden[:, columns // 2 :, 0] += 20 * (2 * right[:, None] - 1)
    s = signals(right.tolist() if rewards is None else rewards, lengths=[columns] * rows, columns=columns)
    return replace(s, hidden=hidden.to(dtype))


def test_it_starts_with_no_opinion_and_learns_the_verdict():
    guide = make_guide("value", kappa=2.0, rate=0.05)
    first = batch()
    assert not guide(first).any()
    for seed in range(40):
        told = guide.learn(batch(seed))
    assert told["value_loss"] < 0.6 * told["value_loss_constant"]
    fresh = batch(99)
    values, log_q = guide.values(fresh.hidden), guide(fresh)
    right = fresh.rewards > 0
    assert values[right, 2:].min() > 0.6 > 0.4 > values[~right, 2:].max()
    assert torch.allclose(log_q.sum(1), 2.0 * (values[:, -1] - values[:, 0]), atol=1e-6), "it telescopes"
    where = log_q.abs().mean(0)
    assert where.argmax() == 1, "tokens are paid where the chance to be right moves"


@pytest.mark.parametrize("width", [0, 3])
def test_the_head_is_logistic_regression_by_adam(width):
    """Against NumPy: cross-entropy at every state a judged completion passed, each completion weighing the same; Adam's rule.
    With a tanh layer, the first step: its weights are as they were, for the layer above is still 0."""
    guide = make_guide("value", width=width, rate=0.05, passes=1 if width else 3)
    s = batch(rows=4, rewards=[1.0, 0.0, NAN, 0.25])
    s = replace(s, mask=torch.arange(5)[None] < torch.tensor([5, 2, 4, 0])[:, None])
    guide.learn(s)
    unit = s.hidden.double().numpy()
    unit = unit / np.linalg.norm(unit, axis=-1, keepdims=True)
    if width:
        unit = np.tanh(unit @ guide._head[0].weight.detach().double().numpy().T)
    w, b, m, v = np.zeros(unit.shape[-1]), 0.0, 0.0, 0.0
    for t in range(1, guide.passes + 1):
        gradient = np.zeros(len(w) + 1)
        for row, y, states in ((0, 1.0, 6), (1, 0.0, 3)):  # the third was not judged, the fourth counts no token
            x = unit[row, :states]
            off = 1 / (1 + np.exp(-(x @ w + b))) - y
            gradient += np.append(off @ x, off.sum()) / states
        gradient /= 2
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        step = 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-4)
        w, b = w - step[:-1], b - step[-1]
    out = guide._head[-1]
    assert out.weight.detach().numpy()[0] == pytest.approx(w, abs=1e-4)
    assert out.bias.item() == pytest.approx(b, abs=1e-4)


def test_a_batch_that_nobody_judged_teaches_nothing():
    guide = make_guide("value")
    assert guide.learn(batch(rows=2, rewards=[NAN, NAN])) == {}
    assert not any(p.any() for p in guide._head.parameters())
    assert guide._optimizer.state_dict()["state"] == {}


def test_log_q_does_not_look_at_its_own_verdicts():
    guide = make_guide("value")
    guide.learn(batch(1))
    s = batch(2)
    assert torch.equal(guide(s), guide(replace(s, rewards=1 - s.rewards)))
    assert guide(s).any()


def test_rows_together_or_in_parts_learn_the_same(monkeypatch):
    whole, parts = make_guide("value"), make_guide("value")
    s = batch(rows=10)
    whole.learn(s)
    log_q = whole(s)
    monkeypatch.setattr("sage_rlvr.anchor.taught.AT_ONCE", 3 * 6 * SIZE)
    parts.learn(s)
    assert torch.allclose(parts(s), log_q, atol=1e-6)


def test_processes_with_half_the_rows_each_learn_what_one_learns():
    """``gather`` is called in step by two guides in turn: a stand-in that adds what the other process found."""
    s = batch(rows=10)
    one = make_guide("value", passes=1)
    one.learn(s)
    halves = [
        replace(s, **{f: getattr(s, f)[rows] for f in ("logps", "ref_logps", "mask", "rewards", "hidden")})
        for rows in (slice(0, 3), slice(3, 10))
    ]
    sums = []
    for half in halves:
        make_guide("value", passes=1).learn(half, lambda x: sums.append(x) or x)
    for half in halves:
        two = make_guide("value", passes=1)
        two.learn(half, lambda x: torch.cat(sums))
        assert torch.allclose(two(s), one(s), atol=1e-6)


@pytest.mark.parametrize("width", [0, 3])
def test_its_state_goes_on_where_it_stopped_and_draws_no_number(width):
    def kept(state):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    straight, cut = (make_guide("value", width=width) for _ in range(2))
    for seed in range(3):
        straight.learn(batch(seed))
        cut.learn(batch(seed))
    resumed = make_guide("value", width=width)
    resumed.load_state_dict(kept(cut.state_dict()))
    again = make_guide("value", width=width)
    again.load_state_dict(kept(resumed.state_dict()))  # saved before it saw anything
    before = torch.get_rng_state()
    for seed in range(3, 6):
        straight.learn(batch(seed))
        again.learn(batch(seed))
    assert torch.equal(torch.get_rng_state(), before), "sampling draws from this generator"
    s = batch(9)
    assert torch.equal(straight(s), again(s))
    assert straight(s).any()
    with pytest.raises(UserError, match="the checkpoint's guide is 'value', this run's is 'group'"):
        make_guide("group").load_state_dict(kept(cut.state_dict()))
    with pytest.raises(UserError, match=r"was saved with kappa=1\.0, this run has 2\.0"):
        make_guide("value", kappa=2.0, width=width).load_state_dict(kept(cut.state_dict()))
    other = make_guide("value", width=width)
    other.load_state_dict(kept(cut.state_dict()))
    with pytest.raises(UserError, match="value head reads 6 numbers per token and this model has 4"):
        other(replace(s, hidden=s.hidden[..., :4]))


def test_bfloat16_states_and_long_rows_are_no_other_thing():
    guide = make_guide("value")
    guide.learn(batch(1, dtype=torch.bfloat16))
    assert guide(batch(2, dtype=torch.bfloat16)).dtype == torch.float32
    with pytest.raises(UserError, match="guide 'value' takes rewards between 0 and 1"):
        guide.learn(batch(rows=2, rewards=[3.0, 0.0]))
