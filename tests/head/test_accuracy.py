"""bf16 against float64 on the same inputs: within the stated bounds, and nowhere worse than TRL's fused head."""

import pytest
import torch
from trl.kernels import chunked_logprob

from sage_rlvr.head import logps_and_entropies, tiles

from .exact import answer, draw, off


class _Products:
    """torch, but for ``mm``: a bf16 product takes minutes on a CPU without bf16 units. Float32 sums rounded once to bf16 are
    what a GPU's product gives."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def mm(self, a, b, out):
        out.copy_(a.float() @ b.float())


@pytest.fixture
def trl_head(monkeypatch):
    monkeypatch.setattr(chunked_logprob, "torch", _Products())
    return chunked_logprob.ChunkedLogProbFunction


def errors(head, case, pull, **options):
    logps, entropies, grads = answer(case, pull, **options)
    hidden = case.hidden.clone().requires_grad_()
    found = head(hidden, **options)
    (found[0] * pull).sum().backward()
    worst = [float((a.detach().double() - b).abs().max()) for a, b in zip(found, (logps, entropies))]
    return [*worst, off(hidden.grad, grads[0])]


@pytest.mark.parametrize(
    ("n", "width", "vocab", "spread", "sure", "options"),
    [
        (24, 512, 8000, 0.02, 0.0, {}),  # flat: every logit small
        (24, 512, 8000, 0.1, 0.0, {}),
        (24, 512, 8000, 0.05, 20.0, {}),  # from flat to certain, as trained models are
        (24, 512, 8000, 0.05, 60.0, {"temperature": 0.6}),
        (24, 64, 50_257, 0.1, 30.0, {"softcap": 30.0}),
        (1, 16, 262_144, 0.4, 20.0, {"logit_scale": 0.5}),
        (4097, 16, 300, 0.5, 10.0, {}),
    ],
)
def test_bf16(trl_head, n, width, vocab, spread, sure, options):
    torch.manual_seed(n + vocab)
    case = draw(n, width, vocab, dtype=torch.bfloat16, spread=spread, sure=sure)
    pull = torch.randn(n)

    def ours(hidden, **shape):
        return logps_and_entropies(hidden, case.weight, case.targets, **shape)

    def theirs(hidden, temperature=1.0, softcap=None, logit_scale=1.0):
        wanted = ("log_probs", "entropy")
        return trl_head.apply(
            hidden, case.weight, None, case.targets, temperature, 32_768, softcap, logit_scale, wanted
        )[:2]

    mine, peer = errors(ours, case, pull, **options), errors(theirs, case, pull, **options)
    for error, bound in zip(mine, (5e-3, 5e-3, 1e-2)):
        assert error < bound
    for error, other in zip(mine, peer):
        assert error <= other


@pytest.mark.parametrize(("entropy", "room"), [(False, 5 << 30), (False, 0), (True, 0)])
def test_bf16_where_the_head_learns(trl_head, entropy, room, monkeypatch):
    monkeypatch.setattr(tiles, "KEPT", room)
    torch.manual_seed(5)
    case = draw(48, 128, 4000, dtype=torch.bfloat16, spread=0.1, sure=20.0)
    pull, lean = torch.randn(48), torch.randn(48) if entropy else None
    exact = answer(case, pull, lean)[2]

    def gradients(head):
        hidden, weight = (t.clone().requires_grad_() for t in (case.hidden, case.weight))
        logps, entropies = head(hidden, weight)
        ((logps * pull).sum() + (0 if lean is None else (entropies * lean).sum())).backward()
        return [off(found.grad, true) for found, true in zip((hidden, weight), exact)]

    mine = gradients(lambda h, w: logps_and_entropies(h, w, case.targets, entropy_grad=entropy))
    wanted = ("log_probs", "entropy")
    peer = gradients(lambda h, w: trl_head.apply(h, w, None, case.targets, 1.0, 32_768, None, 1.0, wanted)[:2])
    for error, other in zip(mine, peer):
        assert error < 1e-2
        assert error <= other
