"""verl's real actor worker, its TrainingWorker and FSDP2 engine (on the CPU), taking optimizer steps through both seams."""

import functools
import os
import socket

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.core_algos import agg_loss, kl_penalty
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.losses import ppo_loss

from sage_rlvr.anchor import BranchGuide, Signals, TemperedGuide, TokenGuide, anchor_penalty
from sage_rlvr.integrations.verl.loss import KEY, LOG_Q, MAX_STEPS, ROWS, STEP, SageLoss
from sage_rlvr.integrations.verl.options import read_options

BETA = 0.05
B, PROMPT = 4, 5


@pytest.fixture(scope="module")
def worker(toy):
    """One rank, in this process: FSDP2 shards over a mesh of one, and its parameters are DTensors all the same."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ.update(WORLD_SIZE="1", RANK="0", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    config = toy("+sage.guide=none", "actor_rollout_ref.actor.optim.total_training_steps=10")
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    assert type(worker.actor) is TrainingWorker
    parameters = list(worker.actor.engine.module.parameters())
    assert parameters
    assert all(isinstance(p, DTensor) for p in parameters)
    start = {k: v.full_tensor().clone() for k, v in worker.actor.engine.module.state_dict().items()}
    yield worker, start
    torch.distributed.destroy_process_group()


def reset(worker, start):
    engine = worker.actor.engine
    for name, value in engine.module.state_dict().items():
        value.to_local().copy_(start[name])  # one rank holds it all
    engine.optimizer.state.clear()
    engine.optimizer.zero_grad()


def nested(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


@pytest.fixture(scope="module")
def rollout(toy):
    """A batch of four completions, and the policy's log-probs and entropies on it from the plain Transformers model."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(toy().actor_rollout_ref.model.path, attn_implementation="eager")
    ids = [torch.randint(3, 64, (PROMPT + n,)) for n in (6, 9, 4, 7)]
    logps, entropies = [], []
    with torch.no_grad():
        for row in ids:
            full = model(row[None]).logits[0, PROMPT - 1 : -1].float().log_softmax(-1)
            logps.append(full.gather(1, row[PROMPT:, None])[:, 0])
            entropies.append(-(full.exp() * full).sum(-1))
    masks = [torch.ones(len(x), dtype=torch.long) for x in logps]
    masks[1][2] = 0
    ref = [x + 0.5 * torch.randn(len(x)) for x in logps]
    advantages = [torch.full((len(x),), a) for x, a in zip(logps, (1.0, -1.0, 0.5, -0.5))]
    return {"ids": ids, "logps": logps, "entropies": entropies, "mask": masks, "ref": ref, "advantages": advantages}


def batch_of(rollout, ref=None, old=None, **extra):
    ids, fields = rollout["ids"], {}
    fields["input_ids"] = nested(ids)
    fields["position_ids"] = nested(torch.arange(len(x)) for x in ids)
    fields["prompts"], fields["responses"] = nested(x[:PROMPT] for x in ids), nested(x[PROMPT:] for x in ids)
    fields["response_mask"] = fields["loss_mask"] = nested(rollout["mask"])
    fields["old_log_probs"] = nested(old or rollout["logps"])
    fields["ref_log_prob"] = nested(ref or rollout["ref"])
    fields["advantages"] = nested(rollout["advantages"])
    plain = {k: extra.pop(k) for k in list(extra) if not isinstance(extra[k], torch.Tensor)}
    data = TensorDict(fields | extra, batch_size=[B])
    settings = {
        "global_batch_size": B, "mini_batch_size": B, "epochs": 1, "seed": 1, "dataloader_kwargs": {"shuffle": False},
        "temperature": 1.0, "calculate_entropy": False, "compute_loss": True,
    }  # fmt: skip
    tu.assign_non_tensor(data, **(settings | plain))
    return data


def update(worker, start, data, loss_fn=None):
    """One optimizer step from the same weights: verl's metrics, and the parameters after it."""
    worker, start = worker
    reset(worker, start)
    worker.set_loss_fn(loss_fn if loss_fn is not None else worker.loss_fn)
    metrics = tu.get(worker.update_actor(data), "metrics")
    after = {k: v.full_tensor().clone() for k, v in worker.actor.engine.module.state_dict().items()}
    assert all(isinstance(p, DTensor) for p in worker.actor.engine.module.parameters())
    assert any(not torch.equal(after[k], start[k]) for k in start)
    return {k: _number(v) for k, v in metrics.items()}, after


