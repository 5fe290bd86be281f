"""Are an evaluation's samples those of its model? Stored completions read again by transformers, in float32 on a CPU unless
said otherwise (--dtype bfloat16 --device cuda asks whether that device computes what it should).

    python benchmarks/reread.py runs/mine --limit 8 --longest 200 --to reread.json
    python benchmarks/reread.py runs/mine --model BASE --adapter runs/mine/train    # where they lie now

A sample's stored log-prob is that of the distribution it was drawn from, after temperature and truncation, as the engine had it.
For each: what the model gives the same tokens, less what is stored, a token. For an adapter's samples also the base's, which says
how much the adapter is. Works for samples of any backend.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from sage_rlvr.analysis.scoring import ModelSource, Prompts, source_of
from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.sampling import Sampling, truncated
from sage_rlvr.provenance import made_with
from sage_rlvr.store import SampleStore

HOW = ("temperature", "top_p", "min_p", "top_k", "max_tokens")
NEVER = -30.0  # log-prob of a token that truncation would have dropped, or whose own is not a number


def chosen(store: SampleStore, longest: int, limit: int) -> list[dict[str, Any]]:
    """The first samples of at most so many tokens, in the order they were drawn."""
    columns = ["task", "problem", "tokens", "token_ids", "logprob"]
    rows = (row for batch in store.scan(columns) for row in batch.to_pylist())
    return list(islice((row for row in rows if 0 < row["tokens"] <= longest), limit))


@torch.inference_mode()
def gaps(model: PreTrainedModel, rows: Sequence[dict[str, Any]], prompts: Prompts, how: Sampling) -> list[float]:
    """Log-prob less the stored one, a token, of each sample."""
    found = []
    for row in rows:
        prompt, tokens = list(prompts(row["task"], row["problem"])), list(row["token_ids"])
        ids = torch.tensor([prompt + tokens], device=model.device)
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float().cpu()
        drawn_from = truncated(logits, how) if how.temperature else logits.log_softmax(-1)  # greedy: the model's own
        logps = drawn_from.gather(1, torch.tensor(tokens)[:, None])
        found.append((logps.nan_to_num(nan=NEVER).clamp(min=NEVER).sum().item() - row["logprob"]) / len(tokens))
    return found


def summary(found: list[float], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    tokens = [row["tokens"] for row in rows]
    mean = sum(gap * n for gap, n in zip(found, tokens)) / sum(tokens)
    return {"mean": round(mean, 5), "largest": round(max(map(abs, found)), 5), "each": [round(gap, 5) for gap in found]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of an evaluation")
    parser.add_argument(
        "--model", help="the model that was sampled, where it lies now (default: as the folder names it)"
    )
    parser.add_argument("--adapter", help="the adapter that was on it, likewise")
    parser.add_argument("--dtype", default="float32", help="that the model is read in (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="that reads it (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=8, help="samples")
    parser.add_argument("--longest", type=int, default=256, help="only samples of at most so many tokens")
    parser.add_argument("--data_dir", help="folder of local task files, as eval had it")
    parser.add_argument("--to", type=Path, help="JSON file")
    args = parser.parse_args()
    try:
        found = read_again(args)
    except UserError as e:
        parser.exit(2, f"{e}\n")
    print(json.dumps(found, indent=1))
    if args.to:
        args.to.write_text(json.dumps(found, indent=1) + "\n")


def read_again(args: argparse.Namespace) -> dict[str, Any]:
    store, named = SampleStore(args.folder, readonly=True), source_of(args.folder)
    source = ModelSource(args.model or named.model, args.adapter or named.adapter)
    rows = chosen(store, args.longest, args.limit)
    if not rows:
        raise UserError(f"{args.folder} has no sample of at most {args.longest} tokens: raise --longest.")
    prompts = Prompts(store, source.tokenizer(), args.data_dir)
    how = Sampling(**{name: store.settings[name] for name in HOW})
    kinds = {"model": source, **({"without its adapter": ModelSource(source.model)} if source.adapter else {})}
    return {
        "samples": len(rows),
        "tokens": sum(row["tokens"] for row in rows),
        "backend": store.settings["backend"],
        "read in": f"{args.dtype}, {args.device}",
        "sampled with": json.loads(made.read_text()) if (made := Path(args.folder, "made.json")).is_file() else None,
        "gap a token": {
            name: summary(gaps(kind.load(args.dtype, args.device), rows, prompts, how), rows)
            for name, kind in kinds.items()
        },
        **made_with(),
    }


if __name__ == "__main__":
    main()
