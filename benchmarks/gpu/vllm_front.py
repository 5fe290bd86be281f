"""What vLLM's colocated engine costs beside its model: milliseconds per decoding step, as TRL starts and asks it and as we do.

    .venv-vllm/bin/python benchmarks/gpu/vllm_front.py --to results/cpu/vllm_front.json

The model is tiny, so that a step is nearly all scheduling and bookkeeping. Run in vLLM's environment (make test-vllm), on a CPU.
Each way is a process of its own; the ways take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rollouts import colocated

from sage_rlvr.models import scratch_model
from sage_rlvr.provenance import made_with

WAYS = {"as TRL asks": (False, True), "without text": (False, False), "ours": (True, False)}  # our scheduler, text
REQUESTS, TOKENS, PROMPT = 256, 100, 60
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}


def one(way: str, folder: str) -> float:
    """Milliseconds per step, after a warm-up."""
    import vllm
    from trl.generation.vllm_generation import extract_logprobs

    brief, text = WAYS[way]
    memory = {"enforce_eager": True, "dtype": "float32", "kv_cache_memory_bytes": 2**30}
    llm = colocated(folder, REQUESTS, PROMPT + TOKENS, brief, **memory)
    prompts = [{"prompt_token_ids": [3 + (i // 8 + j) % 12 for j in range(PROMPT)]} for i in range(REQUESTS)]
    how = vllm.SamplingParams(temperature=1.0, max_tokens=TOKENS, ignore_eos=True, logprobs=0, detokenize=text)
    for _ in range(2):
        began = time.perf_counter()
        extract_logprobs(llm.generate(prompts, sampling_params=how, use_tqdm=False))
    return 1000 * (time.perf_counter() - began) / TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, help="JSON file")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ms: dict[str, list[float]] = {way: [] for way in WAYS}
    with TemporaryDirectory() as folder:
        model = scratch_model(
            Path(folder, "m"), characters="0123456789+-*=", width=128, heads=4, length=PROMPT + TOKENS
        )
        for _ in range(args.rounds):
            for way in WAYS:
                call = [sys.executable, __file__, "--to", "-", "--one", way, str(model)]
                ms[way].append(
                    float(
                        subprocess.run(
                            call, env=os.environ | ENVIRONMENT, check=True, stdout=subprocess.PIPE
                        ).stdout.split()[-1]
                    )
                )
                print(f"{way}: {ms[way][-1]:.1f} ms per step", flush=True)
    rows = {way: [round(q, 2) for q in statistics.quantiles(x, method="inclusive")] for way, x in ms.items()}
    sizes = {"requests": REQUESTS, "tokens": TOKENS, "prompt": PROMPT, "rounds": args.rounds}
    record = {"machine": made_with(), "sizes": sizes, "ms per step, quartiles": rows}
    Path(args.to).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if "--one" in sys.argv:
        print(one(*sys.argv[sys.argv.index("--one") + 1 :]))
    else:
        main()
