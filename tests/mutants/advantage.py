"""advantage/: how rewards become advantages."""

from tests.mutants.mutant import within

TESTS = "tests/advantage/test_advantage.py"

MUTANTS = [
    *within(
        "advantage/prompts.py",
        TESTS,
        (
            "maxrl does not divide by the mean",
            "(r.pay - mean) / mean.clamp(min=1e-12)",
            "r.pay - mean",
            "test_maxrl_is_the_gradient_of_the_log_likelihood_series_cut_short",
        ),
        (
            "pkpo's baseline counts the completion itself",
            "others = pass_at(n - 1, c - right, k)",
            "others = pass_at(n, c, k)",
            "test_pkpo_is_the_gradient_of_pass_at_k",
        ),
        (
            "passk gives a wrong completion no credit for its company",
            "(1 - rho if right else pass_at(n - 1, c, k - 1) - rho) / sigma",
            "(1 - rho if right else -rho) / sigma",
            "test_passk_times_its_normaliser_is_the_gradient_of_pass_at_k",
        ),
        (
            "focal favours the prompts that are solved",
            "return (1 - p) ** self.gamma",
            "return p**self.gamma",
            "test_special_cases",
        ),
    ),
    *within(
        "advantage/answers.py",
        TESTS,
        (
            "unlikely pays the likely",
            "(logps[:, None, :] < logps[:, :, None]).sum(-1)",
            "(logps[:, None, :] > logps[:, :, None]).sum(-1)",
            "test_unlikely_pays_by_rank",
        ),
        (
            "the anchor is the least likely right answer",
            "anchor = among.argmax(1, keepdim=True)",
            "anchor = torch.where(right, whole, torch.inf).argmin(1, keepdim=True)",
            "test_alike_makes_right_answers_equally_likely",
        ),
        (
            "wrong answers are spread too",
            "return self.gamma * torch.where(r.right, -logps, logps)",
            "return self.gamma * -logps",
            "test_smooth_spreads_right_answers_and_not_wrong_ones",
        ),
    ),
    *within(
        "advantage/tokens.py",
        "tests/advantage/test_tokens.py",
        (
            "the means count padding",
            "x.sum() / self.mask.sum().clamp(min=1)",
            "x.mean()",
            "test_covariance_is_numpys_and_its_mean_is_their_covariance",
        ),
        (
            "rounding is a covariance",
            "x = torch.where(self.mask, x - least, 0.0)",
            "x = torch.where(self.mask, x, 0.0)",
            "test_advantages_all_alike_choose_nothing",
        ),
        (
            "the noise is drawn for padding too",
            "drawn = torch.rand(int(self.mask.sum()), generator=self.generator, dtype=torch.float64)",
            "drawn = torch.rand(self.mask.shape, generator=self.generator, dtype=torch.float64)[self.mask.cpu()]",
            "test_the_choice_is_the_tokens_not_the_paddings",
        ),
        (
            "Clip-Cov takes the largest in place of any",
            "largest(-t.noise(), within,",
            "largest(covariance, within,",
            "test_clip_cov_drops_a_random_share_of_those_within_its_bounds",
        ),
        (
            "Clip-Cov has no upper bound",
            "t.mask & (covariance > self.low) & (covariance < self.high)",
            "t.mask & (covariance > self.low)",
            "test_clip_cov_drops_a_random_share_of_those_within_its_bounds",
        ),
        (
            "a small batch has no token chosen",
            "max(1, int(share * counted))",
            "int(share * counted)",
            "test_one_goes_at_the_least_and_no_more_than_qualify",
        ),
        (
            "all equal ones are taken",
            "level[: count - int(above.sum())]",
            "level",
            "test_of_equal_ones_the_first",
        ),
        (
            "KL-Cov pulls where nothing is to be held back",
            "largest(covariance, covariance > 0,",
            "largest(covariance, t.mask,",
            "test_of_equal_ones_the_first, test_advantages_all_alike_choose_nothing",
        ),
        (
            "uncertain tokens of wrong answers are pushed down further",
            "t.advantages.abs() / self.kappa)",
            "t.advantages / self.kappa)",
            "test_entropy_adds_up_to_half_and_turns_no_sign",
        ),
        (
            "padding keeps what it held",
            "return torch.where(t.mask, x, 0.0).to(t.advantages.dtype)",
            "return x.to(t.advantages.dtype)",
            "test_padding_may_hold_anything, test_the_choice_is_the_tokens_not_the_paddings",
        ),
    ),
]
