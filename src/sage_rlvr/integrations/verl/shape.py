"""log q of a rollout batch, what is logged of it, and which row of the batch a trajectory is. Torch alone."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sage_rlvr.anchor import Guide, Signals, tellable
from sage_rlvr.errors import UserError

PADDING_ROW = -1  # verl's synthetic rows count no token
K3_CLAMP = 10.0  # verl's k3 is held there, and a token past it has no gradient


def log_q(
    guide: Guide, old: Tensor, ref: Tensor, mask: Tensor, entropies: Tensor | None, rows: Tensor | None, *,
    seed: int, step: int, max_steps: int, center: str = "none", rewards: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(B, T) float32, 0 off-mask. ``old`` is the policy the guide looks at; ``seed`` the key of the rollout batch."""
    generator = torch.Generator().manual_seed(seed)
    out = guide(Signals(old, ref, mask, entropies, step=step, max_steps=max(max_steps, 1), generator=generator, rows=rows,
                        rewards=rewards))  # fmt: skip
    if center == "batch":
        counted = mask.bool()
        out = torch.where(counted, out - out.sum() / counted.sum().clamp(min=1), 0.0)
    return out


def is_padding(uid: str) -> bool:
    """Of a synthetic row, with which verl fills a batch up; its own uids are hexadecimal."""
    return uid.startswith("pad")


def row_numbers(keys: Sequence[str], prompt_number: Mapping[str, int], per_prompt: int) -> Tensor:
    """(B,) each trajectory's row in the rollout batch: prompt · n + session, as drawn from the dataset.

    verl's keys are ``{uid}_{session}_{index}``, with a uid made at random; trajectories come in the order they finish and are
    then dealt out by length over the ranks. The row depends on none of that, so neither does the noise.
    """
    rows = []
    for key in keys:
        uid, session, index = key.rsplit("_", 2)
        if is_padding(uid):
            rows.append(PADDING_ROW)
            continue
        if uid not in prompt_number:
            raise UserError(
                f"trajectory {key} is not of a prompt drawn in this step, so a stochastic guide cannot number its row: turn "
                "skip.rollout_tq off, or choose a guide without noise (branch, tempered)."
            )
        # index: several outputs per session
        rows.append(prompt_number[uid] * per_prompt + int(session) + (int(index) << 40))
    return torch.tensor(rows, dtype=torch.long)


@torch.no_grad()
def measure(logps: Tensor, ref: Tensor, log_q: Tensor | None, mask: Tensor, estimator: str) -> dict[str, float]:
    """Means over counted tokens, named as in our trainer for TRL: ``kl_ref`` is k3 toward the plain reference, ``kl`` toward the
    shaped one, ``pseudo_kl`` the k1 mean of D̃(π‖q·π_ref); ``active`` the share of tokens with q ≠ 1. Under k3, which is verl's
    here, ``clamped`` is the share that its clamp lets go; k3+ takes the gradient of k2, and ours do not clamp."""
    on = mask.bool()
    count = on.sum().clamp(min=1)
    # one pass over the tokens that count, in float64 sums: a batch holds millions
    ratio = (ref.float() - logps.float())[on]
    out = {"sage/kl_ref": _mean(ratio.exp() - ratio - 1, count)}
    if log_q is None:
        return out
    shape = log_q[on]
    shaped, q = ratio + shape, tellable(shape).exp()
    k3 = tellable(shaped).exp() - shaped - 1
    out |= {
        "sage/kl": _mean(k3, count),
        "sage/pseudo_kl": _mean(-shaped, count),
        "sage/q_mean": _mean(q, count),
        "sage/active": _mean(shape != 0, count),
    }
    if estimator == "k3":
        out["sage/clamped"] = _mean(k3 > K3_CLAMP, count)
    some = q.numel() > 0  # a micro-batch of padding rows counts none
    return out | {"sage/q_min": q.min().item() if some else 1.0, "sage/q_max": q.max().item() if some else 1.0}


def _mean(x: Tensor, count: Tensor) -> float:
    return (x.sum(dtype=torch.float64) / count).item()
