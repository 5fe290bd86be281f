"""What happens when the trainer is built: verl's real config, real table of trainers, real replay buffers."""

import pytest
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls, register_trainer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

from sage_rlvr import Guide, register_guide
from sage_rlvr.errors import UserError

REWARD = (
    "actor_rollout_ref.actor.use_kl_loss=False", "algorithm.use_kl_in_reward=True", "algorithm.norm_adv_by_std_in_grpo=False",
)  # fmt: skip


def build(config):
    return get_trainer_cls(config.trainer.v1.trainer_mode)(config)


def test_the_entry_point_has_put_the_trainer_into_verls_table():
    trainer = get_trainer_cls("sage_sync")
    assert issubclass(trainer, PPOTrainerSync)
    assert trainer.__module__ == "sage_rlvr.integrations.verl.trainer"
    assert get_trainer_cls("sync") is PPOTrainerSync


def test_a_renamed_mode_stays_synchronous(toy):
    config = toy("+sage.guide=branch")
    trainer = build(config)
    assert type(trainer.replay_buffer) is ReplayBuffer  # not its asynchronous subclass
    assert trainer.trainer_mode == "sync"  # read again for the dataloader, the checkpoints and the prompts' bookkeeping
    assert trainer.replay_buffer.train_batch_size == config.data.train_batch_size

    # what happens to a trainer that only takes another name
    try:
        register_trainer("renamed")(type("Renamed", (PPOTrainerSync,), {}))
        assert type(build(toy(mode="renamed")).replay_buffer) is ReplayBufferAsync
    finally:
        TRAINER_REGISTRY.pop("renamed")


def test_options_that_nobody_would_read_are_refused(toy):
    with pytest.raises(UserError, match=r"sage\.\* is set but trainer\.v1\.trainer_mode=.*set trainer_mode=sage_sync"):
        build(toy("+sage.guide=branch", mode="sync"))
    assert type(build(toy(mode="sync"))) is PPOTrainerSync


OTHERS = set(TRAINER_REGISTRY) - {"sync", "sage_sync"}  # verl's own table


@pytest.mark.parametrize("mode", sorted(OTHERS))
def test_asynchronous_modes_refuse_options_and_say_why(mode, toy):
    """Before what they ask of their own settings."""
    assert {"colocate_async", "separate_async"} == OTHERS
    refused(
        toy("+sage.guide=branch", mode=mode),
        [f"trainer_mode={mode} ", "may come from older ones", "trainer_mode=sage_sync"],
    )


def one_step_off():
    from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer

    return OneStepOffRayTrainer


def fully_async():
    from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer

    return FullyAsyncTrainer.__ray_metadata__.modified_class  # what Ray builds in its actor


@pytest.mark.parametrize("trainer", [one_step_off, fully_async])
@pytest.mark.parametrize("ours", ["+sage.guide=branch", "algorithm.adv_estimator=sage"])
def test_trainers_of_their_own_mains_refuse_options_and_say_why(trainer, ours, toy):
    """They call no __init__ above their own."""
    cls, separate = trainer(), "actor_rollout_ref.hybrid_engine=False"
    said = f"{cls.__name__} does not read it, since .* older ones: .*trainer_mode=sage_sync"
    with pytest.raises(UserError, match=said):
        cls(config=toy(ours, separate), tokenizer=None, role_worker_mapping={}, resource_pool_manager=None)
    with pytest.raises(Exception) as plain:  # without ours it goes on, into what it was not given here
        cls(config=toy(separate), tokenizer=None, role_worker_mapping=None, resource_pool_manager=None)
    assert not isinstance(plain.value, UserError)


def test_verls_legacy_trainer_refuses_options_it_would_not_read(toy):
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    with pytest.raises(UserError, match=r"sage\.\* is set but verl's legacy trainer .*trainer\.use_v1=True"):
        RayPPOTrainer(toy("+sage.guide=branch"), None, {}, None)
    with pytest.raises(Exception) as plain:  # without ours it goes on, into what it was not given here
        RayPPOTrainer(toy(mode="sync"), None, {}, None)
    assert not isinstance(plain.value, UserError)


ACTOR = "actor_rollout_ref.actor"


@register_guide("learner")
class Learner(Guide):
    learns = True

    def log_q(self, s):
        return 0 * s.logps


