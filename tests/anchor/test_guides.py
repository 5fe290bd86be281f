"""Guides against METHOD's formulas written with NumPy, and against everything a batch can throw at them."""

import sys
import types

import numpy as np
import pytest
import torch

from sage_rlvr import (
    BranchGuide,
    CosineRestarts,
    Guide,
    RandomGuide,
    Signals,
    TemperedGuide,
    TokenGuide,
    UserError,
    make_guide,
    register_guide,
)
from sage_rlvr.anchor.guides import quantiles

NAMES = ["random", "token", "branch", "tempered"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here"))]


def signals(rows=6, tokens=17, seed=0, device="cpu", dtype=torch.float32, **more):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, tokens + 1, (rows,), generator=g)
    lengths[0], lengths[1] = tokens, 0  # a full row and an empty one
    made = {
        "logps": -3 * torch.rand(rows, tokens, generator=g),
        "ref_logps": -3 * torch.rand(rows, tokens, generator=g),
        "entropies": 3 * torch.rand(rows, tokens, generator=g),
        "ref_entropies": 3 * torch.rand(rows, tokens, generator=g),
    }
    made = {k: v.to(device, dtype) for k, v in made.items()}
    mask = (torch.arange(tokens)[None] < lengths[:, None]).long().to(device)
    fields = {"step": 3, "max_steps": 100, "generator": torch.Generator().manual_seed(7)} | made | {"mask": mask} | more
    return Signals(**fields)


def test_branch_formula():
    s = signals()
    for source, field in (("policy", "entropies"), ("reference", "ref_entropies")):
        h = getattr(s, field).double().numpy()
        expected = np.log(np.clip(1 + 0.3 * np.maximum(0, h - 1.2), 0.6, 1.4)) * s.mask.numpy()
        guide = BranchGuide(source=source)
        assert guide.needs == {field}
        assert np.allclose(guide(s).numpy(), expected, atol=1e-6)
    assert (expected > 0).any()
    assert (expected >= np.log(1.4) - 1e-9).any(), "the clamp is reached in this data"


def test_tempered_formula_and_no_clamp():
    s = signals()
    kappa = np.minimum(0.5, 0.5 * np.maximum(0, s.entropies.double().numpy() - 1.2))
    expected = kappa * -s.ref_logps.double().numpy() * s.mask.numpy()
    assert np.allclose(TemperedGuide()(s).numpy(), expected, atol=1e-6)
    assert expected.max() > np.log(1.4)


def numpy_relative(x, how):
    """One completion's surprisals → s̃, from METHOD's words."""
    if how == "minmax":
        low, high = np.quantile(x, 0.05), np.quantile(x, 0.95)
        return np.clip((x - low) / (high - low), 0, 1) if high > low else np.zeros_like(x)
    if how == "rank":
        ranks = np.array([(x < v).sum() + ((x == v).sum() - 1) / 2 for v in x])
        return ranks / max(len(x) - 1, 1)
    return 1 / (1 + np.exp(-(x - x.mean()) / max(x.std(), 1e-6)))


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_are_numpys(seed):
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 9)), int(rng.integers(1, 400))
    x = rng.normal(size=shape).round(int(rng.integers(0, 9)))  # coarse ones tie
    mask = rng.random(shape) < rng.random()
    levels = [0.0, 1.0, *rng.random(3)]
    for level, got in zip(levels, quantiles(torch.tensor(x), torch.tensor(mask), *levels)):
        want = [np.quantile(row[on], level) if on.any() else 0.0 for row, on in zip(x, mask)]
        assert np.allclose(got[:, 0], want, rtol=1e-12, atol=1e-14)


def test_quantiles_of_more_values_than_torch_takes():
    """2^24 is torch's own limit, and where float32 stops telling neighbouring places apart: here they are far apart in value."""
    n = 2**24 + 3
    x = torch.arange(n, dtype=torch.int32).remainder(2).float()[None]  # half zeros, half ones
    mask = torch.ones(1, dtype=torch.bool).expand(1, n)
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(x[0], 0.5)
    zeros = (n + 1) // 2
    edge = (zeros - 0.75) / (n - 1)  # a quarter of the way from the last zero to the first one
    below, at, above = quantiles(x, mask, (zeros - 1.5) / (n - 1), edge, (zeros + 0.5) / (n - 1))
    assert (float(below), float(above)) == (0.0, 1.0)
    assert float(at) == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("how", ["minmax", "rank", "zscore"])
def test_token_formula_without_noise(how):
    s = signals(rows=12)
    s.logps[2] = -1.0  # all tokens equally surprising
    s.logps[3, 1] = s.logps[3, 0]  # a tie
    got = TokenGuide(alpha=0.3, sigma=0.0, normalize=how)(s).exp().numpy()
    for row in range(12):
        n = int(s.mask[row].sum())
        x = -s.logps[row, :n].double().numpy()
        expected = 1 + 0.3 * numpy_relative(x, how) if n else np.empty(0)
        assert np.allclose(got[row, :n], expected, atol=1e-5)
        assert np.all(got[row, n:] == 1)


