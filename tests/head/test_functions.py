"""Against float64 autograd on all logits: values, gradients, odd sizes, masks, and what is kept for the backward."""

import pytest
import torch

from sage_rlvr.errors import UserError
from sage_rlvr.head import logps_and_entropies, tiles

from .exact import Case, answer, draw, off

SHAPES = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "scale": {"logit_scale": 1.7},
    "cap": {"softcap": 4.0},
    "all": {"temperature": 1.4, "logit_scale": 0.8, "softcap": 5.0},
}
TILES = (5, 128)  # small, so that every case crosses both kinds of edge


@pytest.fixture(autouse=True)
def _poisoned():
    """Every buffer that is not written yet holds NaN."""
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)  # with it, torch.empty fills what it gives with NaN
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def run(case: Case, pull, pull_entropies=None, *, trainable=False, **options):
    hidden = case.hidden.clone().requires_grad_()
    weight = case.weight.clone().requires_grad_(trainable)
    bias = None if case.bias is None else case.bias.clone().requires_grad_(trainable)
    options["entropy_grad"] = pull_entropies is not None
    logps, entropies = logps_and_entropies(hidden, weight, case.targets, bias=bias, **options)
    loss = (logps * pull).sum()
    if pull_entropies is not None:
        loss = loss + (entropies * pull_entropies).sum()
    loss.backward()
    return logps.detach(), entropies.detach(), [t.grad for t in (hidden, weight, bias) if t is not None]


@pytest.fixture(params=["frozen", "kept", "recomputed"])
def trainable(request, monkeypatch):
    """Whether the head learns; its exponentials are kept for the backward, or there is no room for them."""
    if request.param == "recomputed":
        monkeypatch.setattr(tiles, "KEPT", 0)
    return request.param != "frozen"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_float32_agrees_with_float64(name, bias, trainable):
    case, pull = draw(23, 24, 301, bias=bias, spread=0.3), torch.randn(23)
    logps, entropies, grads = answer(case, pull, **SHAPES[name])
    found = run(case, pull, trainable=trainable, chunk=TILES, **SHAPES[name])
    torch.testing.assert_close(found[0].double(), logps, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found[1].double(), entropies, atol=2e-5, rtol=1e-5)
    assert off(found[2][0], grads[0]) < 1e-5
    for mine, exact in zip(found[2][1:], grads[1:]):
        assert mine is None if not trainable else off(mine, exact) < 1e-5


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_the_entropy_has_a_gradient_when_asked(name, learns):
    case, pull, lean = draw(11, 16, 300, bias=True, spread=0.3), torch.randn(11), torch.randn(11)
    _, _, grads = answer(case, pull, lean, **SHAPES[name])
    found = run(case, pull, lean, trainable=learns, chunk=TILES, **SHAPES[name])[2]
    for mine, exact in list(zip(found, grads))[: 3 if learns else 1]:
        assert off(mine, exact) < 1e-5


def test_gradcheck_in_float64():
    case = draw(4, 3, 8, dtype=torch.float64, bias=True, spread=0.5)
    leaves = [t.requires_grad_() for t in (case.hidden, case.weight, case.bias)]
    mask = torch.tensor([1, 0, 1, 1])

    def every(hidden, weight, bias, entropy_grad=True):
        options = {"softcap": 3.0, "temperature": 0.7, "mask_N": mask, "chunk": (2, 3)}
        return logps_and_entropies(hidden, weight, case.targets, bias=bias, entropy_grad=entropy_grad, **options)

    assert torch.autograd.gradcheck(every, leaves)
    assert torch.autograd.gradcheck(lambda *t: every(*t, entropy_grad=False)[0], leaves)
    weight, bias = case.weight.detach(), case.bias.detach()
    assert torch.autograd.gradcheck(lambda h: every(h, weight, bias, entropy_grad=False)[0], (case.hidden,))


@pytest.mark.parametrize(("n", "width", "vocab"), [(1, 8, 33), (4097, 4, 61), (3, 16, 50_257), (2, 4, 262_144)])
def test_odd_sizes_at_the_sizes_chosen_by_bytes(n, width, vocab):
    case, pull = draw(n, width, vocab, spread=0.5), torch.randn(n)
    logps, entropies, grads = answer(case, pull)
    found = run(case, pull)
    torch.testing.assert_close(found[0].double(), logps, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found[1].double(), entropies, atol=2e-5, rtol=1e-5)
    assert off(found[2][0], grads[0]) < 1e-5


