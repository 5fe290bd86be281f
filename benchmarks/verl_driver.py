"""What the driver seam adds to a verl step: 1,024 completions of up to 4,096 tokens through a real TransferQueue.

Run in verl's environment: ``.venv-verl/bin/python benchmarks/verl_driver.py --out results/cpu/verl_driver.json``. The trainer is
verl's, built from its own config, its workers are not needed: they have written old_log_probs, entropy and ref_log_prob already.
"""

import argparse
import json
import os
import platform
import statistics
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from verl.trainer.ppo.v1 import get_trainer_cls

from sage_rlvr.integrations.verl import shape

GUIDES = {"branch": "k3", "tempered": "k3", "token": "k3", "random": "k3"}
BYTES = {"response_mask": 8, "old_log_probs": 4, "ref_log_prob": 4, "entropy": 4}  # a token, as verl stores them


def make_trainer(guide: str, rows: int) -> Any:
    overrides = [
        "trainer.v1.trainer_mode=sage_sync", f"+sage.guide={guide}", "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        f"data.train_batch_size={rows // 8}", f"actor_rollout_ref.actor.ppo_mini_batch_size={rows // 8}",
        "actor_rollout_ref.rollout.n=8",
    ]  # fmt: skip
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    trainer = get_trainer_cls("sage_sync")(config)
    trainer.global_steps, trainer.total_training_steps = 1, 1000
    return trainer


def fill_queue(rows: int, tokens: int, full: bool) -> tuple[Any, dict[str, int], int]:
    """Completions of ``tokens`` (or of uniformly drawn lengths) as they lie in the queue after verl's reference pass."""
    rng = np.random.default_rng(0)
    lengths = [tokens] * rows if full else rng.integers(tokens // 8, tokens + 1, rows).tolist()
    uids = [uuid.uuid4().hex for _ in range(rows // 8)]
    keys = [f"{uid}_{session}_0" for uid in uids for session in range(8)]
    draw = {  # name → values of one completion
        "response_mask": lambda n: torch.ones(n, dtype=torch.int64),
        "old_log_probs": lambda n: -torch.rand(n) * 3,
        "ref_log_prob": lambda n: -torch.rand(n) * 3,
        "entropy": lambda n: torch.rand(n) * 2.5,
    }
    fields = {
        name: torch.nested.as_nested_tensor([one(n) for n in lengths], layout=torch.jagged)
        for name, one in draw.items()
    }
    tq.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict(fields, batch_size=rows), tags=[{}] * rows)
    batch = tq.KVBatchMeta(partition_id="train", keys=keys, tags=[{}] * rows)
    return batch, {uid: i for i, uid in enumerate(uids)}, sum(lengths)


def measure(guide: str, batch: Any, numbers: dict[str, int], rounds: int) -> dict[str, float]:
    """Seconds of the whole seam, as the trainer runs it, and of the guide's arithmetic alone."""
    trainer = make_trainer(guide, len(batch.keys))
    trainer._prompt_number = numbers
    inside, arithmetic = [], shape.log_q
    shape.log_q = lambda *a, **k: _timed(inside, arithmetic, *a, **k)  # type: ignore[assignment]
    whole: list[float] = []
    try:
        for _ in range(rounds + 1):
            _timed(whole, trainer._shape, batch, {})
    finally:
        shape.log_q = arithmetic
    moved = sum(BYTES[f] for f in BYTES if f != "entropy" or "entropies" in trainer.guide.needs) + BYTES["ref_log_prob"]
    return {
        "seconds": round(statistics.median(whole[1:]), 3),
        "slowest": round(max(whole[1:]), 3),
        "of which the guide": round(statistics.median(inside[1:]), 3),
        "bytes a token moved": moved,
    }


def _timed(times: list[float], function: Any, *args: Any, **kwargs: Any) -> Any:
    start = time.perf_counter()
    out = function(*args, **kwargs)
    times.append(time.perf_counter() - start)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--varied", action="store_true", help="lengths drawn between tokens/8 and tokens")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=2**29)
    tq.init()
    batch, numbers, tokens = fill_queue(args.rows, args.tokens, not args.varied)
    result: dict[str, Any] = {
        "what": "driver seam of sage_sync, verl 0.9.1: read from TransferQueue, log q, write the shaped ref_log_prob back",
        "machine": {
            "cores": len(os.sched_getaffinity(0)), "processor": platform.machine(), "threads": 1,
            "python": platform.python_version(), "torch": torch.__version__, "load": [round(x, 1) for x in os.getloadavg()],
        },
        "rows": args.rows, "tokens_a_row": args.tokens, "tokens": tokens, "rounds": args.rounds, "guides": {},
    }  # fmt: skip
    for guide in GUIDES:
        result["guides"][guide] = found = measure(guide, batch, numbers, args.rounds)
        found["ns a token"] = round(found["seconds"] / tokens * 1e9, 1)
        print(guide, found, flush=True)
    tq.close()
    ray.shutdown()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
