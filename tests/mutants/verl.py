"""integrations/verl/, whose tests have an environment of their own."""

from tests.mutants.mutant import within

SCALE = "tests_verl/test_scale.py"
COUNTED, MEASURED = (
    "test_a_schedule_advances_with_every_optimizer_step",
    "test_metrics_are_of_the_whole_mini_batch_however_many_ranks_share_it",
)

BUILD = "tests_verl/test_build.py"
NEVER_CALLED, LATE = (
    "test_trainers_of_their_own_mains_refuse_options_and_say_why",
    "test_asynchronous_modes_refuse_options_and_say_why",
)

MUTANTS = [
    *within(
        "integrations/verl/__init__.py",
        BUILD,
        (
            "a trainer with an __init__ of its own trains without its guide",
            "    trainer.__init_subclass__ = classmethod(lambda cls, **_: ask_first(cls))\n",
            "",
            NEVER_CALLED,
        ),
        (
            "a mode's own checks come before the refusal",
            "            and_below(below)\n",
            "            pass\n",
            LATE,
        ),
    ),
    *within(
        "integrations/verl/trainer.py",
        SCALE,
        ("ppo_epochs is left out of the schedule", ") * actor.ppo_epochs", ")", COUNTED),
        (
            "the schedule is a rollout batch ahead",
            "return (self.global_steps - 1) * updates",
            "return self.global_steps * updates",
            COUNTED,
        ),
    ),
    *within(
        "integrations/verl/loss.py",
        SCALE,
        (
            "metrics are not scaled by the data-parallel size",
            'float(mask.sum()) * data["dp_size"] / max(data["batch_num_tokens"], 1)',
            'float(mask.sum()) / max(data["batch_num_tokens"], 1)',
            MEASURED,
        ),
        (
            "micro-batches weigh alike, however many tokens they have",
            "value=value if name in ends else value * share",
            "value=value",
            MEASURED,
        ),
        (
            "the batch in verl's hands is shaped",
            "shaped = data.copy()",
            "shaped = data",
            "test_the_batch_in_verls_hands_is_not_shaped",
        ),
    ),
    *within(
        "integrations/verl/estimator.py",
        "tests_verl/test_advantage.py",
        (
            "a failed session counts as one without a bonus",
            "bonus.nanmean(1, keepdim=True)",
            "bonus.nan_to_num().mean(1, keepdim=True)",
            "test_a_prompt_with_a_failed_session_is_compared_with_what_it_has",
        ),
        (
            "another row stands in for a failed session",
            "there = rows >= 0",
            "there = rows >= -1",
            "test_a_prompt_with_a_failed_session_is_compared_with_what_it_has",
        ),
        (
            "padding is compared",
            "if not is_padding(uid):",
            "if True:",
            "test_groups_put_a_prompts_sessions_together_by_their_last_output",
        ),
    ),
]
