"""stats/pass_at_k.py, stats/intervals.py and the studies' statistics."""

from tests.mutants.mutant import within

METRICS, BANDS, DRAWN = "tests/test_metrics.py", "tests/stats/test_bands.py", "tests/study/test_drawn.py"

MUTANTS = [
    *within(
        "stats/pass_at_k.py",
        METRICS,
        (
            "pass@k is off by one",
            "factors = np.arange(budget + 1, int(n_.max()) + 1)",
            "factors = np.arange(budget + 2, int(n_.max()) + 2)",
            "test_pass_at_k_is_brute_force_over_all_subsets",
        ),
        (
            "fewer misses than k still miss",
            "out[here] = np.where(wrong >= budget, with_miss, 1.0)",
            "out[here] = with_miss",
            "test_pass_at_k_is_brute_force_over_all_subsets",
        ),
        (
            "a tie counts in full",
            "share = (winners & is_right).sum(1) / np.maximum(winners.sum(1), 1)",
            "share = (winners & is_right).any(1)",
            "test_mean_and_majority_against_enumeration",
        ),
        (
            "net discovery over what changed",
            "srr, ndr = _ratio(p, p + s), _ratio(e, p + e)",
            "srr, ndr = _ratio(p, p + s), _ratio(e, e + s)",
            "test_support_by_hand",
        ),
    ),
    *within(
        "stats/intervals.py",
        "tests/stats/test_bootstrap.py",
        (
            "the paired difference is turned around",
            "        x = x - y",
            "        x = y - x",
            "test_unpaired_interval_covers_and_pairing_is_narrower",
        ),
        (
            "intervals are not widened by n/(n − 1)",
            "np.sqrt(size / (size - 1))",
            "1.0",
            "test_kept_draws_are_those_of_plain_resampling",
        ),
        (
            "95% intervals leave out 5% on each side",
            "(seed,)), [(1 - level) / 2, (1 + level) / 2])",
            "(seed,)), [1 - level, level])",
            "test_kept_draws_are_those_of_plain_resampling",
        ),
        (
            "the ends are those of all K numbers together",
            "x.min(0), x.max(0))",
            "x.min(), x.max())",
            f"{BANDS}::test_a_band_ends_where_its_own_numbers_do",
        ),
        (
            "all tasks are drawn alike",
            "resamples, (seed, i))",
            "resamples, (seed,))",
            f"{BANDS}::test_tasks_are_drawn_apart",
        ),
        (
            "the tasks' mean has the spread of their sum",
            "np.mean([d - c for d, c in zip(draws, centre)], axis=0)",
            "np.sum([d - c for d, c in zip(draws, centre)], axis=0)",
            "tests/evaluate/test_results.py::test_bands_are_the_bootstrap_of_metrics",
        ),
    ),
    *within(
        "stats/intervals.py",
        "tests/stats/test_intervals.py",
        (
            "the residual is counted by both parts",
            "max(seeds - residual, 0.0)",
            "seeds",
            "test_the_parts_by_hand",
        ),
        (
            "seeds are taken as known",
            "t_seeds**2 * self.seeds",
            "0 * t_seeds",
            "test_a_difference_lies_in_its_interval_as_often_as_it_says",
        ),
        (
            "three seeds have the normal's tails",
            "student(p, self.problem_df), student(p, self.seed_df)",
            "student(p, self.problem_df), 1.96",
            "test_the_parts_by_hand",
        ),
        (
            "many comparisons take three seeds at their word",
            "if level > 0.95:",
            "if level > 1:",
            "test_six_comparisons_at_once_are_wrong_once_in_twenty_at_most",
        ),
        (
            "the slopes are half of what they are",
            "/ (2 * step * len(strata))",
            "/ (4 * step * len(strata))",
            "test_a_linear_function_is_its_own_linearisation",
        ),
    ),
    *within(
        "stats/frontier.py",
        "tests/study/test_frontier.py",
        (
            "a point must be worse on both axes to be beaten",
            "((x < other_x) | (y < other_y))",
            "((x < other_x) & (y < other_y))",
            "test_best_is_what_nothing_beats",
        ),
        (
            "a fold adds what it should take away",
            "- np.where(below, value, 0.0)",
            "+ np.where(below, value, 0.0)",
            "test_a_fold_takes_away_what_it_added",
        ),
        (
            "heights are taken where one of the two has no frontier",
            "np.maximum(low_a, low_b), np.minimum(high_a, high_b)",
            "np.minimum(low_a, low_b), np.maximum(high_a, high_b)",
            "test_the_area_of_a_trapezium",
        ),
        (
            "arms are joined as they are listed",
            "    if any(len(n) != 1 for n in numbers):",
            "    if True:",
            "test_arms_are_joined_in_the_order_of_their_setting",
        ),
    ),
    *within(
        "stats/against.py",
        "tests/study/test_against.py",
        (
            "two seeds are judged",
            "if self.seeds < FEWEST:",
            "if self.seeds < FEWEST - 1:",
            "test_better_means_both_numbers_and_three_seeds",
        ),
        (
            "better on one is better on both",
            "if sides[0] == sides[1]:",
            'if sides[0] == sides[1] or "above" in sides:',
            "test_better_means_both_numbers_and_three_seeds",
        ),
        (
            "five variants at 95% each",
            "level = 1 - 0.05 / judged",
            "level = 0.95",
            "test_several_variants_are_judged_by_wider_intervals",
        ),
        (
            "a difference has the seeds of the variant, not of the fewer",
            "min(n, self.seeds[reference])",
            "n",
            "test_means_and_differences_by_hand",
        ),
        (
            "a difference is found every second time",
            "DETECTED = 1 + 0.84 / 1.96",
            "DETECTED = 1.0",
            "test_a_difference_of_that_size_is_found_four_times_in_five",
        ),
    ),
    *within(
        "benchmarks/claims.py",
        "tests/study/test_matched.py",
        (
            "two seeds are better",
            "self.seeds >= FEWEST and ",
            "",
            "test_arm_against_arm_at_the_same_setting",
        ),
        (
            "six settings at 95% each",
            "level = 1 - 0.05 / len(points)",
            "level = 0.95",
            "test_arm_against_arm_at_the_same_setting",
        ),
        (
            "better on one is better on both",
            "self.pass_1.low > 0 and self.pass_n.low > 0",
            "self.pass_1.low > 0 or self.pass_n.low > 0",
            "test_arm_against_arm_at_the_same_setting",
        ),
    ),
    *within(
        "benchmarks/claims.py",
        "tests/study/test_verdict.py",
        (
            "a study without the low-rate control claims a winner",
            "    if control is None:\n        return NO_CONTROL\n",
            '    if control is None:\n        return "moves the frontier"\n',
            "test_an_interval_above_0_is_no_claim_without_the_low_rate_control",
        ),
        (
            "a gain that the low rate has too is claimed",
            "    if control.gain.low <= 0:",
            "    if control.gain.low <= -9:",
            "test_a_claim_needs_a_gain_over_the_control_too",
        ),
        (
            "many families are judged at 95% each",
            "    if corrected.low <= 0:",
            "    if corrected.low <= -9:",
            "test_many_families_at_once_need_more",
        ),
    ),
    *within(
        "stats/frontier.py",
        "tests/study/test_strata.py",
        (
            "one stratum with a shared range is enough",
            "if (high > low).all() else None",
            "if (high > low).any() else None",
            "test_without_a_shared_range_in_one_stratum_nothing_is_judged",
        ),
    ),
    *within(
        "stats/matched.py",
        "tests/study/test_matched.py",
        (
            "points that chance puts outside of the frontier are judged",
            "room.mean <= max(0.0, ASTRAY * room.error)",
            "room.mean < -1",
            "test_a_point_that_draws_put_outside_of_the_frontier_is_not_judged",
        ),
    ),
    *within(
        "stats/distance.py",
        "tests/study/test_distance.py",
        (
            "the curve is a cubic in the KL, not in its root",
            "root = np.sqrt([max(r.kl, 0.0) for r in runs])",
            "root = np.array([max(r.kl, 0.0) for r in runs])",
            "test_the_curve_is_numpys_fit_through_the_references_alone",
        ),
        (
            "runs beyond the references are judged",
            "judged = (root >= root[own].min()) & (root <= root[own].max())",
            "judged = root >= root[own].min()",
            "test_runs_beyond_the_references_are_not_judged",
        ),
        (
            "four arms are a curve",
            "<= DEGREE + 1:",
            "<= DEGREE:",
            "test_too_few_references_are_no_curve",
        ),
    ),
    *within(
        "study/read.py",
        "tests/study/test_strata.py",
        (
            "the base's own samples sort the problems, whose draws the runs share",
            "_strata(probe.rights, primary",
            "_strata(base.rights, primary",
            "test_a_study_s_folder_is_read_by_its_primary_measure",
        ),
        (
            "the KL of the first fifth of training",
            "logged[-max(1, round(LAST * len(logged))) :]",
            "logged[: max(1, round(LAST * len(logged)))]",
            f"{DRAWN}::test_the_kl_is_that_of_the_end_of_training",
        ),
    ),
]
