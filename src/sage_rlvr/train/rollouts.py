"""What happens to a rollout batch beside the model: where a completion ends, credit for coverage and rarity, Beta advantages,
groups drawn again.

Shapes: B rows on this process, G rows a group (one prompt), W processes; the global batch is W·B rows, groups in order.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from trl.trainer.utils import pad as trl_pad

from sage_rlvr.anchor import Signals
from sage_rlvr.errors import UserError

LEFT_PADDED = ("prompt_ids", "prompt_mask")


def quick_pad(
    tensors: list[Tensor], padding_value: float = 0, padding_side: str = "right", pad_to_multiple_of: int | None = None
) -> Tensor:
    """TRL's ``pad`` in one call, where its loop over rows is a fifth of a small model's step; not for rows of rows."""
    if any(t.ndim != 1 for t in tensors):
        return trl_pad(tensors, padding_value, padding_side, pad_to_multiple_of)
    lengths = [t.shape[0] for t in tensors]
    flat = torch.cat([t for t, n in zip(tensors, lengths) if n] or tensors[:1]).to(tensors[0].dtype)
    width = max(lengths)
    width += -width % (pad_to_multiple_of or 1)
    columns = torch.arange(width, device=flat.device)
    if padding_side == "left":
        columns = columns.flip(0)  # how far from the end, where right-padded rows count from the start
    out = flat.new_full((len(tensors), width), padding_value)
    out[columns < torch.tensor(lengths, device=flat.device)[:, None]] = flat
    return out


# ---- where a completion ends ---------------------------------------------------------------------------------------


def stop_cut(ids: Sequence[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> int | None:
    """How many tokens up to and including the one that completes the first stop string; None if none appears."""
    if not any(s in decode(ids) for s in stops):
        return None
    low, high = 1, len(ids)  # text only grows with tokens: the shortest prefix that holds a stop string
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if any(s in decode(ids[:middle]) for s in stops) else (middle + 1, high)
    return low


@contextmanager
def tokenizer_in_generate(model: Any, tokenizer: Any) -> Iterator[None]:
    """model.generate with ``tokenizer``, which transformers wants for stop strings and TRL does not pass."""
    own = vars(model).get("generate")  # FSDP2 gives the model one of its own, which gathers the weights
    model.generate = partial(model.generate, tokenizer=tokenizer)
    try:
        yield
    finally:
        del model.generate
        if own is not None:
            model.generate = own


# ---- what a guide sees that looks across rows ------------------------------------------------------------------------


def gather_signals(signals: Signals, accelerator: Accelerator) -> Signals:
    """Those of the whole rollout batch, (W·B, T), T the longest of any process; rows in the order of the processes."""
    if accelerator.num_processes == 1:
        return signals
    here = {f.name: getattr(signals, f.name) for f in fields(signals)}
    mine = {name: x.contiguous() for name, x in here.items() if isinstance(x, Tensor)}
    wide = {n: accelerator.pad_across_processes(x, dim=1) if x.ndim > 1 else x for n, x in mine.items()}
    return replace(signals, **{name: accelerator.gather(x) for name, x in wide.items()})


# ---- coverage and rarity -------------------------------------------------------------------------------------------


def coverage_factor(rewards: Tensor, solutions: Sequence[str | None], group: int, share: float) -> Tensor:
    """(W·B,) what each completion keeps of its reward: 1 − c + c/m, c = ``share``, m the rewarded completions of its group with
    its solution. With c = 1 a group's rewards sum to its number of distinct right solutions, and each is its Shapley value. One
    that cannot be told (None) is like no other."""
    rewarded = (rewards > 0).tolist()
    keys = [(i // group, i if key is None else key) for i, key in enumerate(solutions)]
    times = Counter(key for key, right in zip(keys, rewarded) if right)
    kept = [1 - share + share / times[key] if right else 1.0 for key, right in zip(keys, rewarded)]
    return torch.tensor(kept, dtype=rewards.dtype, device=rewards.device)


def rarity_factor(rewards: Tensor, surprisal: Tensor, group: int, share: float) -> Tensor:
    """(W·B,) what each completion keeps of its reward: 1 − c + c·s/mean(s), c = ``share``, s its surprisal, the mean over the
    rewarded completions of its group. It moves reward from the likely right answers to the unlikely, and adds none. A
    completion whose surprisal is not known (nan) keeps its own."""
    right = ((rewards > 0) & ~surprisal.isnan()).view(-1, group)
    s = surprisal.nan_to_num().clamp(min=0).view(-1, group) * right
    mean = s.sum(1, keepdim=True) / right.sum(1, keepdim=True).clamp(min=1)
    rare = torch.where(right & (mean > 0), s / mean.clamp(min=1e-12), 1.0)
    return (1 - share + share * rare).view(-1).to(rewards.dtype)


# ---- BNPO ----------------------------------------------------------------------------------------------------------


def beta_advantage(rewards: Tensor, group: int, sharpest: float = 100.0) -> Tensor:
    """BNPO (arXiv 2506.02864): (r − p)/Beta(p; 1 + a/3, 1 + b/3), p a group's mean, (a, b) the Beta fitted to all p by moments.

    ``rewards`` (W·B,) in [0, 1], NaN where unscorable (advantage 0). A batch whose p are all alike would fit an infinitely
    sharp Beta: a + b is held at ``sharpest``.
    """
    if bool(((rewards < 0) | (rewards > 1)).any()):
        raise UserError(
            "advantage='beta' takes rewards between 0 and 1: use a verifiable 0/1 reward, or advantage='group'."
        )
    groups = rewards.double().view(-1, group)
    p = groups.nanmean(1)  # (groups,)
    known = p[~p.isnan()]
    if known.numel() == 0:
        return torch.zeros_like(rewards)
    mean, spread = known.mean(), known.var(unbiased=False)
    most = mean * (1 - mean)  # the variance of p can not exceed it
    concentration = (most / spread.clamp(min=1e-12) - 1).clamp(0, sharpest)
    alpha, beta = 1 + mean * concentration / 3, 1 + (1 - mean) * concentration / 3
    inside = p.clamp(1e-6, 1 - 1e-6)
    log_pdf = (alpha - 1) * inside.log() + (beta - 1) * (1 - inside).log()
    log_pdf = log_pdf - (alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma())
    advantage = (groups - p[:, None]) / log_pdf.exp()[:, None]
    return advantage.nan_to_num(0.0).view(-1).to(rewards.dtype)


# ---- DAPO's dynamic sampling ---------------------------------------------------------------------------------------


def flat_groups(rewards: Tensor, group: int) -> Tensor:
    """(groups,) True where every scorable reward of the group is the same: nothing to learn from it."""
    groups = rewards.view(-1, group)
    known = ~groups.isnan()
    low = torch.where(known, groups, torch.inf).amin(1)
    high = torch.where(known, groups, -torch.inf).amax(1)
    return ~(high > low)


class PromptStream:
    """An endless shuffled walk over a dataset, as a function of (seed, position): the same on every rank and after resume."""

    def __init__(self, dataset: Any, seed: int):
        self.dataset, self.seed, self.position = dataset, seed, 0

    def take(self, count: int) -> list[dict[str, Any]]:
        out = []
        for _ in range(count):
            epoch, index = divmod(self.position, len(self.dataset))
            order = torch.randperm(
                len(self.dataset), generator=torch.Generator().manual_seed(self.seed + 7919 * (epoch + 1))
            )
            out.append(dict(self.dataset[int(order[index])]))
            self.position += 1
        return out


def gather_rows(output: dict[str, Any], accelerator: Accelerator, pad_id: int) -> dict[str, Any]:
    """Every process' rows of a rollout batch, (W·B, …), padded to the longest; scalars stay."""
    gathered = {}
    for key, value in output.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"dynamic_sampling exchanges rows of text batches only, and this one holds {key!r}; set it to 0."
            )
        if value.ndim > 1:
            pad = pad_id if key.endswith("_ids") else 0
            value = accelerator.pad_across_processes(value, dim=1, pad_index=pad, pad_first=key in LEFT_PADDED)
        gathered[key] = accelerator.gather(value) if value.ndim else value
    return gathered


def replace_groups(
    batch: dict[str, Any], fresh: dict[str, Any], holes: Tensor, fills: Tensor, group: int, pad_id: int
) -> dict[str, Any]:
    """``batch`` with the groups numbered ``holes`` taken from ``fresh``'s groups numbered ``fills``; both global."""
    to = (holes[:, None] * group + torch.arange(group, device=holes.device)).flatten()
    source = (fills[:, None] * group + torch.arange(group, device=fills.device)).flatten()
    out = {}
    for key, value in batch.items():
        if value.ndim == 0:
            out[key] = value
            continue
        new = fresh[key]
        if value.ndim > 1 and value.shape[1] != new.shape[1]:
            width = max(value.shape[1], new.shape[1])
            pad = pad_id if key.endswith("_ids") else 0
            value, new = (_widen(x, width, pad, key in LEFT_PADDED) for x in (value, new))
        value = value.clone()
        value[to] = new[source]
        out[key] = value
    return out


def _widen(x: Tensor, width: int, pad: float, left: bool) -> Tensor:
    missing = width - x.shape[1]
    return torch.nn.functional.pad(x, (missing, 0) if left else (0, missing), value=pad)
