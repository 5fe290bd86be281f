"""A GRPOTrainer whose completions end where the task says, on every backend, and whose groups share their prompt.

With LoRA its sampler gets merged weights that were never in the model: TRL merges the adapter into the base and out again, each
time rounded, so that a base in bfloat16, which is also the reference, wanders off a little at every step.
"""

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

import torch
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from sage_rlvr.errors import UserError
from sage_rlvr.runs.resumable import ResumableTrainer
from sage_rlvr.sampler.ahead import Ahead
from sage_rlvr.sampler.colocated import BriefEngine
from sage_rlvr.sampler.server import Server
from sage_rlvr.train import measure, rollouts


class GeneratingTrainer(ResumableTrainer):
    prompt_stream = rollouts.PromptStream
    stop_strings: list[str]
    ahead: Ahead | None = None
    server: Server | None = None
    _finished: Tensor | None = None  # (B,) of the latest rollout batch

    def _set_stop_strings(self, stops: list[str]) -> None:
        self.stop_strings = stops
        if not stops:
            return
        if self.use_vllm:
            more = {"stop": stops, "include_stop_str_in_output": True}
            self.vllm_generation.generation_kwargs = {**self.vllm_generation.generation_kwargs, **more}
        elif self.use_transformers_continuous_batching:
            raise UserError(
                "stop_strings does not work with use_transformers_continuous_batching: turn one of them off."
            )
        else:
            self.generation_config.stop_strings = stops

    def _brief_engine(self) -> None:
        """A colocated engine hands on ids and log-probs alone."""
        generation = self.vllm_generation
        if generation.mode == "colocate":
            BriefEngine(generation.llm)
            given = generation.generation_kwargs or {}
            if not (self.stop_strings or given.get("stop")):  # these are looked for in the text
                generation.generation_kwargs = {"detokenize": False, **given}

    def _keep_base(self) -> None:
        """The sampler's weights are merged beside the model, where a merge is W + BA and no more."""
        generation = self.vllm_generation
        if can_merge_beside(self.model) and not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            generation._iter_named_params = partial(merged_beside, generation)

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], Any, dict[str, Any]]:
        """A group's prompt is rendered and tokenised once, not once per completion."""
        if self._is_vlm or self.environment_factories is not None:
            return super()._tokenize_prompts(prompts)
        groups = [(prompt, len(list(rows))) for prompt, rows in groupby(prompts)]
        ids, images, fields = super()._tokenize_prompts([prompt for prompt, _ in groups])
        if images is not None or fields:
            return super()._tokenize_prompts(prompts)
        return [list(row) for row, (_, times) in zip(ids, groups) for _ in range(times)], None, {}

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any) -> Any:
        ahead = self.ahead
        return super().get_batch_samples(epoch_iterator if ahead is None else ahead.reading(epoch_iterator), *args)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self.ahead is not None:
            self.ahead.at(generation_batch)
        return super()._prepare_inputs(generation_batch)

    def _generate_single_turn(self, prompt_ids: list[list[int]], *rest: Any, **more: Any) -> Any:
        if self.ahead is not None:
            if self.model.training:
                return self.ahead.answer(lambda ids: self._draw(ids, *rest, **more), prompt_ids)
            self.ahead.wait()  # the engine does one thing at a time
        return self._draw(prompt_ids, *rest, **more)

    def _draw(self, prompt_ids: list[list[int]], *rest: Any, **more: Any) -> tuple[list[list[int]], Any]:
        if self.use_vllm or not self.stop_strings:
            ids, logprobs = super()._generate_single_turn(prompt_ids, *rest, **more)
        else:
            with rollouts.tokenizer_in_generate(self.accelerator.unwrap_model(self.model), self._tokenizer):
                ids, logprobs = super()._generate_single_turn(prompt_ids, *rest, **more)
        if self.server is not None:
            self.server.check(len(ids) == len(prompt_ids))
        if not self.stop_strings:
            return ids, logprobs
        cuts = [rollouts.stop_cut(row, self.stop_strings, self._tokenizer.decode) for row in ids]  # None keeps the row
        ids = [row[:cut] for row, cut in zip(ids, cuts)]
        return ids, logprobs and [row[:cut] for row, cut in zip(logprobs, cuts)]

    def _generate(self, prompts: list) -> tuple:
        if not (self.tools or self.rollout_func):  # nobody writes into a prompt: TRL's deep copy is one per group
            prompts = [same[0] for _, rows in groupby(prompts) for same in [list(rows)] for _ in same]
        out = super()._generate(prompts)
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        finished = [bool(ids) and ids[-1] in ends for ids in out[1]]
        if self.stop_strings:
            tails = [self._tokenizer.decode(ids[-4 * max(map(len, self.stop_strings)) :]) for ids in out[1]]
            finished = [f or any(s in tail for s in self.stop_strings) for f, tail in zip(finished, tails)]
            mode = "train" if self.model.training else "eval"
            measure.correct_lengths(self._metrics[mode], out[1], out[2], finished, self.accelerator)
        self._finished = torch.tensor(finished, device=self.accelerator.device)
        return out

    def truncated(self) -> list[bool]:
        """Of the completions generated last, those that the length limit ended: what rewards are told of them."""
        return [] if self._finished is None else (~self._finished).tolist()


def can_merge_beside(model: Any) -> bool:
    layers = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
    return bool(layers) and all(
        type(m) is Linear and not m.lora_variant and not any(m.lora_bias.values()) and m.weight.is_floating_point()
        for m in layers
    )


def merged_beside(generation: Any) -> Iterator[tuple[str, Tensor]]:
    """What TRL's _iter_named_params yields for a PEFT model, with no weight of the model touched."""
    model, own = generation.model, ".base_layer.weight"
    for name, param in model.named_parameters():
        plain, weight = name.removeprefix("base_model.model.").replace(".base_layer", ""), param.data
        if model.prefix in plain or "original_module" in plain:
            continue
        if name.endswith(own):
            layer = model.get_submodule(name.removesuffix(own))
            deltas = [layer.get_delta_weight(a) for a in layer.active_adapters if a in layer.lora_A]
            weight = torch.stack([weight.float(), *(d.float() for d in deltas)]).sum(0).to(weight.dtype)
        yield generation._fix_param_name_to_vllm(plain, extra_prefixes=["modules_to_save.default."]), weight
