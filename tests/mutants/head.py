"""head/: log-probs and entropies whose logits are never all there."""

from tests.mutants.mutant import within

REFERENCE, FUNCTIONS = "tests/head/test_reference.py", "tests/head/test_functions.py"
MOVED = "test_what_was_summed_before_is_moved_along"

MUTANTS = [
    *within(
        "head/softmax.py",
        REFERENCE,
        (
            "the moment is not shifted when its reference moves",
            "factor * (rows.moment + rows.mass * shift) + lean",
            "factor * rows.moment + lean",
            f"{MOVED}[read]",
        ),
        (
            "what was summed is not scaled down when the reference moves",
            "rows.mass.mul_(factor).add_(e.sum(1))",
            "rows.mass.add_(e.sum(1))",
            f"{MOVED}[read]",
        ),
        (
            "the sum of directions is not scaled down with it",
            "        rescale(sum_MD, factor)",
            "        pass",
            f"{MOVED}[frozen]",
        ),
    ),
    *within(
        "head/softmax.py",
        FUNCTIONS,
        (
            "the target's own exponential is counted twice",
            "e.scatter_(1, place, torch.where(inside.unsqueeze(1), 0.0, e.gather(1, place)))",
            "pass",
            "test_float32_agrees_with_float64[frozen-plain-False]",
        ),
        (
            "a log-prob near 0 drowns in rounding",
            "logps = torch.where(e > self.mass, -torch.log1p(self.mass / e), gap - log_total)",
            "logps = gap - log_total",
            "test_a_policy_that_is_sure_keeps_its_relative_precision",
        ),
        (
            "the gradient forgets the temperature",
            "grad *= shape.gain",
            "grad *= shape.logit_scale",
            "test_float32_agrees_with_float64[recomputed-temperature-False]",
        ),
        (
            "the slope of the soft cap is left out of the gradient",
            "kept_MC.copy_(e if slope is None else e * slope)",
            "kept_MC.copy_(e)",
            "test_float32_agrees_with_float64[frozen-cap-False]",
        ),
        (
            "the entropy's gradient has the wrong sign",
            "grad -= grad_entropies_M.unsqueeze(1) * lean",
            "grad += grad_entropies_M.unsqueeze(1) * lean",
            "test_the_entropy_has_a_gradient_when_asked[plain-False]",
        ),
    ),
    *within(
        "head/functions.py",
        REFERENCE,
        (
            "the kept exponentials are not scaled down when the reference moves",
            "run.rescale(plane_nV[a:b, :c], rows.factor)",
            "pass",
            f"{MOVED}[kept]",
        ),
    ),
    *within(
        "head/functions.py",
        FUNCTIONS,
        (
            "the answers go to the first rows, not to those that count",
            "x.new_zeros(total).index_copy(0, rows_n, x)",
            "x.new_zeros(total).index_copy(0, torch.arange(len(x)), x)",
            "test_masked_positions_are_skipped[frozen]",
        ),
        (
            "each tile of tokens overwrites the weight's gradient",
            "product(d_tile[: d - c], grad_MC.t(), hidden_nD[a:b], add=a > 0)",
            "product(d_tile[: d - c], grad_MC.t(), hidden_nD[a:b])",
            "test_float32_agrees_with_float64[recomputed-plain-False]",
        ),
    ),
    *within(
        "head/kernels.py",
        "tests/head/test_kernels.py",
        (
            "in Triton: the moment is not shifted when its reference moves",
            "factor * (tl.load(moment_ptr + row) + mass_before * shift) + moment",
            "factor * tl.load(moment_ptr + row) + moment",
            "test_every_case_agrees_with_float64",
        ),
    ),
    *within(
        "head/plug.py",
        "tests/head/test_plug.py",
        (
            "other trainers of the process keep our head",
            "        setattr(module, name, theirs)",
            "        pass",
            "test_theirs_is_back_after_the_pass_and_after_a_failure",
        ),
    ),
]
