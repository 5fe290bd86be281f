"""The driver seam on a real TransferQueue: what is read, what is written back, and which row a trajectory is."""

import shutil
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transfer_queue as tq
from verl.trainer.ppo.core_algos import kl_penalty
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from sage_rlvr.anchor import Signals, TokenGuide, anchor_reward
from sage_rlvr.errors import UserError

pytestmark = pytest.mark.usefixtures("cluster")
REWARD = (
    "actor_rollout_ref.actor.use_kl_loss=False", "algorithm.use_kl_in_reward=True", "algorithm.norm_adv_by_std_in_grpo=False",
    "algorithm.kl_ctrl.kl_coef=0.3",
)  # fmt: skip
N = 4  # rollouts a prompt


def trainer_of(config, step=1, total=10):
    trainer = get_trainer_cls("sage_sync")(config)
    trainer.global_steps, trainer.total_training_steps = step, total
    return trainer


def a_batch(trainer, prompts=3, order=0, padding=0):
    """Trajectories in TransferQueue as they stand after verl's reference pass, in an order of their own."""
    uids = [uuid.uuid4().hex for _ in range(prompts)]
    trainer._prompt_number = {uid: i for i, uid in enumerate(uids)}
    keys, rows = [], []
    for i, uid in enumerate([*uids, *[f"pad{uuid.uuid4().hex}"] * bool(padding)]):
        for s in range(N if i < prompts else padding):
            rng = np.random.default_rng([i, s])
            length = int(rng.integers(3, 9)) if i < prompts else 1
            mask = torch.ones(length, dtype=torch.long) if i < prompts else torch.zeros(1, dtype=torch.long)
            if i < prompts and s == 1:
                mask[1] = 0  # a tool's token
            draw = lambda low, high: torch.tensor(rng.uniform(low, high, length), dtype=torch.float32)  # noqa: E731, B023
            keys.append(f"{uid}_{s}_0")
            rows.append({
                "response_mask": mask, "old_log_probs": draw(-4, 0), "ref_log_prob": draw(-4, 0), "entropy": draw(0, 3),
                "rm_scores": torch.eye(length)[-1] * float(rng.integers(0, 2)), "uid": uid,
            })  # fmt: skip
    perm = np.random.default_rng(order).permutation(len(keys))
    keys, rows = [keys[i] for i in perm], [rows[i] for i in perm]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=[{}] * len(keys))
    batch = tq.KVBatchMeta(partition_id="train", keys=keys, tags=[{}] * len(keys))
    return batch, rows, perm


def read(batch, *fields):
    return tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=list(fields)).to_padded_tensor()


