"""anchor/: penalties, credit, guides, schedules and noise."""

from tests.mutants.mutant import within

GUIDES = "tests/anchor/test_guides.py"

MUTANTS = [
    *within(
        "anchor/penalty.py",
        "tests/anchor/test_penalty.py",
        (
            "k3 adds log w in place of taking it off",
            "k3 = rho - log_rho - 1",
            "k3 = rho + log_rho - 1",
            "test_values_against_scalar_arithmetic",
        ),
        (
            "forward differentiates its own weight",
            "return -log_rho.detach().exp() * logps",
            "return -log_rho.exp() * logps",
            "test_gradient_is_the_named_one",
        ),
        (
            "k3+ loses the gradient of π/π_old, and is k3",
            "old = logps.detach() if old_logps is None",
            "old = logps if old_logps is None",
            "test_gradient_is_the_named_one",
        ),
        (
            "the anchor receives a gradient",
            "log_rho = (_wide(ref_logps) + _wide(log_q)).detach() - logps",
            "log_rho = (_wide(ref_logps) + _wide(log_q)) - logps",
            "test_only_logps_receive_gradient",
        ),
        (
            "bf16 log-probs are subtracted in bf16",
            "return x if x.dtype == torch.float64 else x.float()",
            "return x",
            "tests/anchor/test_precision.py::test_penalties_are_computed_in_float32",
        ),
        (
            "the bonus pays for padding",
            "per_token = torch.where(mask.bool(), _wide(ref_logps) + _wide(log_q) - _wide(logps), 0.0)",
            "per_token = _wide(ref_logps) + _wide(log_q) - _wide(logps)",
            "test_reward_credit_and_masks",
        ),
        (
            "reward-to-go pays for the past",
            "per_token.flip(-1).cumsum(-1).flip(-1)",
            "per_token.cumsum(-1)",
            "test_reward_credit_and_masks, test_k1_reward_gives_the_gradient_of_equation_6",
        ),
    ),
    *within(
        "anchor/guides.py",
        GUIDES,
        (
            "log q is not 0 where nothing counts",
            "log_q = torch.where(clean.mask, log_q.float(), 0.0)",
            "log_q = log_q.float()",
            "test_contract",
        ),
        (
            "a quantile's place is off by one",
            "    last = (mask.sum(-1, keepdim=True) - 1).clamp(min=0)",
            "    last = mask.sum(-1, keepdim=True).clamp(max=x.shape[-1] - 1)",
            "test_token_formula_without_noise",
        ),
        (
            "noise follows the row's place in the batch, not its number",
            "return s.rows if s.rows is not None else torch.arange(s.mask.shape[0], device=s.mask.device)",
            "return torch.arange(s.mask.shape[0], device=s.mask.device)",
            "test_noise_is_given_by_the_generator_and_the_row_not_by_the_batch",
        ),
        (
            "a z-score over all columns, padding too",
            "count = mask.sum(-1, keepdim=True).clamp(min=1)",
            "count = mask.shape[-1]",
            "test_token_formula_without_noise",
        ),
        (
            "the gate opens below the threshold too",
            "return guide.ratio * (h - guide.tau(h, s.mask)).clamp(min=0)",
            "return guide.ratio * (h - guide.tau(h, s.mask)).abs()",
            "test_branch_formula",
        ),
        (
            "κ is not held at κ_max",
            "return _excess(s, self).clamp(max=self.kappa_max)",
            "return _excess(s, self)",
            "test_tempered_formula_and_no_clamp",
        ),
        (
            "a checkpoint of another guide is taken",
            'if state["name"] != mine["name"]:',
            "if False:",
            "test_state_survives_a_round_trip_and_refuses_another_guide",
        ),
    ),
    *within(
        "anchor/relative.py",
        "tests/anchor/test_relative.py",
        (
            "a level guide pays for the state twice",
            "return self.kappa(s) * (-s.ref_logps - s.ref_entropies)",
            "return self.kappa(s) * (-s.ref_logps + s.ref_entropies)",
            "test_level_pays_for_no_state",
        ),
        (
            "τ is each row's own quantile",
            "return quantiles(h.reshape(1, -1), mask.reshape(1, -1), quantile)",
            "return quantiles(h, mask, quantile)",
            "test_formulas",
        ),
    ),
    *within(
        "anchor/verified.py",
        "tests/anchor/test_verified.py",
        (
            "a reward outside 0..1 is paid as it is",
            "        self.check_rewards(s.rewards)\n",
            "",
            "test_what_is_wrong_is_said_in_a_sentence",
        ),
    ),
    *within(
        "anchor/taught.py",
        "tests/anchor/test_taught.py",
        (
            "a completion's own verdict is in its group's solve rate",
            "rate = (right.sum(1, keepdim=True) - right) / others.clamp(min=1)",
            "rate = right.sum(1, keepdim=True) / known.sum(1, keepdim=True).clamp(min=1)",
            "test_at_gamma_1_the_expected_bonus_is_by_the_chance_itself",
        ),
        (
            "a long right answer earns more than a short one",
            "total / s.mask.sum(1, keepdim=True).clamp(min=1)",
            "total",
            "test_a_right_answer_earns_by_how_rarely_the_others_are_right_and_not_by_its_length",
        ),
        (
            "what nobody judged counts as wrong in the rate",
            "others = known.sum(1, keepdim=True) - known.int()",
            "others = torch.full_like(known, s.group - 1, dtype=torch.int)",
            "test_a_right_answer_earns_by_how_rarely_the_others_are_right_and_not_by_its_length",
        ),
        (
            "any reward is taken for a share of right",
            "    if len(outside):",
            "    if False:",
            "test_what_the_group_guide_cannot_take",
        ),
        (
            "a long completion teaches the head more than a short one",
            "weight = passed / passed.sum(1, keepdim=True).clamp(min=1)",
            "weight = passed.float()",
            "test_the_head_is_logistic_regression_by_adam",
        ),
        (
            "a head forgets its optimizer at a checkpoint",
            '                self._optimizer.load_state_dict(saved["optimizer"])\n',
            "",
            "test_its_state_goes_on_where_it_stopped_and_draws_no_number",
        ),
        (
            "a new head draws from the generator that samples",
            "inner = nn.utils.skip_init(nn.Linear, size, width)",
            "inner = nn.Linear(size, width)",
            "test_its_state_goes_on_where_it_stopped_and_draws_no_number",
        ),
        (
            "every process learns from its own rows",
            "sums = gather(sums[None]).sum(0)",
            "gather(sums[None])",
            "test_processes_with_half_the_rows_each_learn_what_one_learns",
        ),
    ),
    *within(
        "anchor/schedules.py",
        "tests/anchor/test_schedules.py",
        (
            "the peak decays once too often",
            "period = min(step // length, self.periods - 1)",
            "period = min(step // length, self.periods)",
            "test_equals_the_walk",
        ),
    ),
    *within(
        "anchor/noise.py",
        "tests/anchor/test_noise.py",
        (
            "radius and angle of a normal are one number",
            "uniform(key, rows, columns, stream + 1))",
            "uniform(key, rows, columns, stream))",
            "test_normal_moments_and_tail",
        ),
        (
            "the next seed's first batch has this seed's second noise",
            "(seed * 1_000_003 + rollout_batch)",
            "(seed + rollout_batch)",
            "test_no_two_batches_of_two_seeds_share_their_noise",
        ),
    ),
]
