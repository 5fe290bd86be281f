"""What a number is counted in: optimizer steps of a schedule, and metrics over all ranks of a mini-batch."""

import pytest
import test_worker
import torch
from tensordict import TensorDict
from test_worker import PROMPT, B, log_q_of, mean_per_token, nested, sage_loss, wide
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType

from sage_rlvr.anchor import BranchGuide, anchor_penalty
from sage_rlvr.integrations.verl.loss import KEY, LOG_Q, MAX_STEPS, STEP

rollout = test_worker.rollout  # four completions, with the policy's log-probs and entropies


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(("batch", "mini"), [(4, 4), (4, 2), (12, 2)])
def test_a_schedule_advances_with_every_optimizer_step(toy, batch, mini, epochs):
    """Counted one by one: each rollout batch, each of its epochs, each mini-batch."""
    actor = "actor_rollout_ref.actor"
    sizes = (f"data.train_batch_size={batch}", f"{actor}.ppo_mini_batch_size={mini}", f"{actor}.ppo_epochs={epochs}")
    trainer = get_trainer_cls("sage_sync")(toy("+sage.guide=token", *sizes))
    trainer.total_training_steps, taken, found = 5, 0, []
    for step in range(1, 6):
        trainer.global_steps = step
        found.append((trainer._optimizer_steps()[0], taken))
        taken += sum(1 for _ in range(epochs) for _ in range(0, batch, mini))
    assert all(ours == counted for ours, counted in found)
    assert trainer._optimizer_steps()[1] == taken


def part_of(rollout, rows, ranks, **extra):
    """A micro-batch as verl's engine gives it to the loss, and the model's answer: log-probs shifted left by one token."""
    some = {name: [values[i] for i in rows] for name, values in rollout.items()}
    ids = some["ids"]
    fields = {
        "prompts": nested(x[:PROMPT] for x in ids), "responses": nested(x[PROMPT:] for x in ids),
        "response_mask": nested(some["mask"]), "old_log_probs": nested(some["logps"]), "ref_log_prob": nested(some["ref"]),
        "advantages": nested(some["advantages"]),
    }  # fmt: skip
    fields |= {name: nested(values[i] for i in rows) for name, values in extra.items() if name == LOG_Q}
    data = TensorDict(fields, batch_size=[len(rows)])
    tokens = int(sum(m.sum() for m in rollout["mask"]))
    said = {"dp_size": ranks, "batch_num_tokens": tokens, "global_batch_size": B, KEY: 1, STEP: 0, MAX_STEPS: 10}
    tu.assign_non_tensor(data, **said)
    edge = torch.zeros(PROMPT - 1), torch.zeros(1)
    shifted = {name: nested(torch.cat([edge[0], x, edge[1]]) for x in some[name]) for name in ("logps", "entropies")}
    return {"log_probs": shifted["logps"], "entropy": shifted["entropies"]}, data


@pytest.mark.parametrize("ranks", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[3], [0, 1, 2]], [[0], [1], [2], [3]]])
@pytest.mark.parametrize("hold", [False, True])
def test_metrics_are_of_the_whole_mini_batch_however_many_ranks_share_it(toy, rollout, ranks, hold):
    """As verl puts them together: summed over a rank's micro-batches (here one row each), then the mean over ranks."""
    guide = BranchGuide(threshold=1.0)
    log_q = log_q_of(guide, rollout)
    chosen = (
        "+sage.guide=branch",
        "+sage.guide_args={threshold: 1.0}",
        "+sage.estimator=forward",
        f"+sage.hold={hold}",
    )
    loss = sage_loss(toy, *chosen)
    extra = {LOG_Q: [row[: len(m)] for row, m in zip(log_q, rollout["mask"])]} if hold else {}
    means: dict[str, list[float]] = {}
    for rows in ranks:
        sums: dict[str, float] = {}
        for row in rows:
            _, metrics = loss(*part_of(rollout, [row], len(ranks), **extra))
            for name in ("sage/kl_ref", "sage/q_mean", "sage/active", "kl_loss"):
                assert metrics[name].aggregation is AggregationType.SUM
                (value,) = metrics[name].values
                sums[name] = sums.get(name, 0.0) + float(value)
        for name, value in sums.items():
            means.setdefault(name, []).append(value)
    logps, ref = wide(rollout, "logps"), wide(rollout, "ref")
    expected = {
        "sage/kl_ref": (ref - logps).exp() - (ref - logps) - 1,
        "sage/q_mean": log_q.exp(),
        "sage/active": (log_q != 0).float(),
        "kl_loss": anchor_penalty(logps, ref, log_q, "forward"),
    }
    for name, per_token in expected.items():
        assert sum(means[name]) / len(ranks) == pytest.approx(mean_per_token(per_token, rollout), rel=1e-4), name


def test_the_batch_in_verls_hands_is_not_shaped(toy, rollout):
    """Where verl has the estimator it is given a copy: a second epoch over the same data starts from the plain reference."""
    loss = sage_loss(toy, "+sage.guide=branch", "+sage.guide_args={threshold: 1.0}", "+sage.hold=false")
    output, data = part_of(rollout, [0, 1, 2, 3], 1)
    first, _ = loss(output, data)
    assert torch.equal(data["ref_log_prob"].to_padded_tensor(0.0), wide(rollout, "ref"))
    again, _ = loss(output, data)
    assert torch.equal(first, again)
