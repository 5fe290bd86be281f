"""What happens to a rollout batch beside the model: where a completion ends, what guides see across rows, groups drawn again.

Shapes: B rows on this process, G rows a group (one prompt), W processes; the global batch is W·B rows, groups in order.
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

LEFT_PADDED = ("prompt_ids", "prompt_mask")


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


# ---- what a guide sees that looks across rows ------------------------------------------------------------------------


def gather_signals(signals: Signals, accelerator: Accelerator) -> Signals:
    """Those of the whole rollout batch, (W·B, T), T the longest of any process; rows in the order of the processes."""
    if accelerator.num_processes == 1:
        return signals
    here = {f.name: getattr(signals, f.name) for f in fields(signals)}
    mine = {name: x.contiguous() for name, x in here.items() if isinstance(x, Tensor)}
    wide = {n: accelerator.pad_across_processes(x, dim=1) if x.ndim > 1 else x for n, x in mine.items()}
    return replace(signals, **{name: accelerator.gather(x) for name, x in wide.items()})


# ---- DAPO's dynamic sampling ---------------------------------------------------------------------------------------


def flat_groups(rewards: Tensor, group: int) -> Tensor:
    """(groups,) True where every scorable reward of the group is the same: nothing to learn from it."""
    groups = rewards.view(-1, group)
    known = ~groups.isnan()
    low = torch.where(known, groups, torch.inf).amin(1)
    high = torch.where(known, groups, -torch.inf).amax(1)
    return ~(high > low)


def exchange_flat_groups(trainer: Any, output: dict[str, Any]) -> dict[str, Any]:
    """``output`` with new prompts in place of groups that teach nothing (``credit.flat``), found in at most ``dynamic_sampling``
    rounds. Every rank sees all rewards, so all take the same number of rounds."""
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
        rows = [dict(row) for row in trainer._stream.take(wanted) for _ in range(group)]
        share = len(rows) // world
        with measure.unrecorded(metrics):
            fresh = trainer._roll_out(rows[accelerator.process_index * share :][:share])
        fresh = gather_rows(fresh, accelerator, pad_id)
        fills = (~flat(fresh)).nonzero().flatten()[: len(holes)]
        batch = replace_groups(batch, fresh, holes[: len(fills)], fills, group, pad_id)
        replaced += len(fills)
    left = int(flat(batch).sum())
    for name, value in (("resampled_groups", replaced), ("resample_rounds", rounds), ("flat_groups_left", left)):
        metrics[f"sage/{name}"].append(float(value))
    mine = output["sage_rows"]
    local = {k: v[mine] if v.ndim else v for k, v in batch.items()} | {"sage_rows": mine}
    trainer.count_items(local)
    trainer.credit.exchanged(local)
    return local


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
