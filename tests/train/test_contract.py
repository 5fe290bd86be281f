"""The seam into TRL, pinned. When one of these fails after an upgrade, read its message and then train/trainer.py."""

import inspect
import re

import torch
import trl
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import callbacks, grpo_trainer, utils

from . import tiny


def source(function):
    return inspect.getsource(function)


def says(found, what):
    assert found, f"TRL {trl.__version__} moved the seam: {what} (train/trainer.py relies on it)."


def test_version_is_the_one_that_was_tested():
    says(trl.__version__.startswith("1.16."), "the tested version is 1.16; run the parity tests, then change the pin")


def test_the_reference_is_read_after_the_forward_pass():
    code = source(GRPOTrainer._compute_loss)
    forward = code.find("self._get_per_token_logps_and_entropies(")
    read = [m.start() for m in re.finditer(r'inputs\["ref_per_token_logps"\]', code)]
    says(
        forward > 0 and code.count("self._get_per_token_logps_and_entropies(") == 1,
        "_compute_loss makes one forward pass",
    )
    says(
        len(read) == 1 and read[0] > forward, '_compute_loss reads inputs["ref_per_token_logps"] once, after that pass'
    )
    says("compute_entropy=True" in code, "_compute_loss asks for entropies")
    says("if self.beta != 0.0:" in code, "self.beta = 0 switches TRL's own penalty off")
    says("use_bias_correction_kl" in code, "use_bias_correction_kl multiplies k3 by the ratio")
    says('inputs.get("old_per_token_logps")' in code, "old log-probs come from inputs")


def test_the_helper_takes_and_gives_what_we_pass_on():
    names = list(inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters)
    says(
        names[:5] == ["self", "model", "input_ids", "attention_mask", "logits_to_keep"], "the helper's first arguments"
    )
    says({"batch_size", "compute_entropy", "compute_aux_loss"} <= set(names), "the helper's keywords")
    says(
        "return logps, entropies, aux_loss" in source(GRPOTrainer._get_per_token_logps_and_entropies),
        "its three answers",
    )


def test_rollouts_hold_what_shaping_needs():
    code = source(GRPOTrainer._generate_and_score_completions)
    for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"):
        says(f'"{key}": {key}' in code, f"the rollout batch has {key}")
    for key in ("old_per_token_logps", "ref_per_token_logps", "tool_mask"):
        says(f'output["{key}"] = {key}' in code, f"the rollout batch has {key}, the very tensor the pass gave")
    says("self.mask_truncated_completions" in code, "overlong filtering is decided by self.mask_truncated_completions")
    says(
        "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)" in code,
        "rewards by _calculate_rewards",
    )
    says("completion_ids," in source(GRPOTrainer._generate), "_generate gives completion ids second")


def test_the_buffer_is_ours_to_checkpoint():
    code = source(GRPOTrainer._prepare_inputs)
    says("self._step % generate_every == 0 or self._buffered_inputs is None" in code, "_step and _buffered_inputs")
    says(
        "shuffle_sequence_dict" in code and "split_tensor_dict" in code, "extra keys of a rollout batch travel with it"
    )
    says("self._step += 1" in source(GRPOTrainer.training_step), "_step counts micro-batches")


def test_the_next_batch_can_be_drawn_ahead():
    """rollout_ahead (sampler/ahead.py) asks for the next prompts in TRL's own calls, and reads rows ahead."""
    loop = source(Trainer._run_epoch)
    says("self.get_batch_samples(epoch_iterator," in loop, "batches come by get_batch_samples")
    says(
        "next(epoch_iterator)" in source(Trainer.get_batch_samples),
        "which takes them from the iterator that it is given",
    )
    says("self._prepare_inputs(inputs)" in source(Trainer.training_step), "a micro-step hands on the rows it was given")
    says(
        "self._generate_and_score_completions(generation_batch)" in source(GRPOTrainer._prepare_inputs),
        "and rollouts are made of these",
    )
    says(
        'prompts = [x["prompt"] for x in inputs]' in source(GRPOTrainer._generate_and_score_completions),
        "of their prompts",
    )
    code = source(VLLMGeneration.generate)
    says(
        "self.vllm_client.generate(" in code and code.count("broadcast_object_list") == 1,
        "the first process asks the server",
    )
    sync = source(GRPOTrainer._generate_single_turn)
    says(0 < sync.find("self.vllm_generation.sync_weights()") < sync.find("self.vllm_generation.generate("),
         "weights are sent before a batch is asked for")  # fmt: skip


def test_the_rest_we_lean_on():
    says({"outputs", "temperature", "cast_lm_head_to_fp32"} <= set(inspect.signature(utils.add_fused_lm_head).parameters),
         "add_fused_lm_head can give entropies")  # fmt: skip
    says("generation_kwargs.update(self.generation_kwargs)" in source(VLLMGeneration.generate),
         "vLLM's sampling takes generation_kwargs at each call")  # fmt: skip
    says("use_bias_correction_kl" in GRPOConfig.__dataclass_fields__, "use_bias_correction_kl is a field")
    fields = ("data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed")
    says(set(fields) <= set(inspect.signature(utils.RepeatSampler).parameters), "RepeatSampler's arguments")


def test_the_model_scores_labels():
    """Micro-batches ask the model as TRL's helper does, with rows of their own making."""
    code = source(GRPOTrainer._get_per_token_logps_and_entropies)
    says("model(**model_inputs, labels=labels, fused_lm_head=True)" in code, "labels go in, fused_lm_head=True")
    says("with self.accelerator.autocast():" in code, "under the accelerator's autocast")
    says("outputs.log_probs[:, -logits_to_keep:]" in code, "log_probs come out, of tokens 1 to T − 1")
    fused = source(utils.add_fused_lm_head)
    says("labels = labels[:, 1:]" in fused and "mask = labels != -100" in fused, "labels are shifted, -100 is left out")


def test_the_reference_of_an_adapter_is_made_by_name():
    code = source(GRPOTrainer._generate_and_score_completions)
    says(code.count("with use_adapter(model, adapter_name=") == 1, "use_adapter makes the reference of an adapter")
    says(hasattr(grpo_trainer, "use_adapter"), "use_adapter is a name of the trainer's module")
    model = tiny.model()
    other = tiny.model(seed=1)
    callbacks.SyncRefModelCallback._sync_target_model(model, other, 1.0)
    says(all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters())), "α = 1 copies, bit for bit")


def test_vllms_engine_is_started_by_name():
    """vllm_kv_cache_gib adds an argument of vLLM's that TRL does not hand on."""
    code = source(VLLMGeneration._init_vllm)
    says("self.llm = LLM(" in code, "TRL calls the LLM of its module")
    says("kv_cache_memory_bytes" not in code, "and does not size the cache itself")


def test_prompts_are_tokenised_in_one_place():
    code = source(GRPOTrainer._tokenize_prompts)
    says(
        code.rstrip().endswith("return prompt_ids, images, multimodal_fields"), "_tokenize_prompts answers three things"
    )


def test_peft_casts_inputs_in_one_place():
    from peft.tuners.lora import Linear

    says("x = self._cast_input_dtype(x, lora_A.weight.dtype)" in source(Linear.forward), "PEFT's cast (train/casts.py)")