@pytest.mark.parametrize("padding", [0, 3])
def test_branch_writes_ref_plus_log_q(toy, padding):
    trainer = trainer_of(toy("+sage.guide=branch", "+sage.guide_args={threshold: 1.0}"))
    batch, rows, _ = a_batch(trainer, padding=padding)
    metrics = {}
    trainer._shape(batch, metrics)
    after = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["ref_log_prob", "old_log_probs"])
    for row, shaped, old in zip(rows, after["ref_log_prob"].unbind(), after["old_log_probs"].unbind()):
        q = (1 + 0.3 * (row["entropy"] - 1.0).clamp(min=0)).clamp(0.6, 1.4)
        expected = row["ref_log_prob"] + torch.where(row["response_mask"].bool(), q.log(), 0.0)
        torch.testing.assert_close(shaped, expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(old, row["old_log_probs"])
    on = torch.cat([r["response_mask"] for r in rows]).bool()
    ratio = torch.cat([r["ref_log_prob"] - r["old_log_probs"] for r in rows])[on]
    assert metrics["sage/kl_ref"] == pytest.approx(
        (ratio.exp() - ratio - 1).mean().item(), rel=1e-5
    )  # plain, beside the shaped
    h = torch.cat([r["entropy"] for r in rows])[on]
    assert metrics["sage/active"] == pytest.approx((h > 1).float().mean().item())
    assert metrics["sage/q_max"] <= 1.4 + 1e-6
    tq.kv_clear(keys=batch.keys, partition_id="train")


@pytest.mark.parametrize("kind", ["low_var_kl", "low_var_kl+", "mse"])
def test_the_share_that_verls_clamp_lets_go_is_logged(kind, toy):
    """Counted from verl's own gradient on what was written: 0 exactly where its k3 is clamped. Its k3+ and k2 let none go."""
    trainer = trainer_of(toy("+sage.guide=tempered", f"actor_rollout_ref.actor.kl_loss_type={kind}"))
    batch, _, _ = a_batch(trainer, padding=2)
    metrics = {}
    trainer._shape(batch, metrics)
    data = read(batch, "old_log_probs", "ref_log_prob", "response_mask")
    logps = data["old_log_probs"].requires_grad_(True)
    gradient = torch.autograd.grad(kl_penalty(logps, data["ref_log_prob"], kind).sum(), logps)[0]
    let_go = (gradient == 0)[data["response_mask"].bool()].float().mean().item()
    if kind == "low_var_kl":
        assert metrics["sage/clamped"] == pytest.approx(let_go)
        assert 0.05 < let_go < 0.95
    else:
        assert "sage/clamped" not in metrics
        assert let_go == 0
    tq.kv_clear(keys=batch.keys, partition_id="train")


def test_verified_sees_each_rows_score(toy):
    trainer = trainer_of(toy("+sage.guide=verified", "+sage.guide_args={kappa: 0.7}", *REWARD))
    batch, rows, _ = a_batch(trainer, padding=2)
    trainer._shape(batch, {})
    after = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["ref_log_prob"])
    for row, shaped in zip(rows, after["ref_log_prob"].unbind()):
        right = float(row["rm_scores"].sum())
        expected = row["ref_log_prob"] * (1 - 0.7 * right * row["response_mask"])
        torch.testing.assert_close(shaped, expected, rtol=1e-6, atol=1e-6)
    assert {float(row["rm_scores"].sum()) for row in rows} == {0.0, 1.0}
    tq.kv_clear(keys=batch.keys, partition_id="train")


def test_noise_depends_on_seed_batch_and_row_alone(toy):
    """The uids are random and the order of arrival is not ours: the same rows get the same q."""

    def log_q(seed, step, order):
        trainer = trainer_of(toy("+sage.guide=token", f"+sage.seed={seed}"), step)
        batch, rows, perm = a_batch(trainer, order=order, padding=2)
        trainer._shape(batch, {})
        shaped = read(batch, "ref_log_prob")["ref_log_prob"]
        tq.kv_clear(keys=batch.keys, partition_id="train")
        out = torch.zeros(len(rows), 9)
        for at, row, line in zip(perm, rows, shaped):
            out[at, : len(row["ref_log_prob"])] = line[: len(row["ref_log_prob"])] - row["ref_log_prob"]
        return out, dict(zip(perm, rows))

    first, rows = log_q(7, 3, order=0)
    again, _ = log_q(7, 3, order=5)
    assert torch.equal(first, again)
    assert not torch.equal(first, log_q(8, 3, order=0)[0])
    assert not torch.equal(first, log_q(7, 4, order=0)[0])
    # and it is the noise of the same address in our trainer for TRL: seed · 1,000,003 + rollout batch, row = prompt · n + session
    width = max(len(r["old_log_probs"]) for r in rows.values())
    pad = lambda name: torch.stack(  # noqa: E731
        [torch.nn.functional.pad(rows[i][name], (0, width - len(rows[i][name]))) for i in range(12)]
    )
    signals = Signals(
        pad("old_log_probs"), pad("ref_log_prob"), pad("response_mask"), step=4, max_steps=20,
        generator=torch.Generator().manual_seed(7 * 1_000_003 + 2), rows=torch.arange(12),
    )  # fmt: skip
    torch.testing.assert_close(first[:12, :width], TokenGuide()(signals), rtol=1e-5, atol=2e-6)


