"""train/: what becomes of rollouts and rewards, the trainer, its checkpoints."""

from tests.mutants.mutant import within

ROLLOUTS, PARITY, PACKING = "tests/train/test_rollouts.py", "tests/train/test_parity.py", "tests/train/test_packing.py"
NORMALISER, WINDOW, RESUME = (f"tests/train/test_{name}.py" for name in ("normaliser", "window", "resume"))

ADVANTAGES = within(
    "train/rollouts.py",
    ROLLOUTS,
    (
        "a group that nobody could score is no flat one",
        "return ~(high > low)",
        "return high == low",
        "tests/train/test_advantages.py::test_a_group_is_flat_unless_two_scores_differ",
    ),
    (
        "every epoch of new prompts has one order",
        "seed + prime * (epoch + 1)",
        "seed + prime",
        "test_prompt_stream_is_a_function_of_seed_and_position",
    ),
    (
        "a replaced prompt is padded on the wrong side",
        "(_widen(x, width, *_padding(key, pad_id)) for x in (old, new))",
        "(_widen(x, width, _padding(key, pad_id)[0], False) for x in (old, new))",
        "tests/train/test_advantages.py::test_a_replaced_group_keeps_its_padding_on_its_side",
    ),
    (
        "the cut is one token late",
        "if any(s in decode(ids[:middle]) for s in stops)",
        "if any(s in decode(ids[: middle - 1]) for s in stops)",
        "test_stop_cut_finds_the_token_that_completes_the_stop",
    ),
)

CREDIT = [
    *within(
        "train/credit.py",
        PARITY,
        (
            "the bonus is not centred on its group",
            "scaled = trainer.beta * (bonus_BK - mean_BK)",
            "scaled = trainer.beta * bonus_BK",
            "test_k1_reward_is_added_after_the_task_reward_is_scaled[schedule0-none-branch]",
        ),
    ),
    *within(
        "train/credit.py",
        "tests/train/test_credit.py",
        (
            "what was masked has a log-prob",
            "return mean.where(on.any(1), torch.nan)",
            "return mean",
            "test_a_completion_without_a_counted_token_has_no_log_prob",
        ),
        (
            "a log-prob is the whole completion's, not per token",
            "/ on.sum(1).clamp(min=1)",
            "/ 1",
            "test_a_users_own_advantage_is_shown_log_probs_lengths_and_answers[one pass of ours]",
        ),
        (
            "every answer that cannot be read is the same one",
            "self._numbers.get(number) for",
            'self._numbers.get(number, "") for',
            "test_coverage_pays_for_solutions_and_not_for_spelling",
        ),
        (
            "after an exchange the advantages are those of before",
            "            self.assign(output)",
            "            pass",
            "test_after_an_exchange_the_advantages_are_the_final_batchs",
        ),
        (
            "equal rewards are drawn again whatever the advantage",
            "        if self.plain:\n            return rollouts.flat_groups(",
            "        if True:\n            return rollouts.flat_groups(",
            "test_which_groups_teach_nothing[signed-()]",
        ),
        (
            "TRL's table keeps GRPO's advantages",
            "        log.extend(everyone.tolist())",
            "        log.extend([0.0] * len(everyone))",
            "test_advantages_are_those_of_the_formula",
        ),
        (
            "scale_rewards is forgotten where no part makes the advantages",
            "scale=self.args.scale_rewards",
            'scale="group"',
            "test_coverage_pays_for_solutions_and_not_for_spelling",
        ),
    ),
]

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
            "TRL's penalty stays on beside ours",
            'with in_place(self, self.beta if self.estimator in IN_TRL else 0.0, "beta"):',
            'with in_place(self, self.beta, "beta"):',
            "test_other_estimators_are_the_formula[grpo-schedule15-k2]",
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
        "train/recorders.py",
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
        "runs/resumable.py",
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
        "runs/checkpoint.py",
        RESUME,
        (
            "the oldest checkpoint is taken",
            "    return sorted(numbered, key=lambda p: int(p.name[11:]), reverse=True)",
            "    return sorted(numbered, key=lambda p: int(p.name[11:]))",
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

TAUGHT = [
    *within(
        "train/hidden.py",
        "tests/train/test_taught.py",
        (
            "an evaluation teaches the head",
            'if trainer.model.training and getattr(trainer.guide, "learns", False):',
            'if getattr(trainer.guide, "learns", False):',
            "test_an_evaluation_teaches_it_nothing",
        ),
        (
            "the state after a token is taken for the one before it",
            "whole[:, -columns:].clone()",
            "whole[:, -columns - 1 : -1].clone()",
            "test_the_head_sees_the_state_after_each_token_and_learns_after_it_spoke",
        ),
    ),
    *within(
        "train/packing.py",
        "tests/train/test_taught.py",
        (
            "in micro-batches the state after the prompt is left out",
            "after = (before[:, None] - 1 + torch.arange(keep + 1, device=ids.device))",
            "after = (before[:, None] + torch.arange(keep + 1, device=ids.device))",
            "test_the_head_sees_the_state_after_each_token_and_learns_after_it_spoke",
        ),
    ),
    *within(
        "train/config.py",
        "tests/train/test_taught.py",
        (
            "a bonus for completions is centred by tokens",
            'if self.guide_center == "batch" and guide.pays_completions:',
            "if False:",
            "test_what_cannot_work_is_refused",
        ),
    ),
    *within(
        "lab/difficulty.py",
        "tests/lab/test_difficulty.py",
        (
            "a group's end is that of the first solve rate, not of its own",
            "guide.bonus(p, beta))",
            "guide.bonus(rates, beta))",
            "test_exact_credit_ends_in_the_closed_form_and_delta_grows_with_difficulty",
        ),
    ),
]

TOKENS = [
    *within(
        "train/token_credit.py",
        "tests/train/test_tokens.py",
        (
            "KL-Cov pulls by rounding at the first update",
            "if PULL not in inputs or int(inputs[BORN]) == trainer.state.global_step:",
            "if PULL not in inputs:",
            "test_rounding_between_two_passes_is_no_movement",
        ),
        (
            "a run with one update per rollout batch is let through",
            "args.gradient_accumulation_steps % every == 0",
            "args.gradient_accumulation_steps == every",
            "test_a_sentence_for_what_cannot_be",
        ),
        (
            "the pull has a sign",
            '(logps - inputs["old_per_token_logps"]).abs()',
            '(logps - inputs["old_per_token_logps"])',
            "test_kl_cov_holds_from_the_second_update_on",
        ),
    ),
    *within(
        "train/trainer.py",
        "tests/train/test_tokens.py",
        (
            "nobody asks for the tokens' advantages",
            "        token_credit.assign(self, output)\n",
            "",
            "test_a_clipped_token_is_one_whose_advantage_is_0",
        ),
    ),
    *within(
        "train/microbatches.py",
        "tests/train/test_tokens.py",
        (
            "rows whose tokens are pulled are left out",
            "pushed = pushed | (inputs[PULL] != 0)",
            "pass",
            "test_a_row_whose_tokens_are_pulled_weighs",
        ),
    ),
    *within(
        "train/recorders.py",
        "tests/train/test_tokens.py",
        (
            "TRL's own pass makes no entropies for the tokens",
            "needs = self.trainer.guide_needs | (frozenset() if tokens is None else tokens.reads)",
            "needs = self.trainer.guide_needs",
            "test_entropy_is_added_to_each_token",
        ),
    ),
]

CHANCE = within(
    "launch/random_reward.py",
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

MUTANTS = [*ADVANTAGES, *CREDIT, *TOKENS, *TRAINER, *TAUGHT, *CHANCE]
