"""Sampling on CPU: ``sage-rlvr eval`` against the authors' way, side by side in one run.

The authors' way is one problem at a time: transformers.generate with its default cache and num_return_sequences=n, then the
verdicts. Ours is the whole verb, with verification and the store. Both draw from the same small random model (characters,
so that lengths vary as its EOS falls) on the same prompts, with the same settings, and are counted by the tokens they keep.

    python benchmarks/evaluate.py                # a table
    python benchmarks/evaluate.py --json out.json
"""

import argparse
import json
import os
import platform
import string
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from sage_rlvr.evaluate.run import EvalArguments, evaluate
from sage_rlvr.models import load_model, load_tokenizer
from sage_rlvr.tasks import chat_template, get_format, load_task, make_scorer, render

TASK = "countdown-ltr"


def small_model(folder: Path, width: int, layers: int) -> None:
    """A random Qwen2 over characters, saved. Its weights are wide enough that the next character is not a fair die."""
    vocab = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *sorted(set(string.printable))])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=inner, padding_side="left", **names).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocab),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.08,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def authors_way(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    model, tokenizer = load_model(folder, dtype="float32").eval(), load_tokenizer(folder)
    fmt = get_format(args.prompt_format)
    tokenizer.chat_template = chat_template(tokenizer, fmt)
    problems = load_task(TASK, limit=args.problems, split="test")
    kept = right = 0
    start = time.perf_counter()
    with make_scorer(TASK, fallback=fmt.fallback) as scorer, torch.inference_mode():
        for problem in problems:
            prompt = tokenizer(render(problem, fmt, tokenizer), return_tensors="pt", add_special_tokens=False)
            out = model.generate(
                **prompt,
                num_return_sequences=args.n,
                do_sample=True,
                temperature=args.temperature,
                min_p=0.01,
                top_k=0,
                max_new_tokens=args.max_tokens,
                stop_strings=list(fmt.stop) or None,
                tokenizer=tokenizer,
            )[:, prompt["input_ids"].shape[1] :]
            kept += int((out != tokenizer.pad_token_id).sum())
            texts = tokenizer.batch_decode(out, skip_special_tokens=True)
            right += sum(v == 1 for v in scorer.score(texts, [problem.answer] * len(texts)))
    return {"tokens": kept, "samples": args.n * len(problems), "seconds": time.perf_counter() - start}


def our_way(folder: Path, out: Path, args: argparse.Namespace) -> dict[str, Any]:
    arguments = EvalArguments(
        model=str(folder), tasks=[TASK], out=str(out), n=args.n, seeds=[1], limit=args.problems, backend="transformers",
        temperature=args.temperature, max_tokens=args.max_tokens, prompt_format=args.prompt_format,
        batch_size=args.batch_size,
    )  # fmt: skip
    start = time.perf_counter()
    evaluate(arguments, Console(quiet=True))
    took = time.perf_counter() - start
    tokens = pq.read_table(out / "samples", columns=["tokens"]).column("tokens").to_pylist()
    return {"tokens": sum(tokens), "samples": len(tokens), "seconds": took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=48, help="problems (default: %(default)s)")
    parser.add_argument("--n", type=int, default=8, help="samples a problem (default: %(default)s)")
    parser.add_argument("--max_tokens", type=int, default=192, help="longest completion (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="(default: %(default)s)")
    parser.add_argument("--prompt_format", default="plain", help="(default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=128, help="rows we draw together (default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="of the model (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="each way, in turn (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the measurements here too")
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    ways: dict[str, list[dict[str, Any]]] = {"one problem at a time": [], "sage-rlvr eval": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        small_model(folder, args.width, args.layers)
        for i in range(args.rounds):
            ways["one problem at a time"].append(authors_way(folder, args))
            ways["sage-rlvr eval"].append(our_way(folder, Path(scratch, f"run{i}"), args))
    rates = {
        name: sum(r["tokens"] for r in rounds) / sum(r["seconds"] for r in rounds) for name, rounds in ways.items()
    }
    baseline = rates["one problem at a time"]
    shape = f"width {args.width}, {args.layers} layers"
    title = f"{args.problems} problems × {args.n} samples, up to {args.max_tokens} tokens, {shape}"
    table = Table("", "samples", "tokens", "seconds", "tokens/s", "×", title=title)
    for name, rounds in ways.items():
        total = {k: sum(r[k] for r in rounds) for k in rounds[0]}
        row = (f"{total['samples']:,}", f"{total['tokens']:,}", f"{total['seconds']:.1f}", f"{rates[name]:,.0f}")
        table.add_row(name, *row, f"{rates[name] / baseline:.1f}")
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    table.caption = (
        f"{platform.machine()}, {torch.get_num_threads()} threads, load {load}; loading the model counts for ours alone"
    )
    Console().print(table)
    if args.json:
        record = {"settings": vars(args) | {"json": str(args.json)}, "rounds": ways, "tokens_per_second": rates}
        args.json.write_text(json.dumps(record | {"times": rates["sage-rlvr eval"] / baseline}, indent=1) + "\n")


if __name__ == "__main__":
    main()