def test_centring_takes_the_batch_mean_of_counted_tokens(toy):
    trainer = trainer_of(toy("+sage.guide=branch", "+sage.center=batch", "+sage.guide_args={threshold: 0.5}"))
    batch, rows, _ = a_batch(trainer, padding=3)
    trainer._shape(batch, {})
    shaped = read(batch, "ref_log_prob")["ref_log_prob"]
    moved = torch.cat(
        [(s[: len(r["ref_log_prob"])] - r["ref_log_prob"])[r["response_mask"].bool()] for s, r in zip(shaped, rows)]
    )
    assert moved.mean().abs() < 1e-6
    assert moved.std() > 0.05
    tq.kv_clear(keys=batch.keys, partition_id="train")


@pytest.mark.parametrize(("order", "padding"), [(0, 0), (4, 3)])
def test_a_quantile_is_of_the_whole_rollout_batch(toy, order, padding):
    """As in our trainer for TRL: over every counted token of the step, whatever the order and however many rows are padding."""
    trainer = trainer_of(toy("+sage.guide=branch-quantile", "+sage.guide_args={ratio: 0.4, quantile: 0.7}"))
    batch, rows, _ = a_batch(trainer, order=order, padding=padding)
    trainer._shape(batch, {})
    h = np.concatenate([r["entropy"][r["response_mask"].bool()].double().numpy() for r in rows])
    tau = float(np.quantile(h, 0.7))
    for row, shaped in zip(rows, read(batch, "ref_log_prob")["ref_log_prob"]):
        q = (1 + 0.4 * (row["entropy"] - tau).clamp(min=0)).clamp(0.6, 1.4)
        expected = row["ref_log_prob"] + torch.where(row["response_mask"].bool(), q.log(), 0.0)
        torch.testing.assert_close(shaped[: len(expected)], expected, rtol=1e-5, atol=1e-5)
    tq.kv_clear(keys=batch.keys, partition_id="train")


def test_k1_reward_is_use_kl_in_reward_with_the_shaped_reference(toy):
    """verl's own _compute_advantage after our shaping: A = r + β·bonus − the group's mean, bonus = anchor_reward."""
    trainer = trainer_of(toy("+sage.guide=tempered", "+sage.guide_args={threshold: 0.5}", *REWARD))
    batch, rows, _ = a_batch(trainer)
    trainer._shape(batch, {})
    metrics = {}
    trainer._compute_advantage(batch, metrics)
    got = read(batch, "advantages")["advantages"]
    score = torch.tensor([r["rm_scores"].sum() for r in rows], dtype=torch.float64)
    for i, r in enumerate(rows):
        kappa = (0.5 * (r["entropy"] - 0.5).clamp(min=0)).clamp(max=0.5)
        log_q = (kappa * -r["ref_log_prob"] * r["response_mask"])[None]
        signals = (r["old_log_probs"][None], r["ref_log_prob"][None], log_q, r["response_mask"][None])
        score[i] += 0.3 * anchor_reward(*signals).double()[0]
    group = [key.split("_")[0] for key in batch.keys]
    for i, row in enumerate(rows):
        mean = score[[j for j, g in enumerate(group) if g == group[i]]].mean()
        expected = (score[i] - mean).float() * row["response_mask"]
        torch.testing.assert_close(got[i, : len(expected)], expected, rtol=1e-4, atol=1e-5)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.3
    tq.kv_clear(keys=batch.keys, partition_id="train")


def test_an_update_that_was_not_shaped_stops_the_run(toy):
    trainer = trainer_of(toy("+sage.guide=branch"))
    with pytest.raises(RuntimeError, match="step 1 reached the update unshaped"):
        trainer._update_actor(SimpleNamespace(extra_info={}), {})


