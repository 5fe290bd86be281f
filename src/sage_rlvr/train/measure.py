"""What is logged beside TRL's own: KL shaped and plain, q, entropy quantiles, distinct answers, the bonus against the reward, and
where a step's time goes."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from sage_rlvr.anchor import tellable
from sage_rlvr.anchor.guides import quantiles


class PerToken(NamedTuple):
    """Of one pass of the policy, (B, T) each; None where a run has none."""

    logps: Tensor
    entropies: Tensor
    ref: Tensor | None
    log_q: Tensor | None
    penalty: Tensor | None
    mask: Tensor


@torch.no_grad()
def step(seen: PerToken, accelerator: Accelerator) -> dict[str, float]:
    """One micro-batch, over all ranks, with one gather. Means are over counted tokens; quantiles are averaged over ranks.

    ``kl_ref`` is k3 toward the plain reference (TRL's own ``kl`` is toward the shaped one; ours where the penalty is ours);
    ``sage/pseudo_kl`` the k1 mean of D̃(π‖q·π_ref), which with unnormalised q is not what k3 estimates.
    """
    logps, entropies, ref, log_q, penalty, mask = seen
    on = mask.bool()
    sums: dict[str, Tensor] = {"count": on.sum().float()}  # over counted tokens
    if ref is not None:
        log_ratio = (ref - logps).float()
        sums["kl_ref"] = _total(log_ratio.exp() - log_ratio - 1, on)
        sums["sage/pseudo_kl"] = _total(-log_ratio if log_q is None else -(log_ratio + log_q), on)
    if penalty is not None:
        sums["kl"] = _total(penalty, on)
    if log_q is not None:
        sums["sage/q_mean"] = _total(tellable(log_q).exp(), on)
        sums["sage/active"] = _total((log_q != 0).float(), on)
    nothing = torch.full((), torch.nan, device=mask.device)
    some = bool(on.any())
    levels = quantiles(entropies.float().reshape(1, -1), on.reshape(1, -1), 0.8, 0.95) if some else [nothing] * 2
    others = {"entropy_q80": levels[0].squeeze(), "entropy_q95": levels[1].squeeze()}
    if log_q is not None:
        q = tellable(log_q[on]).exp()
        others["sage/q_min"], others["sage/q_max"] = (q.min(), q.max()) if some else (nothing, nothing)
    everyone = accelerator.gather(torch.stack([*sums.values(), *others.values()])[None])  # (W, columns)
    count, *totals = everyone[:, : len(sums)].double().sum(0)
    out = {name: (total / count.clamp(min=1)).item() for name, total in zip(list(sums)[1:], totals)}
    for name, column in zip(others, everyone[:, len(sums) :].unbind(1)):
        known = column[~column.isnan()]
        reduce = {"sage/q_min": torch.amin, "sage/q_max": torch.amax}.get(name, torch.mean)
        out[name] = reduce(known, dim=0).item() if len(known) else float("nan")
    return out


def _total(x: Tensor, on: Tensor) -> Tensor:
    return torch.where(on, x.float(), 0.0).sum()


@torch.no_grad()
def bonus(task: Tensor, scaled: Tensor, mask: Tensor, accelerator: Accelerator) -> dict[str, float]:
    """k1-reward: how large the bonus of a row is against the task's advantage, both (B,), and whether it pays for length
    (correlation over rows). ``mask`` (B, T)."""
    rows = torch.stack([task.abs(), scaled.abs(), scaled, mask.sum(1).to(scaled.dtype)], dim=1)
    task_abs, bonus_abs, signed, length = accelerator.gather(rows).double().unbind(1)
    spread = signed.std() * length.std() if len(length) > 1 else torch.tensor(0.0)
    ratio = bonus_abs.mean() / task_abs.mean().clamp(min=1e-12)
    covariance = ((signed - signed.mean()) * (length - length.mean())).sum() / max(len(length) - 1, 1)
    return {
        "sage/bonus_abs": bonus_abs.mean().item(),
        "sage/bonus_to_reward": ratio.item() if task_abs.any() else float("nan"),
        "sage/bonus_length_correlation": (covariance / spread).item() if spread > 0 else float("nan"),
    }


def distinct_per_group(answers: Sequence[str | None], group: int) -> float:
    """Mean number of different answers a group gives; a completion with none does not count."""
    sizes = [len({a for a in answers[i : i + group] if a is not None}) for i in range(0, len(answers), group)]
    return sum(sizes) / max(len(sizes), 1)


def correct_lengths(
    metrics: dict[str, list[float]],
    ids: list[list[int]],
    tool_mask: Any,
    finished: list[bool],
    accelerator: Accelerator,
) -> None:
    """TRL calls whatever does not end in EOS truncated; with stop strings its latest length metrics are put right."""
    lengths = [sum(m) for m in tool_mask] if tool_mask is not None else [len(i) for i in ids]
    device = accelerator.device
    length = accelerator.gather(torch.tensor(lengths, device=device, dtype=torch.float32))
    done = accelerator.gather(torch.tensor(finished, device=device))
    ended = length[done] if bool(done.any()) else torch.zeros(1, device=device)
    right = {"clipped_ratio": (~done).float().mean(), "mean_terminated_length": ended.mean()}
    right |= {"min_terminated_length": ended.min(), "max_terminated_length": ended.max()}
    for name, value in right.items():
        metrics[f"completions/{name}"][-1] = value.item()


@contextmanager
def unrecorded(metrics: dict[str, list[float]]) -> Iterator[None]:
    """Whatever is appended inside is dropped: an extra round of sampling is not a step of its own."""
    before = {name: len(values) for name, values in metrics.items()}
    try:
        yield
    finally:
        for name in list(metrics):
            if name == "num_tokens":
                continue  # a running total, not an average
            del metrics[name][before.get(name, 0) :]
            if not metrics[name]:
                del metrics[name]


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Adds the block's seconds to ``seconds[part]``: a step may have several rounds."""
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - began
