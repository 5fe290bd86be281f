"""train/: what becomes of rollouts and rewards, the trainer, its checkpoints."""

from tests.mutants.mutant import within

ROLLOUTS, PARITY, PACKING = "tests/train/test_rollouts.py", "tests/train/test_parity.py", "tests/train/test_packing.py"
NORMALISER, WINDOW, RESUME = (f"tests/train/test_{name}.py" for name in ("normaliser", "window", "resume"))

ADVANTAGES = within(
    "train/rollouts.py",
    ROLLOUTS,
    (
        "BNPO's concentration is not held: groups all alike fit an infinitely sharp Beta",
        "(most / spread.clamp(min=1e-12) - 1).clamp(0, sharpest)",
        "(most / spread.clamp(min=1e-12) - 1).clamp(min=0)",
        "tests/train/test_advantages.py::test_a_beta_fitted_to_groups_all_alike_is_held",
    ),
    (
        "the Beta is fitted with n − 1",
        "known.var(unbiased=False)",
        "known.var(unbiased=True)",
        "test_beta_advantage_by_hand",
    ),
    (
        "a third of the pseudo-counts is forgotten",
        "1 + mean * concentration / 3, 1 + (1 - mean) * concentration / 3",
        "1 + mean * concentration, 1 + (1 - mean) * concentration",
        "test_beta_advantage_by_hand",
    ),
    (
        "a group's mean counts what could not be scored",
        "p = groups.nanmean(1)",
        "p = groups.nan_to_num().mean(1)",
        "test_beta_advantage_special_cases, tests/train/test_advantages.py::test_what_cannot_be_scored_moves_no_mean",
    ),
    (
        "an answer shares its reward with other prompts' groups",
        "keys = [(i // group, i if key is None else key) for i, key in enumerate(solutions)]",
        "keys = [(0, i if key is None else key) for i, key in enumerate(solutions)]",
        "test_coverage_pays_each_its_shapley_value_of_the_distinct_right_answers",
    ),
    (
        "wrong completions dilute an answer's reward",
        "times = Counter(key for key, right in zip(keys, rewarded) if right)",
        "times = Counter(keys)",
        "test_coverage_pays_each_its_shapley_value_of_the_distinct_right_answers, "
        "tests/train/test_advantages.py::test_a_wrong_twin_takes_nothing",
    ),
    (
        "the mean surprisal is over wrong completions too",
        "s = surprisal.nan_to_num().clamp(min=0).view(-1, group) * right",
        "s = surprisal.nan_to_num().clamp(min=0).view(-1, group)",
        "test_rarity_shares_a_groups_reward_by_surprisal",
    ),
    (
        "a group that nobody could score is no flat one",
        "return ~(high > low)",
        "return high == low",
        "tests/train/test_advantages.py::test_a_group_is_flat_unless_two_scores_differ",
    ),
    (
        "every epoch of new prompts has one order",
        "self.seed + 7919 * (epoch + 1)",
        "self.seed + 7919",
        "test_prompt_stream_is_a_function_of_seed_and_position",
    ),
    (
        "a replaced prompt is padded on the wrong side",
        "(_widen(x, width, pad, key in LEFT_PADDED) for x in (value, new))",
        "(_widen(x, width, pad, False) for x in (value, new))",
        "tests/train/test_advantages.py::test_a_replaced_group_keeps_its_padding_on_its_side",
    ),
    (
        "the cut is one token late",
        "if any(s in decode(ids[:middle]) for s in stops)",
        "if any(s in decode(ids[: middle - 1]) for s in stops)",
        "test_stop_cut_finds_the_token_that_completes_the_stop",
    ),
)

