"""What min_p leaves of a sequence's importance ratio (docs/howto/vllm.md).

    python benchmarks/truncation.py --model qwen.gguf --label "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M dequantised" \\
        --to results/cpu/truncation.json

Samples with min_p and multiplies, token after token, the mass that was kept: π/μ of the sampled tokens, where μ is the policy
after truncation, whose log-probs vLLM answers. Without truncation it is 1 at any length.
"""

import argparse
import json
from pathlib import Path

import torch

from sage_rlvr.models import load_model, load_tokenizer
from sage_rlvr.provenance import made_with
from sage_rlvr.tasks import chat_template, load_task, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hub id, folder or .gguf file")
    parser.add_argument("--label", help="what the file calls it (default: --model)")
    parser.add_argument("--task", default="dapo-math-17k")
    parser.add_argument("--prompt_format", default="boxed")
    parser.add_argument("--problems", type=int, default=4, help="the shortest of the first 400")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--min_p", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, help="JSON file")
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.model)
    tokenizer.chat_template = chat_template(tokenizer, args.prompt_format)
    tokenizer.padding_side = "left"
    model = load_model(args.model, dtype="float32").eval()
    problems = sorted(load_task(args.task, limit=400), key=lambda p: len(p.question))[: args.problems]
    turns = [row["prompt"] for row in rows(problems, args.prompt_format)]
    texts = [tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) for turn in turns]
    asked = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    torch.manual_seed(args.seed)
    log_kept, lengths = sample(model, asked, args.tokens, args.min_p, tokenizer.eos_token_id)
    found = {
        "model": args.label or args.model,
        "task": args.task,
        "min_p": args.min_p,
        "seed": args.seed,
        "tokens": lengths.tolist(),
        "kept": [round(x, 4) for x in log_kept.exp().tolist()],
        "log_kept_a_token": round(float(log_kept.sum() / lengths.sum()), 5),
        **made_with(),
    }
    print(json.dumps(found, indent=1))
    if args.to:
        args.to.write_text(json.dumps(found, indent=1) + "\n")


@torch.inference_mode()
def sample(model, asked, tokens: int, min_p: float, eos: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows,) log of the mass kept along each completion, and how many tokens it has."""
    ids, mask, past = asked["input_ids"], asked["attention_mask"], None
    log_kept, lengths = torch.zeros(len(ids)), torch.zeros(len(ids), dtype=torch.long)
    running = torch.ones(len(ids), dtype=torch.bool)
    for step in range(tokens):
        places = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(
            ids, attention_mask=mask, position_ids=places, past_key_values=past, use_cache=True, logits_to_keep=1
        )
        past, logps = out.past_key_values, out.logits[:, -1].float().log_softmax(-1)
        cut = logps < logps.amax(-1, keepdim=True) + torch.tensor(min_p).log()
        left = logps.masked_fill(cut, -torch.inf)
        log_kept += left.logsumexp(-1) * running
        lengths += running
        ids = torch.multinomial(left.softmax(-1), 1)
        running &= ids[:, 0] != eos
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
        if step % 20 == 19:
            print(f"{step + 1} of {tokens} tokens: kept {log_kept.exp().tolist()}", flush=True)
        if not running.any():
            break
    return log_kept, lengths


if __name__ == "__main__":
    main()
