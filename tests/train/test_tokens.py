"""Advantages per token in training: which tokens, by NumPy over full logits; gradients, by hand; however a batch is cut."""

import numpy as np
import pytest
import torch

from sage_rlvr.errors import UserError
from sage_rlvr.train import SAGEConfig
from sage_rlvr.train.microbatches import rows_that_weigh

from . import tiny
from .test_packing import LOSSES, Recorded, assert_same_run, build, half_flat, train

CLIP = {"advantage": "clip_cov", "advantage_args": {"share": 0.1, "low": 0.05, "high": 3.0}}
HELD = {"advantage": "kl_cov", "advantage_args": {"share": 0.1, "coef": 0.5}}
UNSURE = {"advantage": "entropy"}
PLAIN = {"guide": "none", "beta": 0.0, "skip_zero_advantage": False}


class Kept(Recorded):
    """Keeps what the rollout batches hold; ``handed`` puts advantages in their place."""

    handed = None

    def _make_rollouts(self, inputs):
        output = super()._make_rollouts(inputs)
        if self.handed is not None:
            output["advantages"] = self.handed
        self.batches = [*getattr(self, "batches", []), dict(output)]
        return output


def run(folder, tmp_path, budget=None, **options):
    return train(build(folder, tmp_path, budget, cls=Kept, **(PLAIN | options)))


def scored(model, batch, temperature=0.9):
    """(B, T) log-probs with their gradient and entropies: a row at a time through all logits."""
    logps, entropies = (torch.zeros(batch["completion_ids"].shape, dtype=torch.float64) for _ in range(2))
    for i, (prompt, on, ids, shown) in enumerate(
        zip(batch["prompt_ids"], batch["prompt_mask"], batch["completion_ids"], batch["completion_mask"])
    ):
        prompt, ids = prompt[on.bool()], ids[shown.bool()]
        logits = model(input_ids=torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1] / temperature
        logps[i, : len(ids)] = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        entropies[i, : len(ids)] = torch.special.entr(logits.softmax(-1)).sum(-1).detach()
    return logps, entropies


def start(folder):
    return tiny.Qwen2ForCausalLM.from_pretrained(folder).double().eval()


def spread(grads):
    return torch.cat([grads[name].flatten() for name in sorted(grads)])


def assert_same(a, b):
    assert float((a - b).norm()) <= 1e-9 * float(b.norm())


# ---- which tokens, and by what gradient ------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["k3", "k1-reward"])
def test_a_clipped_token_is_one_whose_advantage_is_0(folder, tmp_path, estimator):
    anchor = {} if estimator == "k3" else {"beta": 0.2, "anchor_estimator": estimator, "anchor_credit": "to_go"}
    clipped = run(folder, tmp_path / "a", **CLIP, **anchor)
    plain = run(folder, tmp_path / "b", **anchor)
    batch, before = clipped.batches[0], plain.batches[0]["advantages"]
    before = before if before.dim() == 2 else before[:, None].expand(batch["advantages"].shape)
    on = batch["completion_mask"].bool()
    gone = (batch["advantages"] == 0) & (before != 0) & on
    assert torch.equal(batch["advantages"][~gone & on], before[~gone & on])
    with torch.no_grad():
        logps, _ = scored(start(folder), batch)
    a, logp = before[on].double().numpy(), logps[on].numpy()
    covariance = (a - a.mean()) * (logp - logp.mean())
    within = (covariance > 0.05) & (covariance < 3)
    assert int(gone.sum()) == int(0.1 * int(on.sum())) < within.sum()
    assert within[gone[on].numpy()].all()
    assert np.isclose(clipped.state.log_history[0]["sage/tokens_shaped"], int(gone.sum()) / int(on.sum()))
    hand = build(folder, tmp_path / "c", None, cls=Kept, **(PLAIN | anchor))
    hand.handed = torch.where(gone, 0.0, before)
    train(hand)
    for (_, got), (_, want), (_, other) in zip(clipped.record[:2], hand.record[:2], plain.record[:2], strict=True):
        assert_same(spread(got), spread(want))
        assert float((spread(got) - spread(other)).norm()) > 1e-3 * float(spread(other).norm())


def test_kl_cov_holds_from_the_second_update_on(folder, tmp_path):
    """The first update is GRPO's, bit for bit. What the second adds is the gradient of the pull, by hand."""
    held, plain = run(folder, tmp_path / "a", **HELD), run(folder, tmp_path / "b")
    assert torch.equal(held.batches[0]["advantages"], plain.batches[0]["advantages"])  # (B,)
    assert torch.equal(spread(held.record[0][1]), spread(plain.record[0][1]))
    batch, model = held.batches[0], start(folder)
    on = batch["completion_mask"].bool()
    with torch.no_grad():
        old, _ = scored(model, batch)
    a, logp = batch["advantages"][:, None].expand(on.shape)[on].double().numpy(), old[on].numpy()
    covariance = (a - a.mean()) * (logp - logp.mean())
    top = np.argsort(-covariance)[: int(0.1 * len(a))]
    chosen = torch.zeros(len(a), dtype=torch.bool)
    chosen[top.copy()] = True
    weight = torch.zeros(on.shape, dtype=torch.float64)
    weight[on] = 0.5 * chosen.double()
    torch.testing.assert_close(batch["sage_pull"].double(), weight)
    with torch.no_grad():  # SGD's first step
        for name, parameter in model.named_parameters():
            if name in plain.record[0][1]:
                parameter -= plain.args.learning_rate * clip(plain.record[0][1])[name]
    new, _ = scored(model, batch)
    loss = ((weight * (new - old).abs()).sum(1) / on.sum(1)).mean()
    names = sorted(plain.record[1][1])
    parameters = dict(model.named_parameters())
    added = torch.autograd.grad(loss, [parameters[name] for name in names])
    got = spread(held.record[1][1]) - spread(plain.record[1][1])
    want = torch.cat([g.flatten() for g in added])
    assert float(want.norm()) > 0
    assert float((got - want).norm()) <= 1e-4 * float(want.norm())


