"""Advantages per token over a trainer's rollout batches: the last stage of ``advantage``, and the pull that KL-Cov adds.

Every process sees the tokens of all, (W·B, T), computes the same and keeps its own rows. So no rank, slice or micro-batch changes
which tokens are chosen; and a buffered batch holds what was chosen, also over a checkpoint.
"""

from typing import Any

import torch
from torch import Tensor

from sage_rlvr.advantage import TokenAdvantage, Tokens
from sage_rlvr.errors import UserError
from sage_rlvr.train.recorders import check_finite
from sage_rlvr.train.rollouts import advantages_BT, counted, gather_wide

PULL, BORN = "sage_pull", "sage_born"  # (B, T) KL-Cov's coefficients; the step at which the batch was sampled


def check(args: Any, part: TokenAdvantage | None) -> None:
    """What a config asks for that advantages per token cannot be."""
    if part is None:
        return
    name = f"advantage {part.name!r}"
    if part.changes and args.loss_type == "vespo":
        raise UserError(f"{name} gives one advantage per token and loss_type='vespo' takes one per completion: choose "
                        "another loss_type.")  # fmt: skip
    if part.changes and args.importance_sampling_level == "sequence":
        raise UserError(f"{name} with importance_sampling_level='sequence': one ratio per completion spreads each token's "
                        "advantage over all of its tokens: set importance_sampling_level='token'.")  # fmt: skip
    every = args.num_iterations * args.steps_per_generation
    if type(part).pull is not TokenAdvantage.pull and args.gradient_accumulation_steps % every == 0:
        raise UserError(
            f"{name} holds tokens near the policy that sampled them, and with one update per rollout batch that is the policy "
            "itself, so it would do nothing: raise num_iterations, or steps_per_generation above gradient_accumulation_steps."
        )


def assign(trainer: Any, output: dict[str, Any]) -> None:
    """Gives each token of a rollout batch its own advantage: ``output["advantages"]`` becomes (B, T), and the pulls go in. After
    the k1 reward: what a token is multiplied by is what counts."""
    part = trainer.credit.tokens
    if part is None:
        return
    logps, entropies = trainer.sampled(output)
    mask = counted(output)
    check_finite({"log-probs": logps, "entropies": entropies}, mask, trainer)
    mine = {"advantages": advantages_BT(output), "logps": logps, "mask": mask.long()}
    if "entropies" in part.reads:
        mine["entropies"] = entropies
    everyone = gather_wide(mine, trainer.accelerator)  # (W·B, T)
    everyone["mask"] = everyone["mask"].bool()  # Accelerate pads a bool to an integer
    advantages, pull = part.credit(Tokens(**everyone, generator=trainer.batch_generator()))
    moved = advantages != torch.where(everyone["mask"], everyone["advantages"], 0.0)
    rows, columns = output["sage_rows"], mask.shape[1]
    if part.changes:
        output["advantages"] = advantages[rows, :columns]
    if pull is not None:
        output[PULL] = pull[rows, :columns]
        output[BORN] = torch.tensor(trainer.state.global_step)
        moved = moved | (pull != 0)
    share = moved.sum() / everyone["mask"].sum().clamp(min=1)
    trainer.log_values({"sage/tokens_shaped": share.item()})


def pull(trainer: Any, inputs: dict[str, Any], logps: Any) -> Tensor | None:
    """(B, T) what KL-Cov adds to each token's loss. None before the first update of a rollout batch: the policy is then the one
    that sampled, and all that |log π − log π_old| would hold is the rounding between two passes, with a slope of full size."""
    if PULL not in inputs or int(inputs[BORN]) == trainer.state.global_step:
        return None
    return inputs[PULL] * (logps - inputs["old_per_token_logps"]).abs()
