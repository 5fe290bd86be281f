"""The stacked engine: its passes, verdicts, losses and steps, and what a study's folder says of it."""

from tests.mutants.mutant import within

MODEL, WORLD, TRAIN, STUDY = (
    f"tests/{path}.py"
    for path in ("stacked/test_model", "stacked/test_world", "stacked/test_train", "study/test_stacked")
)
LOGPS = "test_log_probs_and_gradients_are_transformers"
DRAWN = "test_a_sample_is_where_the_draw_falls_in_transformers_distribution"
EVERY = "test_what_does_not_use_every_number_once_is_wrong"
LOSS, ADAMW = (
    "test_loss_and_gradient_are_sagetrainers",
    "test_steps_are_torchs_adamw_with_transformers_decay_and_clipping",
)

BLEND = "test_a_blend_lies_between_the_base_and_what_was_trained"
MUTANTS = [
    *within(
        "stacked/model.py",
        MODEL,
        ("completions see the prompts' padding", ".view(*q.shape[:-1], -1) + barrier", ".view(*q.shape[:-1], -1)", LOGPS),
        ("a token is sampled one place too early", "self._turn(first + t, 1)", "self._turn(first + t - 1, 1)", DRAWN),
        ("a token sees columns that are still empty", "turn, written[t], before", "turn, 0 * written[t], before", DRAWN),
        ("sampling goes on after the end", "token.where(going, pad)", "token", DRAWN),
    ),
    *within(
        "stacked/world.py",
        WORLD,
        ("numbers may be left over", "plain & fits & (left == 0).all(1)", "plain & fits & (left >= 0).all(1)", EVERY),
        ("a number that is too large is another", "fits & ~(closes & (number > most))", "fits",
         EVERY),
    ),
    *within(
        "stacked/credit.py",
        TRAIN,
        ("the bonus is not centred", "(bonus - bonus.mean(1, keepdim=True)).flatten()", "bonus.flatten()",
         f"{LOSS}[verified focal]"),
        ("the guide is left out of the penalty", "anchor_penalty(b.logps, b.ref_logps, log_q, args.anchor_estimator)",
         "anchor_penalty(b.logps, b.ref_logps, 0 * log_q, args.anchor_estimator)", f"{LOSS}[tempered]"),
        ("log q is not centred", "(log_q - over(log_q, b.mask)) * b.mask", "log_q", f"{LOSS}[tempered]"),
    ),
    *within(
        "stacked/steps.py",
        TRAIN,
        ("norms decay", "and \"bias\" not in name and \"norm\" not in name:", "and \"bias\" not in name:", ADAMW),
        ("runs are clipped by one norm", "finite, factor = norms.isfinite(), (self.clip / (norms + 1e-6))",
         "finite, factor = norms.isfinite(), (self.clip / (norms.max() + 1e-6))", ADAMW),
        ("a gradient that is not finite goes in", "torch.where(per_run(finite), g * per_run(factor), 0.0)", "g * per_run(factor)",
         "test_a_gradient_that_is_not_finite_moves_nothing"),
    ),
    *within(
        "stacked/train.py",
        TRAIN,
        ("a run's draws are the stack's", "manual_seed(seeded(\"rollouts\", self.args.seed))", "manual_seed(id(self) % 2**31)",
         "test_a_run_is_the_same_whatever_it_is_stacked_with"),
        ("chance pays the truth", "if self.chance is None else", "if True else",
         "test_a_random_reward_pays_by_chance_and_tells_the_truth"),
    ),
    *within(
        "models/blend.py",
        "tests/models/test_blend.py",
        ("A and B of an adapter are both scaled", "w * weight if \".lora_B.\" in name else w", "w * weight",
         "test_an_adapter_merged_after_it_is_blended_lies_on_the_line"),
        ("what is beside A and B is scaled away", "\".lora_A.\" not in name and \".lora_B.\" not in name", "False",
         "test_what_is_not_lora_alone_or_did_not_begin_as_its_base_is_refused"),
        ("full weights go the other way", "theirs[name].lerp(w.float(), weight)", "w.float().lerp(theirs[name], weight)",
         "test_full_weights_lie_on_the_line_in_their_own_dtype"),
    ),
    *within(
        "study/run.py",
        "tests/study/test_study.py",
        ("a blend does not wait for what it is made of", "elif source in waiting or source in running:", "elif False:",
         "test_a_blend_waits_for_what_it_is_made_of"),
    ),
    *within(
        "benchmarks/shifts.py",
        "tests/study/test_shifts.py",
        ("seeds are paired on the same draws", "chances(other, 1)[own]", "chances(other, 0)[own]",
         "test_pairs_of_seeds_are_taken_on_unlike_draws"),
        ("the shift is not looked for around the best", "for width in (0.2, 0.1, 0.05):", "for width in ():",
         "test_it_finds_the_shift_that_was_made"),
    ),
    *within(
        "study/stacked.py",
        STUDY,
        ("the temperature that is asked for is not looked at", "\"temperature\": 1.0, \"min_p\"", "\"min_p\"",
         "test_samples_that_it_would_not_draw_as_asked_are_refused"),
        ("bf16 is asked for and not done", "torch.bfloat16 if study.train.get(\"bf16\") else torch.float32", "torch.float32",
         "test_products_are_in_bf16_where_the_study_says_so"),
        ("a done run is done again", "fnmatch(run, only) and status_of(out, run)[\"state\"] != \"done\"]\n        trained",
         "fnmatch(run, only)]\n        trained", "test_what_is_done_stays_and_the_other_engine_would_leave_it"),
        ("a blend goes the other way", "lerp_(trained[part].to(w), weight)", "lerp_(trained[part].to(w), 1 - weight)", BLEND),
        ("blends of what was trained before are left out", "stacks += [blends[i : i + most]", "_ = [blends[i : i + most]", BLEND),
    ),
]  # fmt: skip
