"""Evaluation on a GPU with vLLM: how fast, and whether every backend says the same.

    python benchmarks/gpu/evaluate_vllm.py --model MODEL --data_dir DATA --json out.json

Each part runs in a process of its own, so that one that fails, or an engine that keeps its memory, leaves the others alone:
  throughput   tokens/s of bare vllm.LLM.generate (unseeded, no log-probs) and of the whole ``sage-rlvr eval`` with seeds,
               log-probs, verification and the store: one engine, the same prompts, in turn. Goal: 95%
  float32, bfloat16   greedy completions of the transformers and vllm backends on --small, and sampled log-probs of both
               against TRL's GRPOTrainer on the same tokens
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from sage_rlvr.evaluate import backends, run
from sage_rlvr.evaluate.sampling import Ask, Generation, Request, Sampling, missing
from sage_rlvr.evaluate.vllm_backend import Engine, EngineSettings, VllmBackend
from sage_rlvr.tasks import chat_template, get_format, load_task

QUICK = (("enforce_eager", True),)  # parts that measure no speed start without compiling


def asks_of(model: str, args: argparse.Namespace, limit: int) -> tuple[Any, list[Ask]]:
    tokenizer, fmt = (
        backends.tokenizer_of(backends.sources(model, None)[0], None, False),
        get_format(args.prompt_format),
    )
    tokenizer.chat_template = chat_template(tokenizer, fmt)
    problems = [p for name in args.tasks.split(",") for p in load_task(name, args.data_dir, limit, split="test")]
    return tokenizer, list(run._asks(problems, fmt, tokenizer))


def everything(asks: list[Ask], n: int) -> Iterator[Request]:
    return missing(asks, [0], n, lambda cell: set(), None)


def engine_settings(
    args: argparse.Namespace, model: str, tokenizer: Any, asks: list[Ask], how: Sampling, **more: Any
) -> EngineSettings:
    from transformers import GenerationConfig

    from sage_rlvr.evaluate.transformers_backend import eos_ids

    try:
        own: Any = GenerationConfig.from_pretrained(model)
    except OSError:
        own = None
    longest = max(len(a.prompt) for a in asks)
    eos = tuple(eos_ids(own, tokenizer))
    share = args.gpu_memory_utilization
    return EngineSettings(
        model=model, how=how, eos=eos, context=longest + how.max_tokens, gpu_memory_utilization=share, **more
    )


# ---- throughput --------------------------------------------------------------------------------------------------


def throughput(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    import vllm

    tokenizer, asks = asks_of(args.model, args, args.limit)
    how = Sampling(temperature=args.temperature, max_tokens=args.max_tokens, stop=get_format(args.prompt_format).stop)
    settings = engine_settings(args, args.model, tokenizer, asks, how)
    backend = VllmBackend(settings, ["0"])
    assert backend.engine is not None
    llm, engine = backend.engine.llm, backend.engine
    prompts = [{"prompt_token_ids": list(r.prompt)} for r in everything(asks, args.n)]
    bare = vllm.SamplingParams(
        temperature=how.temperature,
        min_p=how.min_p,
        max_tokens=how.max_tokens,
        stop=list(how.stop),
        include_stop_str_in_output=True,
        stop_token_ids=list(settings.eos),
    )
    for params in (bare, engine.parameters(next(everything(asks, 1)))):  # every kernel and every prompt's prefix warm
        llm.generate(prompts[:: args.n], params, use_tqdm=False)
    rounds: dict[str, list[dict[str, float]]] = {"bare": [], "ours": []}
    for i in range(args.rounds):
        rounds["bare"].append(_timed_bare(llm, prompts, bare))
        rounds["ours"].append(_timed_eval(backend, args, work / f"run{i}"))
        print({name: round(r[-1]["tokens"] / r[-1]["seconds"]) for name, r in rounds.items()}, flush=True)
    rates = {k: sum(r["tokens"] for r in v) / sum(r["seconds"] for r in v) for k, v in rounds.items()}
    shares = [o["tokens"] / o["seconds"] * b["seconds"] / b["tokens"] for b, o in zip(*rounds.values())]
    share = rates["ours"] / rates["bare"]
    return {
        "rounds": rounds, "tokens_per_second": rates, "share_of_bare": share, "by_round": shares, "meets_95": share >= 0.95,
        "most_in_flight": engine.peak, "requests": len(prompts), "vllm": vllm.__version__,
    }  # fmt: skip


def _timed_bare(llm: Any, prompts: list[Any], params: Any) -> dict[str, float]:
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    took = time.perf_counter() - start
    return {"tokens": sum(len(o.outputs[0].token_ids) for o in outputs), "seconds": took}


def _timed_eval(backend: VllmBackend, args: argparse.Namespace, out: Path) -> dict[str, float]:
    """The whole verb around an engine that is up already; the clock starts when the first request is asked for."""
    started: list[float] = []
    drawn: list[float] = []  # when the last sample was there
    tokens = 0

    class Lent:
        batch_size = None

        def generate(self, requests: Iterator[Request]) -> Iterator[list[Generation]]:
            nonlocal tokens
            started.append(time.perf_counter())
            for batch in backend.generate(requests):
                tokens += sum(len(g.token_ids) for g in batch)
                yield batch
            drawn.append(time.perf_counter())

        def close(self) -> None:
            pass

    real, run.backends.make_backend = run.backends.make_backend, lambda *_, **__: Lent()  # type: ignore[assignment,return-value]
    try:
        run.evaluate(
            run.EvalArguments(
                model=args.model, tasks=args.tasks, out=str(out), n=args.n, seeds=[1], limit=args.limit, backend="vllm",
                temperature=args.temperature, max_tokens=args.max_tokens, prompt_format=args.prompt_format,
                data_dir=args.data_dir,
            )
        )  # fmt: skip
        end = time.perf_counter()
        return {"tokens": tokens, "seconds": end - started[0], "of these after the last draw": end - drawn[0]}
    finally:
        run.backends.make_backend = real


# ---- agreement ---------------------------------------------------------------------------------------------------


def drawn(backend: Any, asks: list[Ask], n: int) -> list[dict[str, Any]]:
    rows = [
        {"problem": g.request.problem, "index": g.request.index, "prompt": list(g.request.prompt), "ids": g.token_ids,
         "logprob": g.logprob, "finish": g.finish}
        for batch in backend.generate(everything(asks, n))
        for g in batch
    ]  # fmt: skip
    return sorted(rows, key=lambda r: (r["problem"], r["index"]))


def compare(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> dict[str, Any]:
    """Share of identical completions, and where the others part."""
    shared = [next((i for i, (x, y) in enumerate(zip(p["ids"], q["ids"])) if x != y), None) for p, q in zip(a, b)]
    same = [p["ids"] == q["ids"] for p, q in zip(a, b)]
    gaps = [abs(p["logprob"] - q["logprob"]) for p, q, s in zip(a, b, same) if s]
    return {
        "completions": len(a),
        "identical": sum(same) / len(same),
        "first_difference_at": [i for i in shared if i is not None],
        "tokens_before_difference": sum(len(p["ids"]) if i is None else i for p, i in zip(a, shared)) / len(a),
        "largest_logprob_gap_where_identical": max(gaps, default=None),
    }


def agreement(args: argparse.Namespace, work: Path, dtype: str) -> dict[str, Any]:
    """Draws with both backends, one process each, then TRL on the same tokens."""
    steps = [f"draw-{kind}-{dtype}" for kind in ("vllm", "transformers")]
    for name in (*steps, f"trl-{dtype}"):
        call(name, args, work)
    files = {step: json.loads((work / f"{step}.json").read_text()) for step in steps}
    vllm_rows, ours = (files[step]["greedy"] for step in steps)
    trl = json.loads((work / f"trl-{dtype}.json").read_text())
    return {"greedy": compare(vllm_rows, ours), "logprobs_against_trl": trl}


def draw_with(args: argparse.Namespace, work: Path, kind: str, dtype: str) -> dict[str, Any]:
    """Greedy, and 4 samples a problem at temperature 0.7 without truncation, where our sum is TRL's."""
    import torch

    tokenizer, asks = asks_of(args.small, args, args.small_limit)
    stop = get_format(args.prompt_format).stop
    out: dict[str, Any] = {}
    greedy = Sampling(temperature=0, max_tokens=args.small_tokens, stop=stop)
    sampled = Sampling(temperature=0.7, min_p=0.0, max_tokens=args.small_tokens, stop=stop)
    if kind == "vllm":
        engine = Engine(engine_settings(args, args.small, tokenizer, asks, greedy, dtype=dtype, more=QUICK))
    else:
        from sage_rlvr.evaluate.transformers_backend import TransformersBackend
        from sage_rlvr.models import load_model

        model = load_model(args.small, dtype=dtype).to("cuda" if torch.cuda.is_available() else "cpu")
    for name, how, n in (("greedy", greedy, 1), ("sampled", sampled, 4)):
        if kind == "vllm":
            engine.settings = engine_settings(args, args.small, tokenizer, asks, how, dtype=dtype, more=QUICK)
            backend: Any = VllmBackend.__new__(VllmBackend)
            backend.engine, backend.workers = engine, None
        else:
            backend = TransformersBackend(model, tokenizer, how, 32, static=False)
        out[name] = drawn(backend, asks, n)
    return out


