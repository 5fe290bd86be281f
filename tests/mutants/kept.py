"""Kept answers: the divergence, which answers, the pass over them."""

from tests.mutants.mutant import within

KEPT, DISTRIBUTED = "tests/train/test_kept.py", "tests/train/test_distributed.py"

DIVERGENCE = within(
    "anchor/covering.py",
    "tests/anchor/test_covering.py",
    (
        "forward KL pulls the other way",
        "        return -log_u\n",
        "        return log_u\n",
        "test_value_and_gradient_are_the_divergences_at_the_prefixes_that_the_reference_visits",
    ),
    (
        "half of the Jensen–Shannon divergence is forgotten",
        " + math.log(2) - softplus(log_u))",
        ")",
        "test_value_and_gradient_are_the_divergences_at_the_prefixes_that_the_reference_visits",
    ),
    (
        "no gradient through the ratio",
        "torch.exp(log_u) *",
        "torch.exp(log_u.detach()) *",
        "test_value_and_gradient_are_the_divergences_at_the_prefixes_that_the_reference_visits",
    ),
)
FOLDER = within(
    "train/keep_from.py",
    KEPT,
    (
        "wrong answers are kept",
        'if verdict == 1 and finish == "stop")',
        'if finish == "stop")',
        "test_right_finished_and_the_first_ones_of_each_problem",
    ),
    (
        "truncated answers are kept",
        'if verdict == 1 and finish == "stop")',
        "if verdict == 1)",
        "test_right_finished_and_the_first_ones_of_each_problem",
    ),
    (
        "answers longer than training's are kept",
        "if 0 < len(ids) <= args.max_completion_length:",
        "if 0 < len(ids):",
        "test_right_finished_and_the_first_ones_of_each_problem",
    ),
    (
        "any answers in place of the first",
        "sorted([*best[keys[i]], one])[: args.keep_per_problem]",
        "[*best[keys[i]], one][: args.keep_per_problem]",
        "test_right_finished_and_the_first_ones_of_each_problem",
    ),
    (
        "a folder of held-out problems passes",
        'if strangers and split != "train":',
        'if strangers and split == "validation":',
        "test_held_out_problems_are_never_learnt",
    ),
    (
        "another model's answers pass",
        'if not same and not theirs.endswith(".gguf"):',
        'if not theirs and not theirs.endswith(".gguf"):',
        "test_weights_that_were_replaced_are_not",
    ),
    (
        "an adapter's answers pass for its base's",
        "if bool(adapter) != starts_from_adapter(model):",
        "if adapter and False:",
        "test_an_adapter_that_is_trained_further",
    ),
    (
        "a sharper π_ref's answers pass",
        "differ = [name for name in SAMPLING if theirs[name] != ours[name]]",
        "differ = [name for name in SAMPLING if theirs[name] > ours[name] + 1]",
        "test_a_folder_of_another_run",
    ),
    (
        "other prompts pass",
        "if ids != tuple(there):",
        "if len(ids) < 1:",
        "test_a_folder_of_another_run, test_an_id_that_stood_for_another_problem",
    ),
    (
        "another chat template passes",
        'if settings.get("inputs", {}).get(part, value) != value:',
        'if settings.get("inputs", {}).get(part, value) is None:',
        "test_a_folder_of_another_run",
    ),
)
PASS = within(
    "train/rehearsal.py",
    KEPT,
    (
        "one batch a slice, not an optimizer step",
        "if not accelerator.sync_gradients:",
        "if accelerator is None:",
        "test_micro_batches_and_slices_change_nothing",
    ),
    (
        "the coefficient weighs nothing",
        "accelerator.backward(loss * (self.coef * world / tokens))",
        "accelerator.backward(loss * (world / tokens))",
        "test_forward_kl_by_hand",
    ),
    (
        "a mean of each part's means",
        "accelerator.backward(loss * (self.coef * world / tokens))",
        "accelerator.backward(loss * (self.coef * world / len(self.parts(rows)[rank]) / logp.numel() / tokens))",
        "test_micro_batches_and_slices_change_nothing",
    ),
    (
        "every step has the same answers",
        "self.at(trainer.state.global_step), accelerator",
        "self.at(0), accelerator",
        "test_each_step_has_its_own_answers",
    ),
    (
        "ranks' gradients add up to a part of one's",
        "(self.coef * world / tokens))  # ranks",
        "(self.coef / tokens))  # ranks",
        f"{DISTRIBUTED}::test_two_processes_give_the_losses_gradients_and_weights_of_one",
    ),
    (
        "an answer that fills up weighs",
        "float(place >= 0)",
        "float(place >= -1)",
        f"{DISTRIBUTED}::test_two_processes_give_the_losses_gradients_and_weights_of_one",
    ),
    (
        "the policy is its own reference",
        """with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):""",
        "with torch.no_grad():",
        "test_js_by_hand",
    ),
    (
        "ranks run unequal numbers of passes",
        "packing.split_to(cut, most, [-1] * most) if cut else [[-1]] * most for cut in cuts",
        "cut if cut else [[-1]] for cut in cuts",
        "test_ranks_share_a_batch_and_run_as_many_passes",
    ),
    (
        "a folder that has grown goes unnoticed",
        "if digest_then not in (None, self.digest):",
        "if digest_then == '':",
        "tests/train/test_resume.py::test_a_folder_of_kept_answers_that_has_grown_is_refused",
    ),
)
MUTANTS = DIVERGENCE + FOLDER + PASS