def test_masked_positions_are_skipped(trainable):
    case, pull = draw(40, 12, 200, spread=0.3), torch.randn(40)
    mask = torch.rand(40) < 0.4
    _, _, grads = answer(case, pull, mask=mask)
    logps, entropies, _ = answer(case, pull, mask=mask)
    poisoned = Case(case.hidden.clone(), case.weight, case.targets.clone())
    poisoned.hidden[~mask] = float("nan")  # reading one would show
    poisoned.targets[~mask] = -100
    found = run(poisoned, pull, trainable=trainable, mask_N=mask, chunk=TILES)
    torch.testing.assert_close(found[0].double(), logps, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found[1].double(), entropies, atol=2e-5, rtol=1e-5)
    assert (found[0][~mask] == 0).all()
    assert (found[1][~mask] == 0).all()
    assert (found[2][0][~mask] == 0).all()
    assert off(found[2][0], grads[0]) < 1e-5
    if trainable:
        assert off(found[2][1], grads[1]) < 1e-5


def test_nothing_counts(trainable):
    case = draw(6, 8, 50)
    case.targets[:] = -100
    logps, entropies, grads = run(case, torch.randn(6), trainable=trainable, mask_N=torch.zeros(6))
    for tensor in (logps, entropies, grads[0], *([grads[1]] if trainable else [])):
        assert (tensor == 0).all()


def test_a_policy_that_is_sure_keeps_its_relative_precision():
    """log p = −1e−9 and its gradient: 1 − p_y in float32 would be 0."""
    weight = torch.eye(4)
    hidden = torch.tensor([[22.0, 0.0, 0.5, 0.2], [3.0, 25.0, 1.0, 0.0]])
    case, pull = Case(hidden, weight, torch.tensor([0, 1])), torch.ones(2)
    logps, _, grads = answer(case, pull)
    found = run(case, pull, chunk=(2, 3))
    torch.testing.assert_close(found[0].double(), logps, atol=0, rtol=1e-5)
    torch.testing.assert_close(found[2][0].double(), grads[0], atol=0, rtol=1e-5)


def test_late_and_large_logits_move_the_reference():
    """Each tile's best is far above the last one's: what was summed must be scaled down, and nothing overflows."""
    case, pull = draw(6, 8, 512), torch.randn(6)
    case.bias = torch.arange(512) // 128 * 150.0 + torch.randn(512)
    case.targets = torch.tensor([511, 400, 3, 130, 260, 500])
    logps, entropies, grads = answer(case, pull)
    found = run(case, pull, chunk=(4, 128))
    torch.testing.assert_close(found[0].double(), logps, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found[1].double(), entropies, atol=1e-4, rtol=1e-5)
    assert off(found[2][0], grads[0]) < 1e-4


