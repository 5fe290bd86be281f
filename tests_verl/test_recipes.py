"""The launch scripts: what they hand to verl is accepted by its config, builds the trainer, and is the paper's."""

import os
import subprocess
from importlib.resources import files

import pytest
from hydra import compose, initialize_config_module
from verl.trainer.ppo.v1 import get_trainer_cls

SHELF = files("sage_rlvr").joinpath("recipes/verl")
ROWS = {  # row → guide, estimator, seam
    "branch": ("branch", "k3", "driver"),
    "token": ("token", "k3", "driver"),
    "random": ("random", "k3", "driver"),
    "grpo": ("none", "k3", "none"),
    "grpo_no_kl": ("none", "none", "none"),
    "grpo_forward_kl": ("none", "forward-value", "loss"),
    "tempered": ("tempered", "k3+", "driver"),
    "exact": ("branch", "k1-reward", "driver"),
    "maxrl": ("none", "none", "none"),
    "rarity_focal": ("none", "k3", "none"),
}
ADVANTAGES = {"maxrl": ["maxrl"], "rarity_focal": ["rarity", "group", "focal"]}


def overrides(script, **env):
    where = {"MODEL": "m", "TRAIN": "t.parquet", "REWARD": "r.py", "DRY_RUN": "1"} | env
    done = subprocess.run(["bash", str(SHELF / script)], capture_output=True, text=True, env=os.environ | where)
    return done.stdout.splitlines(), done.stderr, done.returncode


def config_of(lines):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=lines)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_builds(row):
    lines, err, code = overrides("one_node.sh", ROW=row)
    assert code == 0, err
    config = config_of(lines)
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    assert (trainer.sage.guide, trainer.sage.estimator, trainer.sage.seam) == ROWS[row]
    made = trainer.advantage
    assert ([] if made is None else [part.name for part in made.parts]) == ADVANTAGES.get(row, [])
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, rollout.n, rollout.temperature, config.trainer.total_training_steps) == (
        8,
        8,
        1,
        1000,
    )
    assert (actor.optim.lr, actor.optim.weight_decay, actor.clip_ratio, trainer.sage.seed) == (5e-6, 0.01, 0.2, 3407)
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 8)
    if trainer.guide is not None and row in ("branch", "exact"):
        assert (trainer.guide.ratio, trainer.guide.threshold, trainer.guide.q_min, trainer.guide.q_max) == (
            0.3,
            1.2,
            0.6,
            1.4,
        )


def test_several_nodes():
    lines, err, code = overrides("several_nodes.sh", NNODES="4")
    assert code == 0, err
    config = config_of(lines)
    assert (config.trainer.nnodes, config.data.train_batch_size) == (4, 32)
    assert config.ray_kwargs.ray_init.address == "auto"


@pytest.mark.parametrize(("env", "said"), [({"MODEL": ""}, "set MODEL"), ({"ROW": "brunch"}, "ROW=brunch is unknown")])
def test_what_is_missing_is_said(env, said):
    _, err, code = overrides("one_node.sh", **env)
    assert code != 0
    assert said in err