def _number(value):
    """One update's value of a metric, as verl's driver would log it."""
    return float(np.mean(value[0] if isinstance(value, list) and isinstance(value[0], list) else value))


def wide(rollout, name):
    return nested(rollout[name]).to_padded_tensor(0.0)


def log_q_of(guide, rollout, **more):
    signals = Signals(
        wide(rollout, "logps"), wide(rollout, "ref"), wide(rollout, "mask"), wide(rollout, "entropies"), **more
    )
    return guide(signals)


def unpadded(x, rollout):
    return [row[: len(m)] for row, m in zip(x, rollout["mask"])]


def mean_per_token(x, rollout):
    return agg_loss(x, wide(rollout, "mask").bool(), "token-mean").item()


def sage_loss(toy, *overrides, entropy_asked=False):
    config = toy(*overrides)
    return SageLoss(omega_conf_to_dataclass(config.actor_rollout_ref.actor), read_options(config), entropy_asked)


GUIDES = {
    "branch": (BranchGuide(threshold=1.0), "low_var_kl", "k3"),
    "tempered": (TemperedGuide(threshold=1.0), "mse", "k2"),
    "tempered under k3+": (TemperedGuide(threshold=1.0), "k3+", "k3+"),
}


@pytest.mark.parametrize("name", GUIDES)
def test_driver_seam_the_loss_is_anchor_penaltys(name, worker, toy, rollout):
    """verl's loss on ref + log q: its kl_loss is anchor_penalty's mean, and its whole loss moves by β times the difference."""
    guide, kind, estimator = GUIDES[name]
    log_q = log_q_of(guide, rollout)
    assert (log_q != 0).any()
    actor = omega_conf_to_dataclass(toy(f"actor_rollout_ref.actor.kl_loss_type={kind}").actor_rollout_ref.actor)
    theirs = functools.partial(ppo_loss, config=actor)
    shaped = unpadded(wide(rollout, "ref") + log_q, rollout)
    metrics, after = update(worker, None, batch_of(rollout, ref=shaped), theirs)
    plain, plain_after = update(worker, None, batch_of(rollout), theirs)
    zero = torch.zeros_like(log_q)
    for said, q in ((metrics, log_q), (plain, zero)):
        penalty = anchor_penalty(wide(rollout, "logps"), wide(rollout, "ref"), q, estimator)
        penalty = penalty.clamp(max=10) if estimator in ("k3", "k3+") else penalty  # verl's clamp
        assert said["kl_loss"] == pytest.approx(mean_per_token(penalty, rollout), rel=2e-4)
    assert metrics["loss"] - plain["loss"] == pytest.approx(BETA * (metrics["kl_loss"] - plain["kl_loss"]), abs=2e-6)
    assert any(not torch.equal(after[k], plain_after[k]) for k in after)  # and the optimizer went elsewhere


def test_loss_seam_without_hold_equals_the_driver_seam_on_policy(worker, toy, rollout):
    """At the first update the current policy is the one that sampled: both seams take the same step."""
    overrides = ("+sage.guide=branch", "+sage.guide_args={threshold: 1.0}")
    log_q = log_q_of(BranchGuide(threshold=1.0), rollout)
    driver, driver_after = update(worker, None, batch_of(rollout, ref=unpadded(wide(rollout, "ref") + log_q, rollout)))
    loss = sage_loss(toy, *overrides, "+sage.hold=false")
    data = batch_of(rollout, calculate_entropy=True, **{KEY: 1, STEP: 0, MAX_STEPS: 10})
    now, now_after = update(worker, None, data, loss)
    assert now["kl_loss"] == pytest.approx(driver["kl_loss"], rel=2e-4)
    assert now["loss"] == pytest.approx(driver["loss"], rel=2e-4, abs=1e-6)
    for name in driver_after:  # Adam's first step is ±lr where the gradient is not tiny
        close = torch.isclose(now_after[name], driver_after[name], rtol=1e-3, atol=2e-5).float().mean()
        assert close > 0.98, (name, close)
    assert now["sage/q_mean"] == pytest.approx(mean_per_token(log_q.exp(), rollout), rel=1e-4)
    assert "actor/entropy_loss" not in now  # the user asked for none


