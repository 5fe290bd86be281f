"""What happens to a rollout batch beside the model: where a completion ends, what guides see across rows, groups drawn again.

Dimensions: trainer.py. The global batch is W·B rows, process by process, groups in order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from sage_rlvr.anchor import Signals
from sage_rlvr.errors import UserError
from sage_rlvr.train import measure
from sage_rlvr.train.packing import PROMPT

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


def counted(batch: dict[str, Any]) -> Tensor:
    """(B, T) 1 where a token counts: the completion's, and not a tool's."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)


def advantages_BT(batch: dict[str, Any]) -> Tensor:
    """(B, T) in every case: TRL's are (B,), and become (B, T) with anchor_credit "to_go" or an advantage per token."""
    advantages = batch["advantages"]
    return advantages if advantages.dim() == 2 else advantages[:, None].expand(batch["completion_mask"].shape)


# ---- what a guide sees that looks across rows ------------------------------------------------------------------------


def gather_signals(signals: Signals, accelerator: Accelerator) -> Signals:
    """Those of the whole rollout batch, (W·B, T), T the longest of any process; rows in the order of the processes."""
    if accelerator.num_processes == 1:
        return signals
    here = {f.name: getattr(signals, f.name) for f in fields(signals)}
    return replace(signals, **gather_wide({n: x for n, x in here.items() if isinstance(x, Tensor)}, accelerator))


def gather_wide(tensors: dict[str, Tensor], accelerator: Accelerator) -> dict[str, Any]:
    """(W·B, …) of every process, (B, T) ones padded with 0 to the widest."""
    pad = accelerator.pad_across_processes
    wide = {name: pad(x.contiguous(), dim=1) if x.ndim > 1 else x for name, x in tensors.items()}
    return {name: accelerator.gather(x.contiguous()) for name, x in wide.items()}


# ---- DAPO's dynamic sampling ---------------------------------------------------------------------------------------


def flat_groups(rewards: Tensor, group: int) -> Tensor:
    """(groups,) True where every scorable reward of the group is the same: nothing to learn from it."""
    groups = rewards.view(-1, group)
    known = ~groups.isnan()
    low = torch.where(known, groups, torch.inf).amin(1)
    high = torch.where(known, groups, -torch.inf).amax(1)
    return ~(high > low)


def exchange_flat_groups(trainer: Any, output: dict[str, Any]) -> dict[str, Any]:
    """``output`` with new prompts in place of groups that teach nothing (``credit.flat``), drawn in at most ``dynamic_sampling``
    rounds. Every rank sees all rewards, so all make the same number of rounds."""
    accelerator, group, metrics = trainer.accelerator, trainer.num_generations, trainer._metrics["train"]
    world, pad_id, flat = accelerator.num_processes, trainer._tokenizer.pad_token_id, trainer.credit.flat
    if trainer._stream is None:
        trainer._stream = PromptStream(trainer.train_dataset, trainer.args.seed)
    batch = gather_rows(output, accelerator, pad_id)
    replaced = rounds = 0
    for _ in range(trainer.args.dynamic_sampling):
        holes = flat(batch).nonzero().flatten()
        if not len(holes):
            break
        rounds += 1
        wanted = len(holes)
        while wanted * group % world:  # every rank generates the same number of rows
            wanted += 1
        rows = [dict(row) for row in trainer._stream.draw(wanted) for _ in range(group)]
        share = len(rows) // world
        with measure.unrecorded(metrics):
            fresh = trainer._roll_out(rows[accelerator.process_index * share :][:share])
        fresh = gather_rows(fresh, accelerator, pad_id)
        fills = (~flat(fresh)).nonzero().flatten()[: len(holes)]
        batch = replace_groups(batch, fresh, holes[: len(fills)], fills, group, pad_id)
        replaced += len(fills)
    left = int(flat(batch).sum())
    counts = {"resampled_groups": replaced, "resample_rounds": rounds, "flat_groups_left": left}
    trainer.log_values({f"sage/{name}": float(value) for name, value in counts.items()})
    mine = output["sage_rows"]
    local = {k: v[mine] if v.ndim else v for k, v in batch.items()} | {"sage_rows": mine}
    trainer.count_items(local)
    trainer.credit.exchanged(local)
    return local


def walk(size: int, seed: int, prime: int, start: int, count: int) -> list[int]:
    """Places ``start`` to ``start + count`` of an endless walk over ``size`` rows, shuffled anew each epoch: a function of its
    arguments, so the same on every rank and after resume. ``prime`` keeps two walks of one seed apart."""
    places = [divmod(i, size) for i in range(start, start + count)]
    draws = {epoch: torch.Generator().manual_seed(seed + prime * (epoch + 1)) for epoch, _ in places}
    orders = {epoch: torch.randperm(size, generator=draw).tolist() for epoch, draw in draws.items()}
    return [orders[epoch][index] for epoch, index in places]


class PromptStream:
    """New prompts for dynamic sampling."""

    def __init__(self, dataset: Any, seed: int):
        self.dataset, self.seed, self.position = dataset, seed, 0

    def draw(self, count: int) -> list[dict[str, Any]]:
        rows = walk(len(self.dataset), self.seed, 7919, self.position, count)
        self.position += count
        return [dict(self.dataset[i]) for i in rows]


def gather_rows(output: dict[str, Any], accelerator: Accelerator, pad_id: int) -> dict[str, Any]:
    """Every process' rows of a rollout batch, (W·B, …), padded to the longest; scalars stay."""
    gathered = {}
    for key, value in output.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"dynamic_sampling exchanges rows of text batches only, and this one holds {key!r}; set it to 0."
            )
        if value.ndim > 1:
            pad, left = _padding(key, pad_id)
            value = accelerator.pad_across_processes(value, dim=1, pad_index=pad, pad_first=left)
        gathered[key] = accelerator.gather(value) if value.ndim else value
    return gathered


def replace_groups(
    batch: dict[str, Any], fresh: dict[str, Any], holes: Tensor, fills: Tensor, group: int, pad_id: int
) -> dict[str, Any]:
    """``batch`` with the groups numbered ``holes`` replaced by ``fresh``'s groups numbered ``fills``; both global."""
    to, source = ((g[:, None] * group + torch.arange(group, device=g.device)).flatten() for g in (holes, fills))  # rows
    out = dict(batch)
    for key, value in batch.items():
        if value.ndim:
            old, new = value, fresh[key]
            if value.ndim > 1:
                width = max(old.shape[1], new.shape[1])
                old, new = (_widen(x, width, *_padding(key, pad_id)) for x in (old, new))
            out[key] = old.clone()
            out[key][to] = new[source]
    return out


def _padding(key: str, pad_id: int) -> tuple[int, bool]:
    """What a column of a rollout batch is padded with, and whether on the left."""
    return pad_id if key.endswith("_ids") else 0, key in PROMPT


def _widen(x: Tensor, width: int, pad: float, left: bool) -> Tensor:
    missing = width - x.shape[1]
    return torch.nn.functional.pad(x, (missing, 0) if left else (0, missing), value=pad)
