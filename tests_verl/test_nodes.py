"""verl's trainer across two nodes: a Ray cluster of two raylets on this machine, one worker on each, FSDP2 between them. Checked
against the same two steps in plain torch, in one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import torch
from ray.util.placement_group import placement_group, remove_placement_group
from transformers import AutoModelForCausalLM

from sage_rlvr.anchor import Signals, TokenGuide

PROMPTS, N, PROMPT, SEED, BETA = 4, 4, 5, 9, 0.05
SETTINGS = (
    "+sage.guide=token", f"+sage.seed={SEED}", "+sage.hold=false", "+sage.estimator=k3+",  # q and penalty are the workers'
    f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}", "trainer.nnodes=2", "trainer.n_gpus_per_node=1",
    "trainer.save_freq=1",
)  # fmt: skip


def say(worker):
    """A worker's node and rank, and of each parameter its kind, over how many ranks it lies, its part here, and all of it."""
    actor = next(inner.actor for inner in worker.worker_dict.values() if inner.actor is not None)
    parameters = {
        name: (type(p).__name__, p.device_mesh.size(), p.to_local().detach().clone(), p.full_tensor().detach().clone())
        for name, p in actor.engine.module.named_parameters()
    }
    return {"node": ray.get_runtime_context().get_node_id(), "rank": worker.rank, "parameters": parameters}


@pytest.fixture(scope="module")
def runs(cluster, toy, tmp_path_factory):
    """(two steps, the second of them again from the first one's checkpoint by new workers, the two nodes, that checkpoint)."""
    from rollouts import Run

    def finished(*overrides):
        run = Run(toy(*SETTINGS, *overrides))
        run.fit()
        run.workers = ray.get([w.__ray_call__.remote(say) for w in run.trainer.actor_rollout_wg.workers])
        run.close()
        return run

    folder = tmp_path_factory.mktemp("nodes")
    checkpoint = folder / "through" / "global_step_1"
    held = placement_group([{"GPU": ray.cluster_resources()["GPU"] - 1}])  # the first node cannot take both workers
    ray.get(held.ready())
    second = cluster.add_node(num_cpus=3, num_gpus=1, object_store_memory=128 * 2**20)
    try:
        through = finished(f"trainer.default_local_dir={checkpoint.parent}")
        resumed = finished(
            f"trainer.default_local_dir={folder / 'resumed'}", "trainer.resume_mode=resume_path",
            f"trainer.resume_from_path={checkpoint}",
        )  # fmt: skip
        yield through, resumed, {ray.get_runtime_context().get_node_id(), second.node_id}, checkpoint
    finally:
        cluster.remove_node(second)
        remove_placement_group(held)


def test_a_worker_on_each_node_holds_its_half_of_every_parameter(runs):
    for run in runs[:2]:
        assert {w["node"] for w in run.workers} == runs[2]
        assert len(runs[2]) == 2
        assert [w["rank"] for w in run.workers] == [0, 1]
        first, second = (w["parameters"] for w in run.workers)
        assert len(first) > 20
        for name, (kind, ranks, part, whole) in first.items():
            assert (kind, ranks) == second[name][:2] == ("DTensor", 2)
            assert part.numel() == whole.numel() / 2
            assert torch.equal(torch.cat([part, second[name][2]]), whole), name
            assert torch.equal(second[name][3], whole), name


def batch_of(rollouts, step):
    """(ids, response mask, rewards) of the completions that a step trained on, row = prompt · N + session."""
    fields = [rollouts._one(step, prompt, "uid", s)[1] for prompt in range(PROMPTS) for s in range(N)]
    return (
        [f["input_ids"] for f in fields],
        [f["response_mask"] for f in fields],
        [f["rm_scores"].sum() for f in fields],
    )