def clip(grads, most=1.0):
    factor = min(1.0, most / (float(spread(grads).norm()) + 1e-6))
    return {name: g * factor for name, g in grads.items()}


@pytest.mark.parametrize("iterations", [1, 2])  # our pass, TRL's pass
def test_entropy_is_added_to_each_token(folder, tmp_path, capsys, iterations):
    unsure = run(folder, tmp_path / "a", num_iterations=iterations, max_steps=1, **UNSURE)
    said = capsys.readouterr().out.count("advantage='entropy' looks at whole rollout batches: one more forward pass")
    assert said == (1 if iterations == 1 else 0)
    plain = run(folder, tmp_path / "b", num_iterations=iterations, max_steps=1)
    batch, a = unsure.batches[0], plain.batches[0]["advantages"][:, None]
    with torch.no_grad():
        _, entropies = scored(start(folder), batch)
    want = (a + torch.minimum(0.4 * entropies, a.abs() / 2)) * batch["completion_mask"]
    torch.testing.assert_close(batch["advantages"].double(), want, rtol=1e-5, atol=1e-5)
    assert not any(key in batch for key in ("sage_entropies", "sage_logps"))
    unsure.evaluate(tiny.dataset(8))


# ---- however a batch is cut ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_micro_batches_are_the_whole(folder, tmp_path, loss):
    part = HELD if loss == "vespo" else (CLIP, HELD, UNSURE)[LOSSES.index(loss) % 3]
    options = part | {"loss_type": loss} | ({"epsilon_high": 1.05} if loss == "cispo" else {})
    split, whole = (run(folder, tmp_path / str(budget), budget, **options) for budget in (60, None))
    assert len(split.shapes) > 2 * len(whole.shapes)
    assert_same_run(split, whole)


CASES = {
    "rows of advantage 0 left out": HELD | {"skip_zero_advantage": True, "reward": half_flat},
    "clipped, left out": CLIP | {"skip_zero_advantage": True, "reward": half_flat, "gradient_accumulation_steps": 2},
    "drawn again": CLIP | {"dynamic_sampling": 1, "reward": half_flat},
    "beside others and a guide": {
        "advantage": ["rarity", "entropy", "focal"],
        "guide": "branch",
        "beta": 0.2,
        "guide_args": None,
    },
    "sequence ratios": HELD | {"importance_sampling_level": "sequence"},
}


@pytest.mark.parametrize("case", CASES)
def test_micro_batches_are_the_whole_with(folder, tmp_path, case):
    split, whole = (run(folder, tmp_path / str(budget), budget, **CASES[case]) for budget in (60, None))
    assert_same_run(split, whole, metrics="left out" not in case)


def test_a_row_whose_tokens_are_pulled_weighs():
    inputs = {"completion_mask": torch.ones(3, 4), "advantages": torch.tensor([0.0, 0.0, 1.0])}
    assert rows_that_weigh(inputs, penalty_in_loss=False).tolist() == [False, False, True]
    inputs["sage_pull"] = torch.tensor([[0.0, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 0, 0]])
    assert rows_that_weigh(inputs, penalty_in_loss=False).tolist() == [False, True, True]


# ---- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (CLIP | {"loss_type": "vespo"}, "one per completion"),
        (UNSURE | {"importance_sampling_level": "sequence"}, "spreads each token's advantage"),
        (HELD, "raise num_iterations"),
        (HELD | {"gradient_accumulation_steps": 4, "steps_per_generation": 2}, "would do nothing"),
        (HELD | {"gradient_accumulation_steps": 2, "num_iterations": 2, "steps_per_generation": 1}, "would do nothing"),
        ({"advantage": ["clip_cov", "kl_cov"]}, "both about tokens"),
    ],
)
def test_a_sentence_for_what_cannot_be(tmp_path, options, says):
    with pytest.raises(UserError, match=says):
        tiny.config(SAGEConfig, tmp_path, **options)


@pytest.mark.parametrize(
    "options",
    [
        HELD | {"num_iterations": 2},
        HELD | {"gradient_accumulation_steps": 2, "steps_per_generation": 4},
        HELD | {"gradient_accumulation_steps": 2, "steps_per_generation": 3},
        HELD | {"num_iterations": 2, "loss_type": "vespo", "importance_sampling_level": "sequence"},
        CLIP | {"anchor_estimator": "k1-reward"},
    ],
)
def test_what_can_be_is_not_refused(tmp_path, options):
    args = tiny.config(SAGEConfig, tmp_path, **options)
    assert args.wants_whole_batch() is not None
    if args.anchor_estimator == "k1-reward":
        assert any("advantage='clip_cov'" in said for said in args.departures())
