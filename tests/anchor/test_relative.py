"""Guides with a relative gate, against NumPy's quantile, and what they must not change under."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sage_rlvr import BranchGuide, Signals, TemperedGuide, UserError, make_guide

NAMES = ["branch-quantile", "tempered-quantile"]


def signals(rows=8, tokens=13, seed=0):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, tokens + 1, (rows,), generator=g)
    lengths[1] = 0
    mask = torch.arange(tokens)[None] < lengths[:, None]
    fields = ("logps", "ref_logps", "entropies", "ref_entropies")
    made = {f: (-3 if "logps" in f else 3) * torch.rand(rows, tokens, generator=g) for f in fields}
    return Signals(**made, mask=mask)


def numpy_excess(s, field, ratio, quantile):
    h, on = getattr(s, field).double().numpy(), s.mask.numpy().astype(bool)
    return ratio * np.maximum(0, h - np.quantile(h[on], quantile)) * on


@pytest.mark.parametrize(("source", "field"), [("policy", "entropies"), ("reference", "ref_entropies")])
@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.8, 0.95])
def test_formulas(quantile, source, field):
    s = signals()
    excess = numpy_excess(s, field, 0.4, quantile)
    branch = make_guide("branch-quantile", ratio=0.4, quantile=quantile, source=source)
    assert np.allclose(branch(s), np.log(np.clip(1 + excess, 0.6, 1.4)), atol=1e-5)
    tempered = make_guide("tempered-quantile", ratio=0.4, quantile=quantile, kappa_max=0.3, source=source)
    assert np.allclose(tempered(s), np.minimum(excess, 0.3) * -s.ref_logps.numpy(), atol=1e-5)
    assert branch.needs == tempered.needs == {field}


def test_at_the_batchs_own_quantile_they_are_the_published_ones():
    s = signals()
    tau = float(torch.quantile(s.entropies[s.mask], 0.7))
    assert torch.allclose(make_guide("branch-quantile", quantile=0.7)(s), BranchGuide(threshold=tau)(s), atol=1e-6)
    assert torch.allclose(make_guide("tempered-quantile", quantile=0.7)(s), TemperedGuide(threshold=tau)(s), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_what_they_do_not_change_under(name):
    s, guide = signals(), make_guide(name)
    log_q = guide(s)
    assert (log_q != 0).any()
    raised = replace(s, entropies=s.entropies + 1.7)  # a fixed τ would open wide
    assert torch.allclose(guide(raised), log_q, atol=1e-5)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    fields = ("logps", "ref_logps", "entropies", "ref_entropies", "mask")
    shuffled = Signals(**{f: getattr(s, f)[order] for f in fields})
    assert torch.equal(guide(shuffled), log_q[order])
    padded = Signals(**{f: torch.nn.functional.pad(getattr(s, f), (0, 5)) for f in fields})
    assert torch.equal(guide(padded)[:, :13], log_q), "what is not counted moves no quantile"


def test_the_share_that_is_gated_is_the_one_asked_for():
    s = signals(rows=400, tokens=50)
    for quantile in (0.5, 0.9):
        share = (make_guide("branch-quantile", quantile=quantile)(s)[s.mask] > 0).float().mean()
        assert float(share) == pytest.approx(1 - quantile, abs=0.002)


def test_level_pays_for_no_state():
    """One state, every token of its vocabulary once: Σ_v π_ref(v)·log q(v) = 0, and q orders tokens as tempered does."""
    logps = torch.log_softmax(2 * torch.randn(1, 9, generator=torch.Generator().manual_seed(3)), -1)
    entropy = -(logps.exp() * logps).sum()
    low = torch.zeros(1, 9)  # other tokens, certain: they set the quantile
    s = Signals(
        logps=torch.cat([logps, low]),
        ref_logps=torch.cat([logps, low]),
        mask=torch.ones(2, 9),
        entropies=torch.cat([torch.full((1, 9), float(entropy)), low]),
        ref_entropies=torch.cat([torch.full((1, 9), float(entropy)), low]),
    )
    level, plain = (make_guide("tempered-quantile", quantile=0.2, level=on)(s)[0] for on in (True, False))
    assert float((logps[0].exp() * level).sum()) == pytest.approx(0, abs=1e-6)
    assert torch.allclose(level - level[0], plain - plain[0], atol=1e-6)
    assert float((logps[0].exp() * plain).sum()) > 0.1
    assert make_guide("tempered-quantile", level=True).needs == {"entropies", "ref_entropies"}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_counted_and_nothing_uncertain(name):
    s, guide = signals(), make_guide(name)
    assert (guide(replace(s, mask=torch.zeros_like(s.mask))) == 0).all()
    assert (guide(replace(s, entropies=torch.full_like(s.entropies, 1.5))) == 0).all(), "no token above the others"


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("branch-quantile", {"quantile": 1.0}, "quantile=1.0 must lie in"),
        ("tempered-quantile", {"quantile": -0.1}, "quantile=-0.1 must lie in"),
        ("branch-quantile", {"ratio": -1}, "ratio=-1 must not be negative"),
        ("branch-quantile", {"q_min": 2}, "q_min=2 is not below"),
        ("tempered-quantile", {"kappa_max": 0}, "kappa_max=0 must lie in"),
        ("tempered-quantile", {"source": "both"}, "source='both' is unknown"),
        ("branch-quantile", {"threshold": 1}, "has no argument 'threshold'"),
    ],
)
def test_refusals(name, args, sentence):
    with pytest.raises(UserError, match=sentence):
        make_guide(name, **args)


def test_flags_and_state():
    branch, tempered = make_guide("branch-quantile"), make_guide("tempered-quantile", quantile=0.6)
    assert (branch.token_dependent, tempered.token_dependent) == (False, True)
    assert not branch.past_only
    assert not tempered.past_only
    with pytest.raises(UserError, match="needs Signals"):
        branch(replace(signals(), entropies=None))
    make_guide("tempered-quantile", quantile=0.6).load_state_dict(tempered.state_dict())
    with pytest.raises(UserError, match="saved with quantile="):
        make_guide("tempered-quantile").load_state_dict(tempered.state_dict())