@pytest.mark.parametrize("estimator", ["forward", "forward-value", "k3+"])
def test_loss_seam_estimators_that_verl_has_not(estimator, worker, toy, rollout):
    """Held log q comes from the driver's field; the term is anchor_penalty's under verl's normaliser; off-policy too."""
    log_q = log_q_of(TemperedGuide(threshold=1.0), rollout)
    old = [x - 0.2 * torch.rand(len(x), generator=torch.Generator().manual_seed(3)) for x in rollout["logps"]]
    loss = sage_loss(toy, "+sage.guide=tempered", "+sage.guide_args={threshold: 1.0}", f"+sage.estimator={estimator}")
    data = batch_of(rollout, old=old, **{LOG_Q: nested(unpadded(log_q, rollout))})
    metrics, _ = update(worker, None, data, loss)
    old_wide = nested(old).to_padded_tensor(0.0) if estimator == "k3+" else None
    penalty = anchor_penalty(wide(rollout, "logps"), wide(rollout, "ref"), log_q, estimator, old_logps=old_wide)
    assert metrics["kl_loss"] == pytest.approx(mean_per_token(penalty, rollout), rel=2e-4)
    without = omega_conf_to_dataclass(toy("actor_rollout_ref.actor.use_kl_loss=False").actor_rollout_ref.actor)
    bare, _ = update(worker, None, batch_of(rollout, old=old), functools.partial(ppo_loss, config=without))
    assert metrics["loss"] - bare["loss"] == pytest.approx(BETA * metrics["kl_loss"], rel=1e-3, abs=1e-6)
    ratio = wide(rollout, "ref") - wide(rollout, "logps")
    assert metrics["sage/kl_ref"] == pytest.approx(mean_per_token(ratio.exp() - ratio - 1, rollout), rel=1e-3)


def test_loss_seam_noise_is_addressed_by_the_global_row(worker, toy, rollout):
    """Micro-batches of two on the worker; rows 8–11 of rollout batch 5: the same q as the whole batch at once."""
    loss = sage_loss(toy, "+sage.guide=token", "+sage.hold=false")
    rows = torch.tensor([8, 9, 10, 11])
    metrics, _ = update(worker, None, batch_of(rollout, **{ROWS: rows, KEY: 77, STEP: 4, MAX_STEPS: 10}), loss)
    log_q = log_q_of(
        TokenGuide(), rollout, step=4, max_steps=10, generator=torch.Generator().manual_seed(77), rows=rows
    )
    penalty = anchor_penalty(wide(rollout, "logps"), wide(rollout, "ref"), log_q, "k3")
    assert metrics["kl_loss"] == pytest.approx(mean_per_token(penalty, rollout), rel=5e-4)


def test_loss_seam_counts_what_verls_clamp_lets_go(worker, toy, rollout):
    """Over two micro-batches: the share of counted tokens whose gradient verl's k3 sets to 0."""
    ref = [x + 3.0 * (torch.arange(len(x)) % 3 == 1) for x in rollout["ref"]]
    loss = sage_loss(toy, "+sage.guide=branch", "+sage.guide_args={threshold: 1.0}", "+sage.hold=false")
    data = batch_of(rollout, ref=ref, calculate_entropy=True, **{KEY: 1, STEP: 0, MAX_STEPS: 10})
    metrics, _ = update(worker, None, data, loss)
    shaped = nested(ref).to_padded_tensor(0.0) + log_q_of(BranchGuide(threshold=1.0), rollout)
    logps = wide(rollout, "logps").clone().requires_grad_(True)
    gradient = torch.autograd.grad(kl_penalty(logps, shaped, "low_var_kl").sum(), logps)[0]
    let_go = mean_per_token((gradient == 0).float(), rollout)
    assert 0.05 < let_go < 0.95
    assert metrics["sage/clamped"] == pytest.approx(let_go, rel=1e-5)


def test_guide_off_on_the_loss_seam_is_verls_number(worker, toy, rollout):
    """q = 1 through our loss with verl's estimator inside: the same loss and parameters as verl's own, bit for bit."""
    theirs, theirs_after = update(worker, None, batch_of(rollout))
    loss = sage_loss(toy, "+sage.guide=branch", "+sage.guide_args={ratio: 0.0}", "+sage.hold=false")
    data = batch_of(rollout, calculate_entropy=False, **{KEY: 1, STEP: 0, MAX_STEPS: 1})
    loss.guide.needs = frozenset()
    loss.guide.log_q = lambda s: torch.zeros_like(s.logps)
    ours, ours_after = update(worker, None, data, loss)
    assert ours["loss"] == theirs["loss"]
    assert ours["kl_loss"] == theirs["kl_loss"]
    for name in theirs_after:
        assert torch.equal(ours_after[name], theirs_after[name]), name