def test_token_noise_has_the_stated_mean_and_spread():
    s = signals(rows=4000, tokens=8, mask=torch.ones(4000, 8))
    s.logps = -torch.arange(8.0).repeat(4000, 1)
    guide = TokenGuide(alpha=0.1, sigma=0.1, q_min=0.01, q_max=9)
    q = guide(s).exp()
    rel = torch.tensor(numpy_relative(np.arange(8.0), "minmax")).float()
    assert torch.allclose(q.mean(0), 1 + 0.1 * rel, atol=4 * 0.1 / 4000**0.5)
    assert torch.allclose(q.std(0), 0.1 * rel, atol=0.005)
    assert torch.equal(q[:, 0], torch.ones(4000)), "s̃ = 0 leaves q at 1"


def test_random_hits_epsilon_of_the_tokens_and_is_symmetric():
    s = signals(rows=2000, tokens=100, mask=torch.ones(2000, 100))
    q = RandomGuide(epsilon=0.1, sigma=0.15)(s).exp()
    share = (q != 1).float().mean()
    assert abs(share - 0.1) < 4 * (0.09 / q.numel()) ** 0.5
    hit = q[q != 1]
    assert abs(hit.mean() - 1) < 4 * 0.15 / len(hit) ** 0.5, "E[q] = 1: the clamp is symmetric"
    assert abs(hit.std() - 0.15) < 0.003
    assert q.min() >= 0.6
    assert q.max() <= 1.4


@pytest.mark.parametrize("name", ["random", "token"])
def test_schedules_follow_the_step(name):
    guide, rest = make_guide(name), {}
    for step in (0, 12):
        s = signals(rows=500, tokens=40, mask=torch.ones(500, 40), step=step, max_steps=800)
        rest[step] = guide(s)
    strength = {k: float(v.abs().mean()) for k, v in rest.items()}
    assert strength[0] > strength[12], "peak at 0, lower inside the period"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_contract(name, dtype, device):
    s = signals(rows=64, device=device, dtype=dtype)
    s.logps.requires_grad_()
    guide = make_guide(name)
    log_q = guide(s)
    assert log_q.dtype == torch.float32
    assert log_q.shape == s.mask.shape
    assert log_q.device == s.mask.device
    assert not log_q.requires_grad
    assert torch.isfinite(log_q).all()
    assert (log_q[s.mask == 0] == 0).all()
    if name != "tempered":
        assert log_q.exp().min() >= 0.6 - 1e-6
        assert log_q.exp().max() <= 1.4 + 1e-6
    wide = signals(rows=64, device=device, dtype=dtype)
    for field in ("logps", "ref_logps", "entropies", "ref_entropies"):
        setattr(wide, field, getattr(wide, field).float())
    assert torch.equal(log_q, guide(wide)), "bf16 signals, float32 arithmetic"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
