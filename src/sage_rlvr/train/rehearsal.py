"""The divergence on kept answers (``keep_from``): one batch of them per optimizer step, a pass beside the rollouts'.

Which answers come at a step is a function of (seed, step): the same on every rank and after a resume. A rank has every W-th
of them; the loss is the mean over all their tokens, whatever rank and part they lie in, so that no split changes the gradient.
"""

from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from sage_rlvr.anchor import covering_penalty
from sage_rlvr.errors import UserError
from sage_rlvr.models.fingerprints import digest
from sage_rlvr.train import keep_from, microbatches, packing, rollouts
from sage_rlvr.train.recorders import check_finite


class Rehearsal:
    """Made once per run, at its start, when the model is still π_ref."""

    def __init__(self, trainer: Any, dataset: Any):
        self.trainer, args = trainer, trainer.args
        self._refuse()
        self.answers = keep_from.answers(trainer, dataset)
        self.digest = digest([[a.prompt, a.completion] for a in self.answers])
        self.divergence, self.coef = args.keep_divergence, args.keep_coef
        world = trainer.accelerator.num_processes
        rows = args.per_device_train_batch_size * world * args.gradient_accumulation_steps
        self.batch = args.keep_batch or max(1, rows // trainer.num_generations)

    def _refuse(self) -> None:
        trainer = self.trainer
        microbatches.refuse_deepspeed(trainer, "keep_from")
        if trainer.args.keep_divergence != "js" or trainer.ref_model is not None:
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        if not is_peft_model(model):
            raise UserError(
                "keep_divergence='js' compares with π_ref token by token, and with beta=0 and no adapter there is none: take "
                "keep_divergence='forward', which needs none, or use_peft, or beta above 0."
            )
        if "ref" not in model.peft_config and keep_from.starts_from_adapter(model):
            raise UserError(
                "keep_divergence='js' with beta=0 on an adapter that is trained further: without it the model is not π_ref, and "
                "no copy of it is kept; take keep_divergence='forward', merge the adapter first, or set beta above 0."
            )

    def refuse_others(self, digest_then: str | None, checkpoint: str) -> None:
        if digest_then not in (None, self.digest):
            raise UserError(
                f"{checkpoint} was trained with other kept answers than {self.trainer.args.keep_from} has now: put that folder "
                "back as it was, or begin again in another output_dir."
            )

    # ---- which answers -------------------------------------------------------------------------------------------------

    def at(self, step: int) -> list[int]:
        """The answers of a step, ``batch`` of them."""
        return rollouts.walk(len(self.answers), self.trainer.args.seed, 104_729, step * self.batch, self.batch)

    def parts(self, rows: list[int]) -> list[list[list[int]]]:
        """For each rank its micro-batches of places in ``rows``, as many on every rank; −1 where a rank has too few answers for
        that: any answer, run for the others' sake, that weighs nothing."""
        world, args = self.trainer.accelerator.num_processes, self.trainer.args
        own = [self.answers[i] for i in rows]
        sizes = packing.Lengths([len(a.prompt) for a in own], [len(a.completion) for a in own])
        cuts = []
        for rank in range(world):
            mine = sorted(range(rank, len(rows), world), key=lambda i: (-sizes.width([i]), i))
            if args.tokens_per_microbatch is not None:
                cuts.append(packing.cut(sizes, mine, args.tokens_per_microbatch))
            else:
                size = args.per_device_train_batch_size
                cuts.append([mine[at : at + size] for at in range(0, len(mine), size)])
        most = max(map(len, cuts))
        return [packing.split_to(cut, most, [-1] * most) if cut else [[-1]] * most for cut in cuts]

    # ---- the pass --------------------------------------------------------------------------------------------------------

    def step(self, model: Any) -> Tensor | float:
        """Adds the gradient of keep_coef · divergence, before the last backward pass of an optimizer step, and answers this
        rank's share of it as a number; 0 at any other pass."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        if not accelerator.sync_gradients:
            return 0.0
        rows, rank, world = self.at(trainer.state.global_step), accelerator.process_index, accelerator.num_processes
        tokens = sum(len(self.answers[i].completion) for i in rows)  # of all ranks
        sums = torch.zeros(2, device=accelerator.device)  # divergence and log-prob
        for part in self.parts(rows)[rank]:
            weights = torch.tensor([float(place >= 0) for place in part], device=accelerator.device)
            with microbatches.quiet(trainer, model), torch.set_grad_enabled(self.coef > 0):
                loss, logp = self._sums(model, [rows[place] for place in part], weights)
                if self.coef > 0:
                    accelerator.backward(loss * (self.coef * world / tokens))  # ranks' gradients are averaged
            sums += torch.stack([loss.detach(), logp])
            del loss
        means = accelerator.reduce(sums.clone(), reduction="sum") / tokens
        trainer.log_values(dict(zip(("sage/kept_loss", "sage/kept_logp"), means.tolist())))
        return sums[0] * (self.coef * world / tokens)

    def _sums(self, model: Any, which: list[int], weights: Tensor) -> tuple[Tensor, Tensor]:
        """Divergence and log-prob of some answers, summed over their tokens; ``weights`` (n,)."""
        ids, mask, keep = self._tensors(which)
        counted = mask[:, -keep:] * weights[:, None]  # (n, keep)
        ref = self._reference(ids, mask, keep) if self.divergence == "js" else None
        logps = self.trainer._get_per_token_logps_and_entropies(model, ids, mask, keep)[0]
        tensors = {"kept answers' log-probs": logps, "kept answers' reference log-probs": ref}
        check_finite(tensors, mask[:, -keep:], self.trainer)
        penalty = covering_penalty(logps, ref, self.divergence)
        return (penalty * counted).sum(), (logps.detach().float() * counted).sum()

    def _tensors(self, which: list[int]) -> tuple[Tensor, Tensor, int]:
        """ids and mask (n, P + keep): prompts padded on the left, completions on the right, as rollouts are."""
        own = [self.answers[i] for i in which]
        left = max(len(a.prompt) for a in own)
        keep = max(packing.LEAST_COLUMNS, *(len(a.completion) for a in own))
        ids = torch.full((len(own), left + keep), self.trainer._tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, a in enumerate(own):
            span = slice(left - len(a.prompt), left + len(a.completion))
            ids[row, span], mask[row, span] = torch.tensor(a.prompt + a.completion), 1
        device = self.trainer.accelerator.device
        return ids.to(device), mask.to(device), keep

    @torch.no_grad()
    def _reference(self, ids: Tensor, mask: Tensor, keep: int) -> Tensor:
        """log π_ref (n, keep) anew at each use: most answers are used once, and a resume finds the very same numbers."""
        trainer = self.trainer
        score = trainer._get_per_token_logps_and_entropies
        with disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
            if trainer.ref_model is not None:
                return score(trainer.ref_model, ids, mask, keep)[0]
            model = trainer.accelerator.unwrap_model(trainer.model)
            with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
                return score(trainer.model, ids, mask, keep)[0]
