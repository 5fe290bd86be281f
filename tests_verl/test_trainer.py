"""verl's V1 trainer from __init__ to the last step, on real Ray, TransferQueue and FSDP2 workers; only the LLM servers and the
reward workers are stood in for (rollouts.py). Five short runs, shared by the tests."""

import numpy as np
import pytest
import torch

from sage_rlvr.advantage import make_advantage
from sage_rlvr.anchor import Signals, TokenGuide

N = 4
SIZES = ("timing", "perf/", "throughput")  # what a clock or the machine says


@pytest.fixture(scope="module")
def run(cluster, toy):
    from rollouts import Run

    made = {}

    def once(name, *overrides, mode="sage_sync", shuffle=0, look=()):
        if name not in made:
            one = Run(toy(*overrides, mode=mode), shuffle, look)
            made[name] = one.fit()
            one.close()
        return made[name]

    return once


def verl_itself(run):
    return run("sync", "trainer.n_gpus_per_node=1", mode="sync")


def counted(metrics):
    return {k: v for k, v in metrics.items() if not any(s in k for s in SIZES)}


def test_guide_off_leaves_verls_numbers_untouched(run):
    theirs, ours = verl_itself(run), run("none", "trainer.n_gpus_per_node=1", "+sage.guide=none")
    assert len(theirs.logged) == len(ours.logged) == 2
    for mine, plain in zip(ours.logged, theirs.logged):
        assert counted(mine).keys() == counted(plain).keys()
        for name, value in counted(plain).items():
            assert mine[name] == value or (np.isnan(value) and np.isnan(mine[name])), name
    for (_, mine), (_, plain) in zip(ours.seen, theirs.seen):
        for field in ("old_log_probs", "ref_log_prob", "advantages", "response_mask"):
            assert torch.equal(mine[field], plain[field]), field
    assert ours.logged[1]["actor/grad_norm"] > 0


def rows_of(run, step):
    """Which row each trajectory is, found again from its tokens: prompt · n + session."""
    _keys, data = run.seen[step]
    known = {}
    for number in range(4):
        for session in range(N):
            _, field, _ = run.rollouts._one(step + 1, number, "uid", session)
            known[tuple(field["responses"].tolist())] = number * N + session
    lengths = data["response_length"].tolist()
    return torch.tensor([known[tuple(r[:n].tolist())] for r, n in zip(data["responses"], lengths)])


def test_driver_seam_two_ranks_any_order(run):
    """At step 1 the reference is the policy, so shaped − old is log q; it is the token guide's at the rows' own addresses,
    with two ranks and completions that arrive in another order."""
    ours = run(
        "token", "trainer.n_gpus_per_node=2", "+sage.guide=token", "+sage.seed=9", shuffle=4, look=("responses",)
    )  # fmt: skip
    _, data = ours.seen[0]
    data["response_length"] = (data["responses"] != 0).sum(1)
    old, mask = data["old_log_probs"], data["response_mask"]
    signals = Signals(
        old,
        old,
        mask,
        step=0,
        max_steps=4,
        generator=torch.Generator().manual_seed(9 * 1_000_003),
        rows=rows_of(ours, 0),
    )
    torch.testing.assert_close((data["ref_log_prob"] - old) * mask, TokenGuide()(signals), rtol=1e-3, atol=1e-4)
    first, second = ours.logged
    assert first["sage/kl_ref"] < 1e-6 < first["sage/kl"]  # the plain KL beside the shaped one
    assert second["sage/kl_ref"] > 1e-6
    assert first["sage/active"] > 0.3
    assert first["timing_s/sage"] > 0
    # the same rollouts without a guide: the same first reference pass, another step
    plain = verl_itself(run)
    assert first["actor/kl_loss"] > plain.logged[0]["actor/kl_loss"]


def test_loss_seam_through_the_trainer(run):
    ours = run(
        "loss", "trainer.n_gpus_per_node=1", "+sage.guide=branch", "+sage.hold=false", "+sage.guide_args={threshold: 1.0}",
    )  # fmt: skip
    plain = verl_itself(run)
    (_, data), (_, theirs) = ours.seen[0], plain.seen[0]
    assert torch.equal(data["ref_log_prob"], theirs["ref_log_prob"])  # the driver shapes nothing
    for step in ours.logged:
        assert step["actor/sage/q_mean"] > 1.05
        assert step["actor/sage/active"] > 0.5
        assert step["actor/sage/q_max"] <= 1.4 + 1e-6
    assert ours.logged[0]["actor/kl_loss"] > plain.logged[0]["actor/kl_loss"]
    assert ours.logged[0]["actor/pg_loss"] == pytest.approx(plain.logged[0]["actor/pg_loss"], abs=2e-3)
    assert "actor/entropy_loss" not in ours.logged[0]


def test_rarity_and_focal_through_the_trainer(run):
    """What the update was given, against the room called by hand on what verl's workers and the rewards said; a prompt's rows
    lie apart, over two ranks. And the update takes it: the same completions make another loss than verl's GRPO."""
    ours = run(
        "advantage", "trainer.n_gpus_per_node=2", "algorithm.adv_estimator=sage", "+sage.advantage=[rarity,focal]",
        "+sage.advantage_args={focal: {gamma: 0.5}}", shuffle=2, look=("rm_scores",),
    )  # fmt: skip
    assert len(ours.seen) == len(ours.logged) == 2
    for keys, data in ours.seen:
        uids = [key.split("_")[0] for key in keys]
        order = sorted(range(len(keys)), key=lambda i: uids[i])
        assert len(keys) == 4 * N
        assert order != list(range(len(keys)))
        mask = data["response_mask"]
        ref = (data["ref_log_prob"] * mask).sum(1) / mask.sum(1)
        room = make_advantage(["rarity", "focal"], focal={"gamma": 0.5})
        want = torch.zeros(len(keys))
        want[order] = room(data["rm_scores"].sum(1)[order], N, ref_logps=ref[order])
        torch.testing.assert_close(data["advantages"], want[:, None] * mask, rtol=1e-5, atol=1e-6)
        assert want.abs().max() > 0.3
        assert make_advantage("group")(data["rm_scores"].sum(1)[order], N).sub(want[order]).abs().max() > 0.05
    plain = verl_itself(run)
    assert ours.logged[0]["actor/grad_norm"] > 0
    assert ours.logged[0]["actor/pg_loss"] != pytest.approx(plain.logged[0]["actor/pg_loss"], abs=1e-3)
    assert ours.logged[0]["critic/advantages/max"] == pytest.approx(
        ours.seen[0][1]["advantages"].max().item(), rel=1e-5
    )