@pytest.mark.parametrize("name", NAMES)
def test_cuda_gives_the_numbers_of_the_cpu(name):
    assert torch.allclose(make_guide(name)(signals(device="cuda")).cpu(), make_guide(name)(signals()), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_garbage_off_mask_changes_nothing_and_on_mask_is_named(name, bad):
    clean, dirty = signals(), signals()
    off = dirty.mask == 0
    for field in ("logps", "ref_logps", "entropies", "ref_entropies"):
        getattr(dirty, field)[off] = bad
    guide = make_guide(name)
    assert torch.equal(guide(clean), guide(dirty))
    for field in ("logps", "ref_logps", "entropies"):
        broken = signals()
        getattr(broken, field)[0, 4] = bad
        with pytest.raises(ValueError, match=rf"Signals\.{field} is {bad} on a counted token \(row 0, column 4\)"):
            guide(broken)


@pytest.mark.parametrize("name", NAMES)
def test_all_rows_empty(name):
    s = signals(mask=torch.zeros(6, 17))
    assert torch.equal(make_guide(name)(s), torch.zeros(6, 17))


@pytest.mark.parametrize("name", ["random", "token"])
def test_noise_is_given_by_the_generator_and_the_row_not_by_the_batch(name):
    whole = signals(rows=12)
    guide = make_guide(name, **({"epsilon": 1.0} if name == "random" else {}))
    expected = guide(whole)
    assert torch.equal(expected, guide(signals(rows=12))), "same generator state, same noise"
    assert not torch.equal(expected, guide(signals(rows=12, generator=torch.Generator().manual_seed(8))))
    order = torch.tensor([7, 2, 11])
    part = signals(rows=12)
    for field in ("logps", "ref_logps", "entropies", "ref_entropies", "mask"):
        setattr(part, field, getattr(part, field)[order][:, :15])  # other rows around it, other padding
    part.mask[:] = whole.mask[order][:, :15]
    part.rows = order
    if name == "token":  # it normalises within the row, so give it rows that fit into 15 columns
        keep = whole.mask[order].sum(1) <= 15
        assert keep.any()
        assert torch.equal(guide(part)[keep], expected[order][:, :15][keep])
    else:
        assert torch.equal(guide(part), expected[order][:, :15])


@pytest.mark.parametrize("name", NAMES)
def test_state_survives_a_round_trip_and_refuses_another_guide(name):
    import json

    guide = make_guide(name)
    state = json.loads(json.dumps(guide.state_dict())) if name in ("branch", "tempered") else guide.state_dict()
    other = make_guide(name)
    other.load_state_dict(state)
    assert torch.equal(guide(signals()), other(signals()))
    with pytest.raises(UserError, match="the checkpoint's guide is"):
        make_guide("branch" if name != "branch" else "token").load_state_dict(state)
    changed = {"random": {"sigma": 0.3}, "token": {"alpha": 0.2}}.get(name, {"ratio": 0.9})
    with pytest.raises(UserError, match=f"was saved with {next(iter(changed))}="):
        make_guide(name, **changed).load_state_dict(state)


def test_properties_that_decide_what_is_refused():
    table = {n: (make_guide(n).token_dependent, make_guide(n).past_only, make_guide(n).stochastic) for n in NAMES}
    assert table == {
        "random": (False, True, True),
        "token": (True, False, True),
        "branch": (False, True, False),
        "tempered": (True, True, False),
    }


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: make_guide("brunch"),
            "guide='brunch' is unknown; did you mean 'branch'. There are .*random.*tempered.*token",
        ),
        (lambda: make_guide("branch", rho=1), "guide 'branch' has no argument 'rho'; it takes ratio, threshold, q_min"),
        (lambda: BranchGuide(q_min=1.4, q_max=1.4), "q_min=1.4 is not below q_max=1.4"),
        (lambda: TokenGuide(q_min=2.0), "q_min=2.0 is not below q_max=1.4"),
        (lambda: RandomGuide(q_min=0.0), "q_min=0.0: q must stay positive"),
        (lambda: BranchGuide(source="teacher"), "source='teacher' is unknown; choose one of policy, reference"),
        (lambda: TokenGuide(normalize="max"), "normalize='max' is unknown; choose one of minmax, rank, zscore"),
        (lambda: TemperedGuide(kappa_max=1.5), r"kappa_max=1.5 must lie in \(0, 1\]"),
        (lambda: BranchGuide(ratio=-1), "ratio=-1 must not be negative"),
        (lambda: RandomGuide(sigma="big"), "sigma='big': give one number, or a pair"),
        (lambda: RandomGuide(sigma=(0.1, 0.2)), "high=0.1 is below low=0.2"),
        (lambda: CosineRestarts(1, 0, periods=0), "periods=0"),
        (lambda: make_guide("no_such_module:Thing"), "could not be loaded"),
        (lambda: make_guide("json:loads"), "is not a subclass of sage_rlvr.Guide"),
        (lambda: BranchGuide()(signals(entropies=None)), "guide 'branch' needs Signals.entropies, which is None"),
        (
            lambda: TemperedGuide(source="reference")(signals(ref_entropies=None)),
            "guide 'tempered' needs Signals.ref_entropies",
        ),
    ],
)
def test_mistakes_get_one_sentence(call, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_own_guides_by_name_and_by_module_path():
    @register_guide("test-flat")
    class Flat(Guide):
        token_dependent = False

        def __init__(self, bonus=0.1):
            self.bonus = bonus

        def log_q(self, s):
            return torch.full_like(s.logps, self.bonus)

    s = signals()
    assert torch.allclose(make_guide("test-flat", bonus=0.2)(s), 0.2 * s.mask)
    module = types.ModuleType("their_guides")
    module.Flat = type("Flat", (Flat,), {})
    sys.modules["their_guides"] = module
    assert torch.allclose(make_guide("their_guides:Flat")(s), 0.1 * s.mask)

    class Broken(Guide):
        def log_q(self, s):
            return s.logps / 0

    with pytest.raises(ValueError, match="NaN or inf on counted tokens"):
        Broken()(s)
    with pytest.raises(UserError, match="registered already"):
        register_guide("branch")(Flat)
    with pytest.raises(UserError, match="takes a subclass"):
        register_guide("thing")(dict)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"Signals.entropies has shape \(6, 3\), the mask \(6, 17\)"):
        BranchGuide()(signals(entropies=torch.zeros(6, 3)))
    with pytest.raises(ValueError, match=r"Signals.rows has shape \(2,\), but there are 6 rows"):
        RandomGuide()(_with_rows())


def _with_rows():
    s = signals()
    s.rows = torch.arange(2)
    return s