def log_probs(model, ids):
    rows = [
        model(row[None]).logits[0, PROMPT - 1 : -1].log_softmax(-1).gather(1, row[PROMPT:, None])[:, 0] for row in ids
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def in_one_process(config, rollouts):
    """The two steps by formula, on the unsharded model: what each step measures, and the parameters after them."""
    actor = config.actor_rollout_ref.actor
    model, reference = (
        AutoModelForCausalLM.from_pretrained(config.actor_rollout_ref.model.path, attn_implementation="eager") for _ in range(2)
    )  # fmt: skip
    optimizer = torch.optim.AdamW(
        model.parameters(), actor.optim.lr, betas=tuple(actor.optim.betas), weight_decay=actor.optim.weight_decay
    )
    measured = []
    for step in (1, 2):
        ids, masks, rewards = batch_of(rollouts, step)
        mask = torch.nn.utils.rnn.pad_sequence(masks, batch_first=True)
        mean = lambda x: (x * mask).sum() / mask.sum()  # noqa: E731, B023
        groups = torch.stack(rewards).view(PROMPTS, N)
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
        logps = log_probs(model, ids)
        old = logps.detach()
        with torch.no_grad():
            ref = log_probs(reference, ids)
        signals = Signals(
            old, ref, mask, step=step - 1, max_steps=2, rows=torch.arange(PROMPTS * N),
            generator=torch.Generator().manual_seed(SEED * 1_000_003 + step - 1),
        )  # fmt: skip
        log_q = TokenGuide()(signals)
        ratio = (logps - old).exp()
        log_w = ref + log_q - logps
        pg, kl = mean(-advantages.view(-1, 1) * ratio), mean((log_w.exp() - log_w - 1) * ratio)
        optimizer.zero_grad()
        (pg + BETA * kl).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), actor.grad_clip)
        optimizer.step()
        measured.append({
            "actor/pg_loss": pg, "actor/kl_loss": kl, "actor/grad_norm": norm, "actor/sage/q_mean": mean(log_q.exp()),
            "actor/sage/active": mean((log_q != 0).float()), "critic/rewards/mean": groups.mean(),
        })  # fmt: skip
    return measured, dict(model.named_parameters())


def test_the_steps_are_those_of_one_process(runs, toy):
    run, *_ = runs
    measured, parameters = in_one_process(toy(*SETTINGS), run.rollouts)
    assert len(run.logged) == len(measured) == 2
    for said, wanted in zip(run.logged, measured):
        assert {k: said[k] for k in wanted} == pytest.approx(
            {k: v.item() for k, v in wanted.items()}, rel=1e-4, abs=1e-6
        )
        assert said["actor/kl_loss"] > 0.01
    for name, value in parameters.items():  # Adam's first steps are ±lr where the gradient is not tiny
        close = torch.isclose(run.workers[0]["parameters"][name][3], value, rtol=0, atol=2e-5).float().mean()
        assert close > 0.98, (name, close)


def test_a_checkpoint_of_both_nodes_goes_on(runs):
    """Each worker wrote its own part; new workers read them, and the second step and its parameters are the same."""
    through, resumed, _, checkpoint = runs
    for kind in ("model", "optim", "extra_state"):
        assert len(list((checkpoint / "actor").glob(f"{kind}_world_size_2_rank_[01].pt"))) == 2
    assert (checkpoint / "sage.pt").exists()
    assert [step["training/global_step"] for step in resumed.logged] == [2]
    names = [k for k in through.logged[1] if k.startswith(("actor/", "critic/")) and "/perf/" not in k]
    assert len(names) > 20
    before, after = ({k: run.logged[-1][k] for k in names} for run in (through, resumed))
    assert after == pytest.approx(before, rel=1e-4, abs=1e-6)
    for name, (*_, whole) in through.workers[0]["parameters"].items():
        torch.testing.assert_close(resumed.workers[0]["parameters"][name][3], whole, rtol=0, atol=2e-5)


OURS = Path(os.environ.get("VENV", Path(__file__).parents[1] / ".venv")) / "bin" / "python"
MERGE = "import sys; from pathlib import Path; from sage_rlvr.study.verl import _weights; _weights(Path(sys.argv[1]), 2, '')"


@pytest.mark.skipif(not OURS.exists(), reason=f"needs our own environment: there is no {OURS}")
def test_the_parts_become_the_weights_of_a_study(runs):
    """``study run --engine verl`` in our environment, once its run has ended; of a LoRA run: test_study.py."""
    through, _, _, checkpoint = runs
    env = os.environ | {"SAGE_VERL_PYTHON": sys.executable}
    subprocess.run([OURS, "-c", MERGE, checkpoint.parent], env=env, check=True)
    saved = AutoModelForCausalLM.from_pretrained(checkpoint.parent / "checkpoint-2", dtype=torch.float32).state_dict()
    for name, (*_, whole) in through.workers[0]["parameters"].items():
        torch.testing.assert_close(saved[name], whole.bfloat16().float(), rtol=0, atol=0, msg=name)
