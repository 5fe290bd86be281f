"""The reference that sums are taken against moves while what was summed before still weighs: against float64 on all logits."""

import pytest
import torch

from sage_rlvr.head import logps_and_entropies, tiles
from sage_rlvr.head.softmax import limit

from .exact import Case, answer, draw, off


def rising(case: Case, room: float) -> Case:
    """Tiles of 128 columns at 0, just below the room and just above: the third moves the reference, and the second, which did
    not, keeps a seventh of the mass. A fourth comes after it."""
    steps = torch.tensor([0.0, room - 1, room + 1, room])
    case.bias = steps.repeat_interleave(128) + 0.1 * torch.randn(512)
    case.targets = torch.tensor([0, 130, 255, 256, 300, 511])
    return case


@pytest.mark.parametrize("head", ["frozen", "kept", "recomputed", "read"])
def test_what_was_summed_before_is_moved_along(head, monkeypatch):
    if head == "recomputed":
        monkeypatch.setattr(tiles, "KEPT", 0)
    torch.manual_seed(0)
    case, pull = rising(draw(6, 8, 512, sure=0.0), limit(torch.float32)), torch.randn(6)
    logps, entropies, grads = answer(case, pull)
    assert entropies.min() > 1, "no tile alone decides"
    hidden = case.hidden.clone().requires_grad_(head != "read")
    weight = case.weight.clone().requires_grad_(head in ("kept", "recomputed"))
    found = logps_and_entropies(hidden, weight, case.targets, bias=case.bias, chunk=(4, 128))
    torch.testing.assert_close(found[0].double(), logps, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found[1].double(), entropies, atol=2e-4, rtol=1e-5)
    if head != "read":
        (found[0] * pull).sum().backward()
        assert off(hidden.grad, grads[0]) < 1e-4
    if weight.requires_grad:
        assert off(weight.grad, grads[1]) < 1e-4
