"""SAGETrainer: TRL's GRPOTrainer with a shaped anchor. No line of TRL's loss is copied.

The seam. TRL's ``_compute_loss`` asks ``_get_per_token_logps_and_entropies`` for the policy's log-probs and entropies, then
reads ``inputs["ref_per_token_logps"]``. We hand it a shallow copy of ``inputs`` and, between the two, put ref + log q into
that copy: no extra forward pass, every loss type keeps working. ``self._recorder`` says what a forward pass is for.
Tests pin this to the installed TRL (tests/train/test_contract.py).

Dimensions, here and in every file of a training step:

    B  rows (completions) on this process          P  columns of the prompts, padded on the left
    G  rows of one group (one prompt)              T  columns of the completions, padded on the right
    W  processes: a rollout batch has W·B rows     D  width of the hidden states          V  vocabulary

Log-probs, entropies, log q and masks are (B, T); rewards (B,). Advantages are (B,), one per completion, as TRL makes them, and
become (B, T), one per token, with anchor_credit "to_go" or an advantage per token: ``rollouts.advantages_BT`` reads either.
A slice is the rows of one loss, per_device_train_batch_size of them; a micro-batch is a part of a slice.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from torch import Tensor
from trl.generation import vllm_generation
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer import grpo_trainer
from trl.trainer import utils as trl_utils
from trl.trainer.utils import add_fused_lm_head

from sage_rlvr.anchor import Signals, anchor_penalty, noise, tellable
from sage_rlvr.errors import UserError
from sage_rlvr.head import Head, covers, in_place
from sage_rlvr.runs.describe import Banner, card
from sage_rlvr.sampler.ahead import Ahead
from sage_rlvr.sampler.colocated import engine_for, own_port
from sage_rlvr.sampler.server import Server, said_plainly
from sage_rlvr.train import hidden, measure, microbatches, packing, rollouts, token_credit
from sage_rlvr.train.callbacks import LogFile, NothingToLearn, OnPolicy, PaidToRamble, replace_progress
from sage_rlvr.train.casts import keep_inputs
from sage_rlvr.train.config import SAGEConfig
from sage_rlvr.train.credit import Credit
from sage_rlvr.train.dropout import active_dropout, disable_dropout
from sage_rlvr.train.generation import GeneratingTrainer
from sage_rlvr.train.recorders import IN_TRL, LossRecorder, RolloutRecorder, diverged
from sage_rlvr.train.rehearsal import Rehearsal
from sage_rlvr.train.reset import AnchorReset
from sage_rlvr.train.reward_guard import RewardGuard


class SAGETrainer(GeneratingTrainer):
    """GRPOTrainer whose KL anchor is q·π_ref. Takes what GRPOTrainer takes, with a :class:`SAGEConfig`.

    >>> trainer = SAGETrainer("Qwen/Qwen2.5-0.5B-Instruct", accuracy_reward, SAGEConfig(guide="branch"), dataset)
    """

    _tag_names = ["trl", "grpo", "sage"]
    _name = "SAGE"
    _paper = {
        "title": "SAGE: Shaping Anchors for Guided Exploration in RLVR of LLMs",
        "id": "2605.18864",
        "citation": "@misc{sage2026,\n  title = {{SAGE: Shaping Anchors for Guided Exploration in RLVR of LLMs}},\n"
        "  year = 2026,\n  eprint = {arXiv:2605.18864}\n}",
    }

    data_name: str | None = None  # what the banner calls the training set
    card_more = ""  # a section of the model card: of data that the trainer does not know
    beta: float
    mask_truncated_completions: bool

    def __init__(self, model: Any, reward_funcs: Any = None, args: SAGEConfig | None = None, *rest: Any, **more: Any):
        keep = more.pop("keep_dataset", None)  # whose right answers may be kept, where more than are trained on
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = SAGEConfig(f"{name.split('/')[-1] or 'model'}-SAGE")
        if not isinstance(args, SAGEConfig):
            raise UserError(
                f"SAGETrainer takes a SAGEConfig, not {type(args).__name__}: build the config with SAGEConfig(...)."
            )
        self.guide = args.make_guide()
        self.guide_needs = frozenset(self.guide.needs) if self.guide is not None else frozenset()
        self.credit = Credit(self, args)
        self.estimator = args.anchor_estimator
        self.whole_batch = args.wants_whole_batch()
        self._recorder: RolloutRecorder | LossRecorder | None = None
        # (slice of the rollout buffer, micro-batch of it) → log q, where no sampling pass gave it: then a buffer ends with an
        # optimizer step, so that no checkpoint falls inside it and none needs to hold this
        self._held: dict[tuple[int, int], Tensor] = {}
        self._stream: rollouts.PromptStream | None = None
        self._head: Head | None = None
        self._seconds: dict[str, float] = {}  # of each part of this step's rollouts
        self.measured: list[measure.PerToken] | None = None  # of a slice in micro-batches, until its end
        self._told: set[str] = set()
        self._guard = RewardGuard(self, args.reward_timeout_s)
        own_port(args)
        with in_place(vllm_generation, engine_for(args), "LLM"), said_plainly(args):
            super().__init__(model, reward_funcs, args, *rest, **more)
        if args.use_vllm:
            set_seed(args.seed, device_specific=True)  # the engine has set all of this process's to its own
            self._keep_base()
        self._watch = hidden.Watch(self.accelerator.unwrap_model(self.model), self.guide_needs)
        keep_inputs(self.model)
        if args.disable_dropout:
            disable_dropout(self.model)  # a reference is in evaluation mode
        elif active := active_dropout(self.model):
            self.tell("dropout", f"the policy has {active}: its log-probs are then not those it sampled with, and every estimate "
                      "of the KL holds that noise; disable_dropout=true turns it off.")  # fmt: skip
        self._head = self._make_head()
        self.penalty_in_loss = (self.beta != 0 and self.estimator != "k1-reward") or self._entropy_bonus_enabled
        microbatches.check(self)
        self.rehearsal = Rehearsal(self, keep or self.train_dataset) if args.keep_from is not None else None
        if self.ref_model is not None and "ref_entropies" in self.guide_needs:
            inner = self.accelerator.unwrap_model(self.ref_model)
            head = {"temperature": self.temperature, "cast_lm_head_to_fp32": args.cast_lm_head_to_fp32}
            add_fused_lm_head(inner, outputs=("log_probs", "entropy"), **head)
        self._set_stop_strings(args.stop_strings or [])
        if args.use_vllm:
            self._brief_engine()
        if args.use_vllm and args.vllm_mode == "server" and self.rollout_func is None:
            self.server = Server(self)
        self.ahead = Ahead(self) if args.rollout_ahead else None
        self._anchor_reset = AnchorReset(self)
        self.add_callback(self._guard)
        self.add_callback(LogFile())
        self.add_callback(NothingToLearn())
        one_update = self.num_iterations * args.steps_per_generation == args.gradient_accumulation_steps
        if self.guide is None and one_update and self.ahead is None:
            self.add_callback(OnPolicy())
        if self.guide is not None and self.estimator == "k1-reward":
            self.add_callback(PaidToRamble())
        self.add_callback(Banner(self))
        replace_progress(self)
        if self.estimator == "k1-reward":
            departures = "; ".join(args.departures())
            exact = "the exact case: the gradient is that of Eq. 6."
            self.tell("gradient", "k1-reward, " + (f"not the exact case: {departures}" if departures else exact))

    def tell(self, key: str, sentence: str, every_rank: bool = False) -> None:
        """Prints it once per run and key, by the first process or by each that comes here."""
        if key not in self._told and (every_rank or self.accelerator.is_main_process):
            print(f"sage: {sentence}")
        self._told.add(key)

    def log_values(self, values: dict[str, float]) -> None:
        """For the log of this mode, beside TRL's metrics: averaged over the steps of a log."""
        for name, value in values.items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)

    # ---- rewards ---------------------------------------------------------------------------------------------------

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        inputs = [{**row, "truncated": cut} for row, cut in zip(inputs, self.truncated(), strict=True)]
        with measure.timed(self._seconds, "reward"):
            per_func = self._guard.rewards(
                super()._calculate_rewards, inputs, prompts, completions, completion_ids_list
            )
        self.credit.judged(per_func, completions)
        return per_func

    # ---- rollouts --------------------------------------------------------------------------------------------------

    def _generate(self, prompts: list) -> tuple:
        with measure.timed(self._seconds, "generate"):
            return super()._generate(prompts)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._seconds = {}  # held-out sampling between two steps is not counted
        with measure.timed(self._seconds, "rollout"):
            output = self._make_rollouts(inputs)
        if self.model.training:
            self.log_values({f"time/{part}": seconds for part, seconds in self._seconds.items()})
        return output

    def _make_rollouts(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        training = self.model.training
        output = self._roll_out(inputs)
        if training and self.args.dynamic_sampling:
            output = rollouts.exchange_flat_groups(self, output)
        if training:
            self._held.clear()
        self._shape_rollouts(output)
        token_credit.assign(self, output)
        self.credit.clear(output)
        return output

    def _roll_out(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """One of TRL's rollout batches, with what shaping needs beside it under ``sage_`` keys, all (B, …)."""
        self._recorder = recorder = RolloutRecorder(self)
        masked = self.mask_truncated_completions
        self.mask_truncated_completions = masked and not self.stop_strings  # TRL knows no stop string: then by ours
        try:
            with in_place(grpo_trainer, self._anchor_reset.adapter, "use_adapter"):
                output = super()._generate_and_score_completions(inputs)
        finally:
            self._recorder, self.mask_truncated_completions = None, masked
        if masked and self.stop_strings:  # overlong filtering: rows that hit the length limit count for nothing
            keep = self._finished.unsqueeze(1).to(output["completion_mask"].dtype)  # type: ignore[union-attr]  # (B, 1)
            output |= {key: output[key] * keep for key in ("completion_mask", "tool_mask") if key in output}
            self.count_items(output)
        first = self.accelerator.process_index * len(inputs)
        output["sage_rows"] = torch.arange(first, first + len(inputs), device=self.accelerator.device)
        entropies = recorder.entropies_of(output.get("old_per_token_logps"))
        ref_entropies = recorder.entropies_of(output.get("ref_per_token_logps"))
        if entropies is not None:
            output["sage_entropies"] = entropies
        if ref_entropies is not None and "ref_entropies" in self.guide_needs:
            output["sage_ref_entropies"] = ref_entropies
        self.credit.settle(output)
        return output

    def count_items(self, output: dict[str, Any]) -> None:
        output["num_items_in_batch"] = self.accelerator.gather(rollouts.counted(output).sum()).sum()

    # ---- the guide -------------------------------------------------------------------------------------------------

    def batch_generator(self) -> torch.Generator:
        """Of the rollout batch in use: the same for each of its slices and updates, and after resume."""
        rollout_batch = self._step // (self.args.steps_per_generation * self.num_iterations)
        return torch.Generator().manual_seed(noise.batch_seed(self.args.seed, rollout_batch))

    def _signals(self, inputs: dict[str, Any], logps: Tensor, entropies: Tensor | None, mask: Tensor) -> Signals:
        return Signals(
            logps=logps.detach(),
            ref_logps=inputs["ref_per_token_logps"],
            mask=mask,
            entropies=entropies.detach() if entropies is not None else None,
            ref_entropies=inputs.get("sage_ref_entropies"),
            step=self.state.global_step,
            max_steps=max(self.state.max_steps, 1),
            generator=self.batch_generator(),
            rows=inputs["sage_rows"],
            rewards=inputs.get("sage_rewards"),
            group=self.num_generations if self.model.training else self.num_generations_eval,
            beta=self.args.beta,  # inside TRL's loss self.beta may be 0
            hidden=inputs.get("sage_hidden"),
        )

    def _log_q(self, inputs: dict[str, Any], logps: Tensor, entropies: Tensor | None, mask: Tensor) -> Tensor:
        signals = self._signals(inputs, logps, entropies, mask)
        if self.guide.across_rows:  # type: ignore[union-attr]
            everyone = rollouts.gather_signals(signals, self.accelerator)
            log_q = self.guide(everyone)[inputs["sage_rows"], : mask.shape[1]]  # type: ignore[misc]
        else:
            log_q = self.guide(signals)  # type: ignore[misc]
        hidden.learn(self, signals)
        return log_q

    def held_log_q(self, inputs: dict[str, Any], logps: Tensor, entropies: Tensor | None, mask: Tensor) -> Tensor:
        """log q of this slice of the rollout batch: from the sampling pass, or from its first use; anew if not held."""
        if "sage_log_q" in inputs:
            return inputs["sage_log_q"]
        if not (self.args.guide_hold and self.model.training):
            return self._log_q(inputs, logps, entropies, mask)
        part = self._step % self.args.steps_per_generation, inputs.get("sage_part", 0)
        if part not in self._held:
            self._held[part] = self._log_q(inputs, logps, entropies, mask)
        return self._held[part]

    def _shape_rollouts(self, output: dict[str, Any]) -> None:
        """log q at the sampling policy where a pass over it was made, and the k1 reward on top of the advantages."""
        if "hidden" in self.guide_needs:  # of the batch as it stands: groups may have been exchanged
            output["sage_logps"], output["sage_entropies"] = self._sampling_pass(output)
        logps, entropies = self.sampled(output)
        credit, center = self.estimator == "k1-reward", self.args.guide_center == "batch"
        if logps is None or not (credit or (self.guide is not None and self.args.guide_hold)):
            return
        mask = rollouts.counted(output)
        log_q = torch.zeros_like(logps)
        if self.guide is not None:
            log_q = self._log_q(output, logps, entropies, mask)
            if center:  # over the whole rollout batch, so that no split of it changes the mean
                total = self.accelerator.reduce(torch.stack([log_q.sum(), mask.sum().to(log_q.dtype)]), reduction="sum")
                log_q = (log_q - total[0] / total[1].clamp(min=1)) * mask
            if self.args.guide_hold:
                output["sage_log_q"] = log_q
        if credit:
            self.credit.add_bonus(output, logps, log_q, mask)

    def sampled(self, output: dict[str, Any]) -> tuple[Any, Tensor | None]:
        """Log-probs and entropies (B, T) at the policy that sampled: from TRL's own pass; else from ours, made once where a
        setting looks at the whole rollout batch; None where none does."""
        if output.get("old_per_token_logps") is not None:
            return output["old_per_token_logps"], output.get("sage_entropies")
        if self.whole_batch and "sage_logps" not in output:
            output["sage_logps"], output["sage_entropies"] = self._sampling_pass(output)
            output.pop("sage_hidden", None)
        return output.get("sage_logps"), output.get("sage_entropies")

    def _sampling_pass(self, output: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The one extra pass over the whole rollout batch, where TRL made none."""
        self.tell(
            "pass",
            f"{self.whole_batch} looks at whole rollout batches: one more forward pass over each, without gradient.",
        )
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        size = self.args.per_device_train_batch_size if self.model.training else self.args.per_device_eval_batch_size
        extra = {k: output[k] for k in packing.IMAGES if k in output}
        still = disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs)
        straight = self.args.tokens_per_microbatch is not None and not extra
        with torch.no_grad(), still, self._watch.over(self.accelerator.unwrap_model(self.model), output, straight):
            columns, wanted = output["completion_ids"].size(1), {"batch_size": size, "compute_entropy": True}
            return self._get_per_token_logps_and_entropies(self.model, ids, attention, columns, **wanted, **extra)[:2]

    # ---- the seam --------------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Tensor, mask: Tensor, keep: int, *args: Any, compute_entropy: bool = False, **kwargs: Any
    ) -> Any:
        recorder, budget = self._recorder, self.args.tokens_per_microbatch
        wanted = compute_entropy or (recorder is not None and recorder.wants_entropy(model))
        with in_place(trl_utils, self._head):
            if budget is None or any(kwargs.get(k) is not None for k in packing.IMAGES):
                run = super()._get_per_token_logps_and_entropies
                out = run(model, ids, mask, keep, *args, compute_entropy=wanted, **kwargs)
            else:
                score = partial(self._score, model, wanted)
                if torch.is_grad_enabled():  # one micro-batch of the loss
                    logps, entropies, *states = packing.straight_pass(score, ids, mask, keep)
                else:
                    logps, entropies, *states = packing.packed_pass(score, ids, mask, keep, budget, self.accelerator)
                out = logps, entropies, None
                self._watch.passes += states
        if recorder is not None:
            recorder.record(out[0], out[1])
        return out

    def _score(self, model: Any, entropy: bool, ids: Tensor, labels: Tensor) -> packing.Scored:
        """Of straight rows, as TRL asks its model; causal attention keeps the padding behind them out without a mask."""
        with self.accelerator.autocast():
            out = model(input_ids=ids, labels=labels, fused_lm_head=True)
        return out.log_probs, out.entropy if entropy else None, *self._watch.drain()

    def _make_head(self) -> Head | None:
        """Ours in the place of TRL's fused head; None, with the reason, where the model is one it does not cover."""
        wanted = self.args.fused_head
        if wanted is False or (wanted is None and self.accelerator.device.type != "cuda"):
            return None
        reason = covers(self.accelerator.unwrap_model(self.model))
        if reason is None:
            return Head(trl_utils._ChunkedLogProbFunction, entropy_grad=self._entropy_bonus_enabled)
        self.tell("head", f"TRL's fused head computes the log-probs: {reason}.")
        return None

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        rehearsed = self.rehearsal.step(model) if self.rehearsal is not None and self.model.training else 0.0
        if self.args.tokens_per_microbatch is None or not self.model.training:
            return super().compute_loss(model, inputs, *args, **kwargs) + rehearsed
        return microbatches.backward_by_parts(self, model, inputs) + rehearsed

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        shaped = dict(inputs)  # buffered inputs are never changed
        self._recorder = seen = LossRecorder(self, inputs, shaped)
        try:
            # β as TRL's loss sees it: 0 where the penalty is ours or in the reward. args.beta decides about the reference
            with in_place(self, self.beta if self.estimator in IN_TRL else 0.0, "beta"):
                loss = super()._compute_loss(model, shaped)
        finally:
            self._recorder = None
        penalty = None
        if self.estimator not in IN_TRL and self.beta != 0:
            log_q = seen.log_q if seen.log_q is not None else torch.zeros_like(seen.ref)
            if self.estimator == "k1-reward":  # k3 toward the anchor is logged, not trained on
                penalty = anchor_penalty(seen.logps, seen.ref, tellable(log_q), "k3")
            else:
                penalty = anchor_penalty(seen.logps, seen.ref, log_q, self.estimator)
                loss = loss + self.beta * self._aggregate(penalty, seen.mask, inputs)
        if (pull := token_credit.pull(self, inputs, seen.logps)) is not None:
            loss = loss + self._aggregate(pull, seen.mask, inputs)
        if not bool(torch.isfinite(loss.detach())):
            raise diverged(f"loss became {loss.item()}", "", self)
        measured = measure.PerToken(seen.logps, seen.entropies, seen.ref, seen.log_q, penalty, seen.mask)
        if self.measured is not None:
            self.measured.append(microbatches.counted_only(measured))
        else:
            self.log_values(measure.step(measured, self.accelerator))
        return loss

    def _aggregate(self, per_token: Tensor, mask: Tensor, inputs: dict[str, Any]) -> Tensor:
        """A per-token term under the loss type's own normaliser, so that β means the same in and outside TRL's loss."""
        training = self.model.training
        accumulation = self.current_gradient_accumulation_steps if training else 1
        total = (per_token * mask).sum(-1)  # (B,)
        if self.loss_type in ("grpo", "sapo"):
            return (total / mask.sum(-1).clamp(min=1)).mean() / accumulation
        if self.loss_type == "bnpo":
            return total.sum() / mask.sum().clamp(min=1) / accumulation
        if self.loss_type == "dr_grpo":
            return total.sum() / (len(total) * self.max_completion_length) / accumulation
        if self.loss_type == "luspo":
            return total.mean() / accumulation
        items = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes  # dapo, cispo, vespo
        return total.sum() / (items * accumulation / self.args.steps_per_generation if training else items)

    # ---- the card --------------------------------------------------------------------------------------------------

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        path = Path(self.args.output_dir) / "README.md"
        if self.is_world_process_zero() and path.is_file():
            path.write_text(path.read_text() + card(self) + self.card_more)