TRAINER = [
    *within(
        "train/trainer.py",
        NORMALISER,
        (
            "luspo's own penalty times seven",
            "return total.mean() / accumulation",
            "return 7 * total.mean() / accumulation",
            "test_our_normaliser_is_trls[luspo]",
        ),
        (
            "dr_grpo divides by the tokens that are there",
            "return total.sum() / (len(total) * self.max_completion_length) / accumulation",
            "return total.sum() / mask.sum() / accumulation",
            "test_our_normaliser_is_trls[dr_grpo]",
        ),
        (
            "accumulated slices are added, not averaged",
            "return total.sum() / mask.sum().clamp(min=1) / accumulation",
            "return total.sum() / mask.sum().clamp(min=1)",
            "test_our_normaliser_is_trls[bnpo]",
        ),
        (
            "padding has a penalty",
            "total = (per_token * mask).sum(-1)",
            "total = per_token.sum(-1)",
            "test_our_normaliser_is_trls[grpo]",
        ),
        (
            "without hold, noise is drawn again at each iteration",
            "rollout_batch = self._step // (self.args.steps_per_generation * self.num_iterations)",
            "rollout_batch = self._step // self.args.steps_per_generation",
            "test_noise_is_drawn_once_a_rollout_batch_though_the_guide_is_not_held",
        ),
    ),
    *within(
        "train/trainer.py",
        PARITY,
        (
            "a slice is shaped with its neighbour's log q",
            'part = self._step % self.args.steps_per_generation, inputs.get("sage_part", 0)',
            'part = 0, inputs.get("sage_part", 0)',
            "test_branch_k3_is_the_formula[grpo-schedule2-full]",
        ),
        (
            "log q of the batch before is still held",
            "            self._held.clear()",
            "            pass",
            "test_branch_k3_is_the_formula[grpo-schedule2-full]",
        ),
        (
            "the bonus is not centred on its group",
            "scaled = self.beta * (bonus - mean)",
            "scaled = self.beta * bonus",
            "test_k1_reward_is_added_after_the_task_reward_is_scaled[none-branch-schedule0]",
        ),
        (
            "TRL's penalty stays on beside ours",
            "with self._trl_beta(self.beta if self.estimator in IN_TRL else 0.0):",
            "with self._trl_beta(self.beta):",
            "test_other_estimators_are_the_formula[grpo-schedule7-k2]",
        ),
    ),
    *within(
        "train/trainer.py",
        "tests/train/test_logged.py",
        (
            "centring reaches padding",
            "log_q = (log_q - total[0] / total[1].clamp(min=1)) * mask",
            "log_q = log_q - total[0] / log_q.numel()",
            "test_a_centred_guide_has_no_mean_and_follows_length_no_more",
        ),
    ),
    *within(
        "train/lens.py",
        PARITY,
        (
            "the buffered reference is shaped in place, again and again",
            'self.shaped["ref_per_token_logps"] = self.ref + self.log_q',
            'self.shaped["ref_per_token_logps"] = self.ref.add_(self.log_q)',
            "test_branch_k3_is_the_formula[grpo-schedule0-full]",
        ),
    ),
    *within(
        "train/packing.py",
        PACKING,
        (
            "a part is one row over its budget",
            "if parts and (len(parts[-1]) + 1) * sizes.width(parts[-1][:1]) <= budget:",
            "if parts and len(parts[-1]) * sizes.width(parts[-1][:1]) <= budget:",
            "test_parts_cover_every_row_once",
        ),
        (
            "left padding is cut off on the right",
            "value = value[:, value.shape[1] - left :]",
            "value = value[:, :left]",
            "test_trimmed_columns_are_padding_and_nothing_else",
        ),
    ),
    *within(
        "train/resumable.py",
        WINDOW,
        (
            "what was logged of an open window is dropped on resume",
            'self._metrics["train"][name].extend(values)',
            "pass",
            "test_a_window_open_at_the_checkpoint_is_averaged_over_all_its_steps",
        ),
        (
            "what was logged of an open window is not saved",
            '"metrics": {k: list(v) for k, v in self._metrics["train"].items()}',
            '"metrics": {}',
            "test_a_window_open_at_the_checkpoint_is_averaged_over_all_its_steps",
        ),
        (
            "a resumed run starts at the first slice of its buffer",
            '        self._step = state["step"]',
            "        pass",
            f"{RESUME}::test_kill_and_resume_changes_nothing[inside the rollout buffer]",
        ),
    ),
    *within(
        "train/checkpoint.py",
        RESUME,
        (
            "the oldest checkpoint is taken",
            "    return sorted(found, key=lambda p: int(p.name[11:]), reverse=True)",
            "    return sorted(found, key=lambda p: int(p.name[11:]))",
            "test_a_checkpoint_cut_short_is_passed_over",
        ),
        (
            "a resumed epoch is shuffled as the first one",
            "for _ in range(epoch):",
            "for _ in range(0):",
            "test_the_sampler_starts_at_any_epoch_where_trl_would_be",
        ),
    ),
]

CHANCE = within(
    "train/random_reward.py",
    "tests/train/test_random_reward.py",
    (
        "equal completions of a group are paid alike, and can be learned",
        "[self.seed, step, row, prompt,",
        "[self.seed, step, prompt,",
        "test_every_part_of_the_key_draws_anew",
    ),
    (
        "right answers are paid for what they are",
        "float(self._draw(step, row, prompt, completion) < self.chance)",
        "float(self._draw(step, row, prompt, completion) < self.chance or verdict == 1)",
        "test_the_rate_is_the_one_asked_for_among_right_and_wrong_alike",
    ),
    (
        "what cannot be judged is paid",
        "None if verdict is None else float(",
        "float(",
        "test_what_cannot_be_judged_stays_so_and_the_truth_is_logged",
    ),
    (
        "each rank draws as the first one",
        "first = PartialState().process_index * len(prompts)",
        "first = 0",
        "tests/train/test_distributed.py::test_two_processes_give_the_losses_gradients_and_weights_of_one",
    ),
)

MUTANTS = [*ADVANTAGES, *TRAINER, *CHANCE]