def trl_logprobs(args: argparse.Namespace, work: Path, dtype: str) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    cpu = not torch.cuda.is_available()
    config = GRPOConfig(
        output_dir=str(work / "trl"), temperature=0.7, beta=0.0, report_to="none", bf16=False, use_cpu=cpu,
        per_device_train_batch_size=8, num_generations=8, model_init_kwargs={"dtype": dtype}, save_strategy="no",
        gradient_checkpointing=False,
    )  # fmt: skip
    rows = Dataset.from_dict({"prompt": ["a"] * 8})
    trainer = GRPOTrainer(args.small, lambda completions, **_: [0.0] * len(completions), config, train_dataset=rows)
    model = trainer.model.to("cpu" if cpu else "cuda").eval()
    found = {}
    for kind in ("vllm", "transformers"):
        path = work / f"draw-{kind}-{dtype}.json"
        gaps = []
        for row in json.loads(path.read_text())["sampled"]:
            ids = torch.tensor([row["prompt"] + row["ids"]], device=model.device)
            with torch.no_grad():
                logps, _, _ = trainer._get_per_token_logps_and_entropies(
                    model, ids, torch.ones_like(ids), len(row["ids"])
                )
            gaps.append(abs(float(logps.float().sum()) - row["logprob"]) / len(row["ids"]))
        gaps.sort()
        found[kind] = {"mean_gap_a_token": sum(gaps) / len(gaps), "median": gaps[len(gaps) // 2], "largest": gaps[-1]}
    return found


PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
    "throughput": throughput,
    "float32": lambda a, w: agreement(a, w, "float32"),
    "bfloat16": lambda a, w: agreement(a, w, "bfloat16"),
}
DTYPES = ("float32", "bfloat16")
STEPS = PARTS | {f"trl-{d}": (lambda a, w, d=d: trl_logprobs(a, w, d)) for d in DTYPES}
STEPS |= {f"draw-vllm-{d}": (lambda a, w, d=d: draw_with(a, w, "vllm", d)) for d in DTYPES}
STEPS |= {f"draw-transformers-{d}": (lambda a, w, d=d: draw_with(a, w, "transformers", d)) for d in DTYPES}


def call(step: str, args: argparse.Namespace, work: Path) -> None:
    """Runs a step in a process of its own; its result is in ``work``/step.json."""
    said = [f"--{k}={v}" for k, v in vars(args).items() if v is not None and k not in ("step", "work", "parts", "json")]
    subprocess.run(
        [sys.executable, __file__, *said, f"--step={step}", f"--work={work}"], check=True, timeout=args.timeout
    )


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder for throughput")
    parser.add_argument("--small", help="model folder for the agreement parts (default: --model)")
    parser.add_argument("--data_dir", help="folder of JSONL task files")
    parser.add_argument("--tasks", default="amc23", help="one or more, with commas (default: %(default)s)")
    parser.add_argument(
        "--limit", type=int, default=40, help="problems of each task for throughput (default: %(default)s)"
    )
    parser.add_argument("--n", type=int, default=64, help="samples a problem for throughput (default: %(default)s)")
    parser.add_argument("--max_tokens", type=int, default=512, help="for throughput (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.3, help="for throughput (default: %(default)s)")
    parser.add_argument("--prompt_format", default="paper", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of each way, in turn (default: %(default)s)")
    parser.add_argument(
        "--small_limit", type=int, default=16, help="problems of each task for agreement (default: %(default)s)"
    )
    parser.add_argument("--small_tokens", type=int, default=128, help="tokens for agreement (default: %(default)s)")
    parser.add_argument("--gpu_memory_utilization", type=float, default=0.8, help="(default: %(default)s)")
    parser.add_argument("--parts", default=",".join(PARTS), help="(default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a part may take (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=Path("evaluate_vllm.json"), help="(default: %(default)s)")
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    args = flags().parse_args()
    args.small = args.small or args.model
    if args.step:
        result = STEPS[args.step](args, args.work)
        (args.work / f"{args.step}.json").write_text(json.dumps(result) + "\n")
        return 0
    report: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(args).items()}}
    with tempfile.TemporaryDirectory() as scratch:
        for part in args.parts.split(","):
            start = time.perf_counter()
            try:
                call(part, args, Path(scratch))
                report[part] = json.loads(Path(scratch, f"{part}.json").read_text())
            except (subprocess.SubprocessError, OSError, ValueError) as e:
                report[part] = {"failed": str(e)[-500:]}
            report[part]["part_seconds"] = time.perf_counter() - start
            print(part, json.dumps(report[part])[:2000], flush=True)
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(report, indent=1) + "\n")  # after every part: a machine may be taken away
    return int(any("failed" in report[part] for part in args.parts.split(",")))


if __name__ == "__main__":
    sys.exit(main())
