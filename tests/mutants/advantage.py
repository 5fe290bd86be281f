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
]
