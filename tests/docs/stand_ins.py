"""Runs of the names that the documentation uses, small enough to be made in a second."""

from pathlib import Path
from typing import Any

import torch

from tests.report.synthetic import chances, write_log, write_store, write_trace

ARMS = {"base": (0.0, 0.0), "grpo": (0.6, 0.08), "branch": (0.55, 0.05)}


def write_runs(root: Path) -> None:
    """Evaluations of three arms as runs/ARM-eval and runs/ARM, 64 samples a problem; training logs of two; one trace."""
    for arm, (lift, reach) in ARMS.items():
        rights = {task: chances(4, i, lift, reach) for i, task in enumerate(("aime", "amc23"))}
        for folder in (f"{arm}-eval", arm):
            write_store(root / "runs" / folder, rights, n=64, model=f"toy/{arm}", words=8)
        if arm != "base":
            write_log(root / "runs" / arm, guide=arm if arm == "branch" else "none")
    write_store(root / "runs" / "x", {"amc23": [0.5]}, n=4)
    traced = write_store(root / "runs" / "eval-branch", {"aime": [0.5]}, n=2)
    write_trace(traced, [("aime", "aime-000", 0, 0)], ["base", "checkpoint-20"])


def names() -> dict[str, Any]:
    """What a fragment may take for granted: two libraries by name, and the tensors of a small batch."""
    import datasets
    import pandas

    shape, g = (2, 5), torch.Generator().manual_seed(0)
    logps, ref_logps = (-torch.rand(shape, generator=g) for _ in range(2))
    tensors = {"mask": torch.ones(shape), "entropies": 3 * torch.rand(shape, generator=g)}
    return {"pandas": pandas, "datasets": datasets, "logps": logps.requires_grad_(), "ref_logps": ref_logps, **tensors}
