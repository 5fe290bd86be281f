"""anchor_reset: what becomes of the reference, and of adapters that are saved."""

from tests.mutants.mutant import within

RESET = "tests/train/test_reset.py"
LATEST = "test_the_reference_is_the_policy_of_the_latest_reset"
GOING_ON = "test_going_on_across_a_reset_is_the_run_in_one_piece"
IN_USE = "test_rollouts_in_use_keep_the_reference_they_came_with"
FAILS = "test_the_policy_is_itself_again_where_the_reference_pass_fails"
ALONE = "test_one_adapter_is_saved_and_it_is_the_policys"

MUTANTS = [
    *within(
        "train/reset.py",
        RESET,
        (
            "the first reset is after the first step",
            "state.global_step % self.every == 0",
            "state.global_step % self.every == 1",
            f"{LATEST}[lora]",
        ),
        (
            "the reference follows the policy from the first reset on",
            "{name: local.clone() for name, local in self._reference().items()}",
            "self._reference()",
            f"{LATEST}[lora]",
        ),
        (
            "full fine-tuning goes half way",
            "sync_target_model(policy, ref, 1.0)",
            "sync_target_model(policy, ref, 0.5)",
            f"{LATEST}[full]",
        ),
        (
            "a given adapter keeps TRL's copy of the start",
            "return self._use_held if self.held is not None else None",
            'return self._use_held if self.held and "ref" not in self.trainer.model.peft_config else None',
            f"{LATEST}[given lora]",
        ),
        ("the policy stays at its reference", "            self._put(own)", "            pass", f"{LATEST}[lora]"),
        (
            "the policy stays at its reference where the pass fails",
            "        try:\n            yield\n        finally:\n            self._put(own)",
            "        yield\n        self._put(own)",
            FAILS,
        ),
        (
            "the metric is a mean over the log's steps",
            "][METRIC] = [float(self.count)]",
            "][METRIC].append(float(self.count))",
            f"{IN_USE}[full]",
        ),
        (
            "a resumed run has its own start for a reference",
            "                local.copy_(stored[name])",
            "                pass",
            f"{GOING_ON}[full]",
        ),
        (
            "a resumed adapter takes the policy for its reference",
            "torch.empty_like(local).copy_(stored[name]) for",
            "local.clone() for",
            f"{GOING_ON}[lora]",
        ),
        ("a resumed run counts resets from 0", "        self.count = count\n", "        pass\n", f"{GOING_ON}[lora]"),
        (
            "a rank writes rank 0's shard",
            "if self.count and (rank == 0 or self._sharded()):",
            "if self.count and rank == 0:",
            "tests/train/test_fsdp.py::test_a_sharded_reference_becomes_the_policy_and_is_saved",
        ),
        (
            "any checkpoint is gone on from",
            "if every != self.every:",
            "if False:",
            "test_a_checkpoint_without_its_reference_is_refused",
        ),
        (
            "DeepSpeed is let through",
            "if trainer.is_deepspeed_enabled or version_1:",
            "if version_1:",
            "test_weights_that_are_partitioned_otherwise_are_refused",
        ),
    ),
    *within(
        "runs/resumable.py",
        RESET,
        ("TRL's frozen copy is saved", 'aside = adapters.pop("ref", None)', "aside = None", ALONE),
        (
            "TRL's frozen copy is lost once the model is saved",
            'adapters["ref"] = aside',
            "pass",
            ALONE,
        ),
    ),
    *within(
        "train/config.py",
        RESET,
        (
            "a reset is called exact",
            "                self.anchor_reset > 0,",
            "                False,",
            "test_a_reset_ends_the_exact_case",
        ),
    ),
]