REFUSED = {  # overrides → what the sentence names: the field, and the mend
    "no guide named": ([], ["sage.guide", "+sage.guide=branch"]),
    "bypass mode, entropy guide": (
        ["+sage.guide=branch", "algorithm.rollout_correction.bypass_mode=True"], ["bypass_mode=True", "bypass_mode=False"],
    ),
    "bypass mode, tempered": (
        ["+sage.guide=tempered", "algorithm.rollout_correction.bypass_mode=True"], ["bypass_mode=True", "bypass_mode=False"],
    ),
    "k1 as a loss": (["+sage.guide=branch", f"{ACTOR}.kl_loss_type=kl"], ["kl_loss_type=kl", "low_var_kl"]),
    "k1 by its other name": (["+sage.guide=tempered", f"{ACTOR}.kl_loss_type=k1"], ["kl_loss_type=k1", "use_kl_in_reward"]),
    "abs as a loss": (["+sage.guide=tempered", f"{ACTOR}.kl_loss_type=abs"], ["kl_loss_type=abs", "low_var_kl"]),
    "state-only guide with k2": (["+sage.guide=branch", f"{ACTOR}.kl_loss_type=mse"], ["kl_loss_type=mse", "low_var_kl"]),
    "state-only guide with k2, named so": (["+sage.guide=random", f"{ACTOR}.kl_loss_type=k2"], ["kl_loss_type=k2", "tempered"]),
    "state-only guide with k3+": (["+sage.guide=branch", f"{ACTOR}.kl_loss_type=low_var_kl+"], ["low_var_kl+", "tempered"]),
    "state-only guide with our k3+": (["+sage.guide=branch", "+sage.estimator=k3+"], ["sage.estimator=k3+", "tempered"]),
    "no reference model": (["+sage.guide=branch", f"{ACTOR}.use_kl_loss=False"], ["reference model", "use_kl_loss=True"]),
    "coefficient 0": (["+sage.guide=branch", f"{ACTOR}.kl_loss_coef=0"], ["kl_loss_coef=0", "above 0"]),
    "reference entropies": (
        ["+sage.guide=branch", "+sage.guide_args={source: reference}"], ["ref_entropies", "source=policy"],
    ),
    "reference entropies, level": (["+sage.guide=verified", "+sage.guide_args={level: true}"], ["ref_entropies", "level out"]),
    "groups": (["+sage.guide=group", *REWARD], ["needs beta, group", "choose another guide"]),
    "hidden states": (["+sage.guide=value", *REWARD], ["needs hidden", "choose another guide"]),
    "a guide that nobody teaches": (["+sage.guide=learner", *REWARD], ["learns as the run goes", "choose another"]),
    "rewards in the workers": (["+sage.guide=verified", "+sage.hold=False"], ["rewards", "sage.hold=True"]),
    "scaled by std": (
        ["+sage.guide=branch", *REWARD[:2]], ["norm_adv_by_std_in_grpo=True", "norm_adv_by_std_in_grpo=False"],
    ),
    "truncated sampling, a ratio over sequences": (
        ["+sage.guide=branch", "actor_rollout_ref.rollout.top_p=0.95", "algorithm.rollout_correction.rollout_is=sequence"],
        ["top_p=0.95", "rollout_is=token"],
    ),
    "truncated sampling, as old log-probs in the reward": (
        ["+sage.guide=token", *REWARD, "actor_rollout_ref.rollout.top_k=50", "algorithm.rollout_correction.bypass_mode=True"],
        ["top_k=50", "bypass_mode=False"],
    ),
    "a coefficient that follows the shaped KL": (
        ["+sage.guide=branch", *REWARD, "algorithm.kl_ctrl.type=adaptive"], ["kl_ctrl.type=adaptive", "kl_ctrl.type=fixed"],
    ),
    "k3 in the reward": (["+sage.guide=branch", *REWARD, "algorithm.kl_penalty=low_var_kl"], ["low_var_kl", "kl_penalty=kl"]),
    "loss and reward": (["+sage.guide=branch", *REWARD[1:]], ["use_kl_in_reward=True", "turn one of them off"]),
    "an advantage it is not derived for": (
        ["+sage.guide=branch", *REWARD, "algorithm.adv_estimator=gae"], ["adv_estimator=gae", "grpo"],
    ),
    "a loss estimator in the reward": (["+sage.guide=branch", *REWARD, "+sage.estimator=k3"], ["sage.estimator=k3", "k1-reward"]),
    "contradiction": (["+sage.guide=branch", "+sage.estimator=k2"], ["sage.estimator=k2", "kl_loss_type=mse"]),
    "k1-reward without verl's field": (["+sage.guide=branch", "+sage.estimator=k1-reward"], ["use_kl_in_reward=True"]),
    "unknown option": (["+sage.guide=branch", "+sage.giude=token"], ["sage.giude", "sage.guide"]),
    "unknown guide": (["+sage.guide=brunch"], ["brunch", "branch"]),
    "unknown argument": (["+sage.guide=branch", "+sage.guide_args={rho: 1}"], ["rho", "ratio"]),
    "arguments of no guide": (["+sage.guide=none", "+sage.guide_args={ratio: 1}"], ["sage.guide_args", "sage.guide=none"]),
    "centred but not held": (
        ["+sage.guide=branch", "+sage.hold=false", "+sage.center=batch"], ["sage.center=batch", "sage.hold=True"],
    ),
    "the whole batch but not held": (
        ["+sage.guide=branch-quantile", "+sage.hold=false"], ["branch-quantile looks at the whole", "sage.hold=True"],
    ),
    "in the reward but not held": (["+sage.guide=branch", *REWARD, "+sage.hold=false"], ["use_kl_in_reward", "sage.hold=True"]),
    "a word for a truth value": (["+sage.guide=branch", "+sage.hold=maybe"], ["sage.hold='maybe'", "true or false"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_when_the_trainer_is_built(name, toy):
    overrides, named = REFUSED[name]
    refused(toy(*overrides), named)


def refused(config, named):
    """By one sentence that has each of these parts."""
    with pytest.raises(UserError) as error:
        build(config)
    said = str(error.value)
    assert "\n" not in said
    for part in named:
        assert part in said, said


SEAMS = {
    "driver: as published": (["+sage.guide=branch"], "driver", "k3"),
    "driver: a token guide under verl's k3+": (["+sage.guide=tempered", f"{ACTOR}.kl_loss_type=k3+"], "driver", "k3+"),
    "driver: exact": (["+sage.guide=branch", *REWARD], "driver", "k1-reward"),
    "driver: noise needs no entropies, so bypass is fine": (
        ["+sage.guide=token", "algorithm.rollout_correction.bypass_mode=True"], "driver", "k3",
    ),
    "loss: our k3+": (["+sage.guide=tempered", "+sage.estimator=k3+"], "loss", "k3+"),
    "loss: the current policy": (["+sage.guide=branch", "+sage.hold=false"], "loss", "k3"),
    "loss: forward KL without a guide": (["+sage.guide=none", "+sage.estimator=forward-value"], "loss", "forward-value"),
    "none": (["+sage.guide=none"], "none", "k3"),
    "none, and no KL": (["+sage.guide=none", f"{ACTOR}.use_kl_loss=False"], "none", "none"),
}  # fmt: skip


@pytest.mark.parametrize("name", SEAMS)
def test_each_way_in_has_its_seam(name, toy, capsys):
    overrides, seam, estimator = SEAMS[name]
    trainer = build(toy(*overrides))
    assert (trainer.sage.seam, trainer.sage.estimator) == (seam, estimator)
    said = capsys.readouterr().out
    assert said.startswith("sage: ")  # one line, whatever verl's log level
    assert ("nothing is shaped" in said) == (seam == "none")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["+sage.guide=branch", f"{ACTOR}.kl_loss_coef=0.07"], "estimator k3, beta=0.07,"),
        (
            ["+sage.guide=tempered", "+sage.estimator=forward", f"{ACTOR}.kl_loss_coef=0.07"],
            "estimator forward, beta=0.07,",
        ),
        (["+sage.guide=branch", *REWARD, "algorithm.kl_ctrl.kl_coef=0.3"], "estimator k1-reward, beta=0.3,"),
    ],
)
def test_the_first_line_names_estimator_and_coefficient(overrides, named, toy, capsys):
    build(toy(*overrides))
    assert named in capsys.readouterr().out
