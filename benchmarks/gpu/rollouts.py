"""What a batch of rollouts takes: vLLM as TRL asks it, vLLM as our trainer asks it, transformers' static cache, and lockstep.py.

    python benchmarks/gpu/rollouts.py --out results/gpu/rollouts.json             # 0.5B's sizes, 32 x 8 of up to 512, on one GPU
    python benchmarks/gpu/rollouts.py --shape 1.5b --prompts 8 --longest 1024 --out rollouts_1.5b.json
    python benchmarks/gpu/rollouts.py --tiny --ways static lockstep --out tiny.json          # a smoke test on a CPU

Random weights in bf16, as in whole_step.py: one token id in so many is an EOS, so lengths are geometric with a mean of 0.3 of the
longest. Each way is a process of its own: two rollouts to warm up, then --rounds timed ones, each to lists of ids and, but for
transformers, log-probs. Weights are in place: what a trainer's sync takes is not counted.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from replay import GIB, QWEN_0_5B, QWEN_1_5B, Shape
from whole_step import Sizes, save_model

from sage_rlvr.provenance import made_with

GROUP, WARM, SEED = 8, 2, 0
SHAPES = {"0.5b": QWEN_0_5B, "1.5b": QWEN_1_5B, "tiny": Shape(300, 64, 64, 1, 2, 2)}
WAYS = ("vllm", "vllm ours", "static", "lockstep", "lockstep compiled")
ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def sampler(way: str, folder: str, sizes: Sizes) -> Any:
    """prompts → completions' ids."""
    longest = sizes.prompts[1]
    if way.startswith("vllm"):
        return from_vllm(way, folder, sizes)
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device).eval()
    ends = model.generation_config.eos_token_id
    if way == "static":
        return lambda prompts: from_generate(model, prompts, sizes, ends)
    from lockstep import Lockstep

    if way == "lockstep compiled":
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=False)
    own = Lockstep(model, sizes.rows // GROUP, GROUP, longest, sizes.longest, ends)
    return lambda prompts: own.sample(prompts)[0]


def colocated(folder: str, rows: int, context: int, brief: bool, **more: Any) -> Any:
    """vLLM's engine as TRL starts it, in this process; ``brief``: as our trainer has it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        os.environ |= ALONE | {"MASTER_PORT": str(free.getsockname()[1])}
    import vllm

    from sage_rlvr.models.vllm_logprobs import SCHEDULER
    from sage_rlvr.sampler.colocated import BriefEngine

    more |= {"scheduler_cls": SCHEDULER} if brief else {}
    llm = vllm.LLM(
        model=folder, max_model_len=context, max_num_seqs=rows, distributed_executor_backend="external_launcher",
        max_num_batched_tokens=4096, logprobs_mode="processed_logprobs", **more,
    )  # fmt: skip
    if brief:
        BriefEngine(llm)
    return llm


def from_vllm(way: str, folder: str, sizes: Sizes) -> Any:
    import vllm
    from trl.generation.vllm_generation import extract_logprobs

    brief = way == "vllm ours"
    llm = colocated(folder, sizes.rows, sizes.prompts[1] + sizes.longest, brief, gpu_memory_utilization=0.2)
    how = vllm.SamplingParams(temperature=1.0, max_tokens=sizes.longest, logprobs=0, detokenize=not brief)

    def sample(prompts: list[list[int]]) -> list[list[int]]:
        rows = [{"prompt_token_ids": p} for p in prompts for _ in range(GROUP)]
        outputs = llm.generate(rows, sampling_params=how, use_tqdm=False)
        extract_logprobs(outputs)
        return [o.outputs[0].token_ids for o in outputs]

    return sample


def from_generate(model: Any, prompts: list[list[int]], sizes: Sizes, ends: list[int]) -> list[list[int]]:
    """transformers' own, with cache_implementation static as in TRL. Prompts are padded to one length: one compilation."""
    columns = sizes.prompts[1]
    rows = [p for p in prompts for _ in range(GROUP)]
    ids = torch.tensor([[0] * (columns - len(p)) + p for p in rows], device=model.device)
    seen = torch.tensor([[0] * (columns - len(p)) + [1] * len(p) for p in rows], device=model.device)
    with torch.no_grad():
        out = model.generate(
            input_ids=ids, attention_mask=seen, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=sizes.longest, eos_token_id=ends, pad_token_id=0, cache_implementation="static",
        )  # fmt: skip
    kept = out[:, columns:].tolist()
    return [own[: next((i + 1 for i, token in enumerate(own) if token in set(ends)), len(own))] for own in kept]


def one(way: str, folder: str, sizes: Sizes, rounds: int) -> dict[str, Any]:
    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    batches = [
        [[rng.randrange(3, 13) for _ in range(rng.randint(*sizes.prompts))] for _ in range(sizes.rows // GROUP)]
        for _ in range(WARM + rounds)
    ]
    sample, seconds, tokens = sampler(way, folder, sizes), [], []
    began = time.perf_counter()
    for prompts in batches:
        before = time.perf_counter()
        ids = sample(prompts)
        seconds.append(time.perf_counter() - before)
        tokens.append(sum(map(len, ids)))
    warm_s = sum(seconds[:WARM])
    seconds, tokens = seconds[WARM:], tokens[WARM:]
    free, whole = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    return {
        "seconds, quartiles": [round(q, 3) for q in statistics.quantiles(seconds, method="inclusive")],
        "tokens_per_s": round(sum(tokens) / sum(seconds)),
        "tokens": tokens,
        "warm_s": round(warm_s, 1),
        "whole_s": round(time.perf_counter() - began, 1),
        "card_gib": round((whole - free) / GIB, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON to write; the end of a failed way's log stands in it"
    )
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--shape", default="0.5b", choices=list(SHAPES))
    parser.add_argument("--prompts", type=int, default=32, help=f"of {GROUP} rollouts each (32)")
    parser.add_argument("--longest", type=int, default=512, help="tokens of a completion (512)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="a smoke test")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tiny:
        args.shape, args.prompts, args.longest, args.rounds = "tiny", 3, 24, 2
    sizes = Sizes(SHAPES[args.shape], args.prompts * GROUP, args.longest, (5, 20) if args.tiny else (50, 200))
    if args.one:
        args.out.write_text(json.dumps(one(args.one[0], args.one[1], sizes, args.rounds)))
        return
    result: dict[str, Any] = {"made_with": made_with(), "sizes": asdict(sizes), "rounds": args.rounds, "ways": {}}
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), sizes, "cuda" if torch.cuda.is_available() else "cpu")
        torch.cuda.empty_cache()
        for way in args.ways:
            part, log = Path(folder, "part.json"), Path(folder, "log")
            command = [sys.executable, __file__, *sys.argv[1:], "--out", str(part), "--one", way, folder]
            with log.open("w") as lines:
                failed = subprocess.run(command, stdout=lines, stderr=subprocess.STDOUT).returncode
            result["ways"][way] = {"not_run": log.read_text()[-2000:]} if failed else json.loads(part.read_text())
            args.out.write_text(json.dumps(result, indent=1) + "\n")
            print(way, json.dumps(result["ways"][way]), flush=True)


if __name__ == "__main__":
    main()
