"""Rows into micro-batches by length: each under a budget of padded tokens, each as wide as its own longest row.

A row is P prompt columns, padded on the left, then T completion columns, padded on the right. The model gets it straight: prompt
and completion without a gap, all padding behind them. So n rows cost n·(longest prompt + completion) tokens, and no token looks
at padding: causal attention needs no mask, and the fast kernels that have none can run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.errors import UserError

PROMPT = ("prompt_ids", "prompt_mask")  # (B, P), left-padded; what is as wide as the completions is right-padded
IMAGES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes",
    "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
LEAST_COLUMNS = 2  # one column reads as one value per sequence to TRL's metrics, and -0 columns as all of them


@dataclass(frozen=True)
class Lengths:
    prompt: list[int]
    completion: list[int]

    def width(self, rows: Sequence[int]) -> int:
        return max(self.prompt[i] + self.completion[i] for i in rows)

    def padded(self, parts: Sequence[Sequence[int]]) -> int:
        return sum(len(rows) * self.width(rows) for rows in parts)

    def real(self, rows: Sequence[int]) -> int:
        return sum(self.prompt[i] + self.completion[i] for i in rows)


def lengths(prompt_mask: Tensor, completion_mask: Tensor) -> Lengths:
    """Of each row, from masks (B, P) and (B, T): to the left of the first, to the right of the last, nothing is read."""
    first = prompt_mask.bool().flip(1)  # the leftmost token counts, whatever lies between
    return Lengths(_reach(first).tolist(), _reach(completion_mask.bool()).clamp(min=LEAST_COLUMNS).tolist())


def _reach(mask: Tensor) -> Tensor:
    """(B,) columns up to and including the last one that is set."""
    if not mask.shape[1]:
        return torch.zeros(len(mask), dtype=torch.long)
    return (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)


def cut(sizes: Lengths, rows: Sequence[int], budget: int) -> list[list[int]]:
    """``rows`` longest first (the largest allocation is the first), as many to a part as fit the budget, one at the least."""
    parts: list[list[int]] = []
    for row in sorted(rows, key=lambda i: (-sizes.width([i]), i)):
        if parts and (len(parts[-1]) + 1) * sizes.width(parts[-1][:1]) <= budget:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def split_to(parts: list[list[int]], count: int, spare: Sequence[int] = ()) -> list[list[int]]:
    """``count`` parts or more: the one with most rows is halved until there are. With too few rows for that, ``spare`` ones
    (left out because they weigh nothing) come back, one per part."""
    parts, spare = [list(rows) for rows in parts], list(spare)
    while len(parts) < count:
        most = max(parts, key=len)
        if len(most) == 1:
            parts.append([spare.pop()])
        else:
            half = len(most) // 2
            parts.append(most[half:])
            del most[half:]
    return parts


def most_of(count: int, accelerator: Any) -> int:
    """The largest ``count`` of all ranks: with as many passes on each, none waits for another (FSDP, DDP)."""
    if accelerator.num_processes == 1:
        return count
    return int(accelerator.gather(torch.tensor([count], device=accelerator.device)).max())


def select(inputs: dict[str, Any], rows: Sequence[int], sizes: Lengths) -> dict[str, Any]:
    """``rows`` of a rollout batch, (n, …), without the columns that are padding in all of them. Scalars stay."""
    for key in (key for key in IMAGES if inputs.get(key) is not None):
        raise UserError(f"tokens_per_microbatch splits text batches, and this one holds {key!r}: leave it unset.")
    left, right = max(sizes.prompt[i] for i in rows), max(sizes.completion[i] for i in rows)
    index = torch.tensor(rows, device=inputs["completion_ids"].device)
    columns = inputs["completion_ids"].shape[1]
    out = {}
    for key, value in inputs.items():
        if isinstance(value, Tensor) and value.ndim:
            value = value[index]
            if key in PROMPT:
                value = value[:, value.shape[1] - left :]
            elif value.ndim == 2 and value.shape[1] == columns:
                value = value[:, :right]
        out[key] = value
    return out


# ---- straight rows through the model -----------------------------------------------------------------------------------

# of L columns: log-probs and entropies (n, L − 1) of tokens 1 to L − 1; where a guide reads them, hidden states (n, L, D)
Scored = tuple[Tensor | None, ...]
Model = Callable[[Tensor, Tensor], Scored]  # ids, labels (n, L)


def straight_pass(model: Model, ids: Tensor, mask: Tensor, keep: int) -> Scored:
    """Log-probs and entropies (n, keep) of the last ``keep`` columns; 0 where ``mask`` is. ids, mask (n, P + keep). Hidden states
    (n, keep + 1, D) after the prompt and after each of them; past a row's end, those of its last column."""
    prompt = ids.shape[1] - keep
    before = _reach(mask[:, :prompt].bool().flip(1))  # (n,) prompt tokens
    reach = before + _reach(mask[:, prompt:].bool())
    width = max(int(reach.max()), LEAST_COLUMNS)
    place = torch.arange(width, device=ids.device)
    source = (place + prompt - before[:, None]).clamp(max=ids.shape[1] - 1)
    inside = place < reach[:, None]
    straight, counted = ids.gather(1, source), mask.gather(1, source).bool() & inside
    straight = straight * inside  # any token: nothing looks at what comes after
    labels = torch.where(counted & (place >= before[:, None]), straight, -100)
    after = (before[:, None] - 1 + torch.arange(keep + 1, device=ids.device)).clamp(0, width - 1)
    back = after[:, :-1].clamp(max=width - 2)
    logps, entropies, *hidden = model(straight, labels)
    scored = (None if x is None else x.gather(1, back) * mask[:, prompt:].bool() for x in (logps, entropies))
    return *scored, *(h[torch.arange(len(ids), device=ids.device)[:, None], after] for h in hidden if h is not None)


def packed_pass(model: Model, ids: Tensor, mask: Tensor, keep: int, budget: int, accelerator: Any) -> Scored:
    """``straight_pass`` in micro-batches; without gradient."""
    prompt = ids.shape[1] - keep
    sizes = lengths(mask[:, :prompt], mask[:, prompt:])
    parts = cut(sizes, range(len(ids)), budget)
    out: dict[int, Tensor] = {}
    for rows in split_to(parts, most_of(len(parts), accelerator)):
        index = torch.tensor(rows, device=ids.device)
        for number, part in enumerate(straight_pass(model, ids[index], mask[index], keep)):
            if part is not None:
                whole = out.setdefault(number, part.new_zeros(len(ids), *part.shape[1:]))
                whole[index] = part
    return out[0], out.get(1), *([out[2]] if 2 in out else [])
