"""examples/sage_loop.py: short, without the package, with SAGETrainer's loss and gradient, and it learns."""

import random
import re
import runpy

import pytest
import torch

from sage_rlvr.train import SAGETrainer
from tests.paths import ROOT
from tests.train import tiny

FILE = ROOT / "examples" / "sage_loop.py"
GROUP, BETA, TEMPERATURE = 4, 0.2, 0.9


@pytest.fixture(scope="module")
def loop():
    return runpy.run_path(str(FILE))


def test_it_is_short_and_imports_nothing_of_ours():
    text = FILE.read_text()
    assert len(text.splitlines()) <= 150
    assert not re.search(r"^\s*(from|import) (sage_rlvr|trl)\b", text, re.M)


class Seen(SAGETrainer):
    """Keeps the first batch, its loss and the gradient of it."""

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if not hasattr(self, "batch"):
            grads = torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)
            grads = [grad.clone() for grad in grads]  # clipped in place later
            self.batch, self.loss, self.grads = inputs, loss.detach(), grads
            self.reference = self.ref_model.state_dict()
            self.policy = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
            self.judged = torch.tensor(self.seen_rewards)
        return loss

    def _calculate_rewards(self, *args):
        found = super()._calculate_rewards(*args)
        self.seen_rewards = found[:, 0].tolist()
        return found


@pytest.mark.parametrize("estimator", ["k3", "k1-reward"])
def test_loss_and_gradient_are_the_trainers(estimator, loop, tmp_path):
    start = tiny.folder(tmp_path / "start")
    trainer = tiny.build(
        start, tmp_path / "run", Seen, guide="branch", anchor_estimator=estimator, beta=BETA, num_generations=GROUP,
        per_device_train_batch_size=8, temperature=TEMPERATURE, max_steps=1,
    )  # fmt: skip
    with torch.no_grad():  # away from the reference, so that the penalty is not 0
        for weight in trainer.model.parameters():
            weight.add_(0.03 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    trainer.train()
    order = trainer.batch["sage_rows"].argsort()  # TRL shuffles a rollout batch; groups lie together here
    batch = {
        key: trainer.batch[key][order] for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    }
    policy, reference = tiny.model(), tiny.model()
    policy.load_state_dict(trainer.policy)
    reference.load_state_dict(trainer.reference)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    attention, mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1), batch["completion_mask"]
    logps, entropies = loop["score"](policy, ids, attention, mask.shape[1], TEMPERATURE)
    with torch.no_grad():
        ref_logps, _ = loop["score"](reference, ids, attention, mask.shape[1], TEMPERATURE)
    log_q = loop["branch"](entropies, mask)
    credit = loop["advantages"](trainer.judged, GROUP)
    assert log_q.max() > 0.05
    assert credit.abs().max() > 0.1
    assert (ref_logps - logps).abs()[mask.bool()].mean() > 0.01
    loss = loop["sage_loss"](logps, ref_logps, log_q, mask, credit, GROUP, BETA, estimator)
    assert loss.item() == pytest.approx(trainer.loss.item(), rel=1e-4, abs=1e-6)
    for mine, theirs in zip(torch.autograd.grad(loss, list(policy.parameters())), trainer.grads, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-6)


def test_it_learns(loop, capsys):
    torch.manual_seed(0)
    random.seed(0)
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(5) for b in range(5)]
    curve = loop["train"](*loop["tiny"](), sums, steps=40)
    assert sum(curve[-10:]) > 5 * sum(curve[:10]) > 0
    assert capsys.readouterr().out.count("reward") == 4