ACTOR = "actor_rollout_ref.actor"
TEMPERED = "+sage.guide=tempered"
SAGE = "algorithm.adv_estimator=sage"
CHANGED = {  # the run, what is changed when it goes on → what the sentence names
    "an argument of the guide": (["+sage.guide=branch"], ["+sage.guide_args={ratio: 0.5}"], "ratio=0.3, this run has 0.5"),
    "the guide": (["+sage.guide=branch"], [TEMPERED], "sage.guide=branch and this run has tempered"),
    "no guide": (["+sage.guide=branch"], ["+sage.guide=none"], "sage.guide=branch and this run has none"),
    "estimator": ([TEMPERED], [f"{ACTOR}.kl_loss_type=mse"], "sage.estimator=verl's k3 and this run has verl's k2"),
    "estimator, from the loss to the reward": ([TEMPERED], REWARD, "sage.estimator=verl's k3 and this run has verl's k1-reward"),
    "whose k3+": (
        [TEMPERED, f"{ACTOR}.kl_loss_type=k3+"], ["+sage.estimator=k3+"], "sage.estimator=verl's k3+ and this run has k3+",
    ),
    "estimator without a guide": (
        ["+sage.guide=none", "+sage.estimator=forward"], ["+sage.estimator=forward-value"],
        "sage.estimator=forward and this run has forward-value",
    ),
    "coefficient": ([TEMPERED], [f"{ACTOR}.kl_loss_coef=0.1"], f"{ACTOR}.kl_loss_coef=0.05 and this run has 0.1"),
    "coefficient in the reward": (
        [TEMPERED, *REWARD], ["algorithm.kl_ctrl.kl_coef=0.1"], "algorithm.kl_ctrl.kl_coef=0.3 and this run has 0.1",
    ),
    "hold": ([TEMPERED], ["+sage.hold=false"], "sage.hold=True and this run has False"),
    "center": ([TEMPERED], ["+sage.center=batch"], "sage.center=none and this run has batch"),
    "seed": (["+sage.guide=token"], ["+sage.seed=1"], "sage.seed=0 and this run has 1"),
    "the advantage": (
        ["+sage.advantage=focal", SAGE], ["+sage.advantage=maxrl"],
        "focal={'gamma': 1.0}) and this run has MaxRLAdvantage()",
    ),
    "an argument of the advantage": (
        ["+sage.advantage=risk", SAGE], ["+sage.advantage_args={b: 3}"],
        "RiskAdvantage(b=2.0) and this run has RiskAdvantage(b=3)",
    ),
}  # fmt: skip


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """Where they lie, as overrides. verl's own part needs workers; ours is the file beside it, and what is said on resume."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    def theirs(self):
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(str(self.global_steps))

    monkeypatch.setattr(PPOTrainer, "_save_checkpoint", theirs)
    monkeypatch.setattr(PPOTrainer, "_load_checkpoint", lambda self: setattr(self, "global_steps", 3))
    return f"trainer.default_local_dir={tmp_path}", "trainer.resume_mode=auto"


@pytest.mark.parametrize("name", CHANGED)
def test_a_resumed_run_keeps_its_anchor(name, toy, checkpoints):
    run, change, named = CHANGED[name]
    trainer_of(toy(*run, *checkpoints), step=3)._save_checkpoint()
    same = trainer_of(toy(*run, *checkpoints))
    same._load_checkpoint()
    assert same.global_steps == 3
    with pytest.raises(UserError) as error:
        trainer_of(toy(*run, *change, *checkpoints))._load_checkpoint()
    said = str(error.value)
    assert named in said, said
    assert "start a new run from" in said


def test_a_resumed_run_keeps_its_reference_model(toy, checkpoints, tmp_path):
    trainer_of(toy("+sage.guide=branch", *checkpoints), step=3)._save_checkpoint()
    other = shutil.copytree(toy().actor_rollout_ref.model.path, tmp_path / "other")
    with pytest.raises(UserError, match=r"actor_rollout_ref\.model\.path=.* and this run has .*other: resume with"):
        trainer_of(toy("+sage.guide=branch", f"actor_rollout_ref.model.path={other}", *checkpoints))._load_checkpoint()


def test_a_checkpoint_of_plain_verl_goes_on_and_it_is_said(toy, checkpoints, tmp_path, capsys):
    trainer_of(toy("+sage.guide=none", *checkpoints), step=3)._save_checkpoint()
    assert not (tmp_path / "global_step_3").exists()  # verl as it is
    (tmp_path / "global_step_3").mkdir()
    for guide, told in (("none", False), ("branch", True)):
        trainer_of(toy(f"+sage.guide={guide}", *checkpoints))._load_checkpoint()
        assert ("holds no sage.pt" in capsys.readouterr().out) == told