def test_a_token_ruled_out_by_its_bias_changes_nothing_but_itself():
    case, pull = draw(5, 8, 300, bias=True, spread=0.3), torch.randn(5)
    case.targets = case.targets % 100
    less = Case(case.hidden, case.weight[:160], case.targets, case.bias[:160])
    case.bias[160:] = -torch.inf
    logps, entropies, grads = answer(less, pull)
    for options in ({}, {"trainable": True}):
        found = run(case, pull, chunk=TILES, **options)
        torch.testing.assert_close(found[0].double(), logps, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(found[1].double(), entropies, atol=2e-5, rtol=1e-5)
        assert off(found[2][0], grads[0]) < 1e-5


def test_used_twice_the_gradients_add_up():
    case, pull = draw(9, 8, 100, spread=0.3), torch.randn(9)
    hidden = case.hidden.clone().requires_grad_()
    once, _ = logps_and_entropies(hidden, case.weight, case.targets)
    again, _ = logps_and_entropies(hidden, case.weight, case.targets, temperature=2.0)
    loss = (once * pull).sum() + (again.exp() * pull).sum()
    loss.backward(retain_graph=True)
    first = hidden.grad.clone()
    loss.backward()
    torch.testing.assert_close(hidden.grad, 2 * first)
    exact = case.hidden.double().requires_grad_()
    logits = exact @ case.weight.double().t()
    picked = [(logits / t).log_softmax(-1).gather(1, case.targets[:, None])[:, 0] for t in (1.0, 2.0)]
    ((picked[0] + picked[1].exp()) * pull.double()).sum().backward()
    assert off(first, exact.grad) < 1e-5


def test_what_is_kept_for_the_backward():
    n, width, vocab = 64, 8, 1000
    case, saved = draw(n, width, vocab), []

    def keep(tensor):
        saved.append(tuple(tensor.shape))
        return tensor

    def shapes(**options):
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            logps_and_entropies(case.hidden.requires_grad_(), case.weight, case.targets, **options)
        return sorted(saved)

    assert shapes() == [(n, width)]  # one vector a token: neither the weight nor anything as wide as the vocabulary
    assert all(n * vocab not in (a * b for a, b in [shape]) for shape in shapes(entropy_grad=True) if len(shape) == 2)
    with torch.no_grad():
        assert shapes() == []


def test_buffers_are_bounded_by_bytes_whatever_the_batch():
    """The largest tensor made on the way, at the sizes of a long batch, by running the shapes alone."""
    from sage_rlvr.head.tiles import BUDGET, frozen_tiles, reading_tiles, square_tiles

    for n in (1, 4097, 16_384, 131_072):
        for vocab in (50_257, 151_936, 262_144):
            for width in (896, 1536, 3584, 8192):
                frozen = frozen_tiles(n, vocab, width, 2, 132)
                assert frozen.tokens * frozen.vocab * 6 <= BUDGET * 1.02  # a tile is rounded up to 128 columns
            for other, each in ((reading_tiles(n, vocab), 4), (square_tiles(n, vocab), 6)):
                assert other.tokens * other.vocab * each <= max(BUDGET, 8192 * 8192 * 6) * 1.02
    at_issue_size = frozen_tiles(16_384, 151_936, 3584, 2, 132)
    saved = 16_384 * 3584 * 4
    assert at_issue_size.tokens * at_issue_size.vocab * 6 + saved <= 0.6 * 2**30


def test_no_tensor_is_as_large_as_the_logits(monkeypatch):
    """Every tensor that any operation returns, forward and backward, but for a head that learns where they have room."""
    monkeypatch.setattr(tiles, "KEPT", 0)
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    n, vocab = 60, 2000
    for trainable in (False, True):
        sizes.clear()
        case = draw(n, 4, vocab)
        with Watch():
            run(case, torch.randn(n), trainable=trainable, chunk=(10, 256))
        assert max(sizes) <= max(10 * 256, vocab * 4, n * 4)


def test_autocast_computes_in_its_dtype():
    case, pull = draw(12, 16, 300, spread=0.3), torch.randn(12)
    half = Case(case.hidden.bfloat16(), case.weight.bfloat16(), case.targets)
    logps, entropies, grads = answer(half, pull)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(case, pull, chunk=TILES)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0].double(), logps, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[1].double(), entropies, atol=1e-4, rtol=1e-4)
    assert off(found[2][0], grads[0]) < 1e-2


def test_no_entropy_unless_wanted():
    case = draw(3, 4, 20)
    assert logps_and_entropies(case.hidden, case.weight, case.targets, entropy=False)[1] is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"temperature": 0.0}, "above 0"),
        ({"mask_N": torch.ones(4)}, "mask_N has shape"),
        ({"bias": torch.ones(4)}, "bias has shape"),
        ({"entropy_grad": True, "entropy": False}, "needs entropy=True"),
    ],
)
def test_what_cannot_work_is_said(change, says):
    case = draw(3, 4, 20)
    with pytest.raises(UserError, match=says):
        logps_and_entropies(case.hidden, case.weight, case.targets, **change)
    case.targets[1] = 20
    with pytest.raises(UserError, match="outside the vocabulary"):
        logps_and_entropies(case.hidden, case.weight, case.targets)
    with pytest.raises(UserError, match="of one D"):
        logps_and_entropies(case.hidden[:, :2], case.weight, case.targets)
