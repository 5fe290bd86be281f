"""SAGE from top to bottom, in plain torch and transformers: sample, judge, advantage, guide, penalty, step.

python examples/sage_loop.py                  # a tiny new model learns to add; k3 in the loss, as published
python examples/sage_loop.py k1-reward        # the penalty in the reward, as derived

For reading and for trying ideas. Loss and gradient are those of SAGETrainer (a test compares them); the trainer adds LoRA, vLLM,
several GPUs, long vocabularies, checkpoints and logs. Nothing of sage_rlvr is imported here.

Shapes: B completions (prompts × group, a group's rows lie together), P prompt tokens, T completion tokens, V vocabulary.
"""

import copy
import random
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

GROUP, PROMPTS, NEW_TOKENS = 16, 16, 2
BETA, RATE, TEMPERATURE = 0.05, 2e-3, 1.0


# ---- 1. sample: completions of the policy, and which of their tokens count -----------------------------------------


def sample(model, tokenizer, prompts: list[str]) -> tuple[Tensor, Tensor, Tensor]:
    """ids (B, P + T), attention (B, P + T), mask (B, T): 1 up to and including the end of the completion."""
    rows = tokenizer([p for p in prompts for _ in range(GROUP)], return_tensors="pt", padding=True, padding_side="left")
    ids = model.generate(
        **rows, do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, max_new_tokens=NEW_TOKENS,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    completion = ids[:, rows.input_ids.shape[1] :]
    ended = (completion == tokenizer.eos_token_id).int()
    mask = (ended.cumsum(1) - ended == 0).int()  # no end before this token
    return ids, torch.cat([rows.attention_mask, mask], 1), mask


# ---- 2. judge: a reward of 0 or 1 ----------------------------------------------------------------------------------


def judge(texts: list[str], answers: list[str]) -> Tensor:
    """(B,)"""
    return torch.tensor([float(text.strip() == answer) for text, answer in zip(texts, answers)])


# ---- 3. advantage: against the other completions of the same prompt ------------------------------------------------


def advantages(rewards: Tensor, group: int) -> Tensor:
    """(B,) GRPO's: (r − mean)/(std + 1e-4) over the group."""
    r = rewards.view(-1, group)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()


# ---- 4. log-probs and entropies of the sampled tokens --------------------------------------------------------------


def score(model, ids: Tensor, attention: Tensor, length: int, temperature: float) -> tuple[Tensor, Tensor]:
    """log π(y_t) (B, T) and the entropy of each state (B, T), in nats, of the last ``length`` tokens."""
    logits = model(input_ids=ids, attention_mask=attention).logits[:, -length - 1 : -1].float() / temperature
    logps = logits.log_softmax(-1)  # (B, T, V)
    entropies = -(logps.exp() * logps).sum(-1)
    return logps.gather(-1, ids[:, -length:, None])[..., 0], entropies


# ---- 5. guide: log q, the shape of the anchor q·π_ref --------------------------------------------------------------


def branch(entropies: Tensor, mask: Tensor, ratio: float = 0.3, threshold: float = 1.2) -> Tensor:
    """(B, T) log q, q = 1 + ratio·max(0, H − threshold) within [0.6, 1.4]: larger where the policy is undecided."""
    q = (1 + ratio * (entropies - threshold).clamp(min=0)).clamp(0.6, 1.4)
    return (q.log() * mask).detach()


# ---- 6. the loss ---------------------------------------------------------------------------------------------------


def sage_loss(
    logps: Tensor, ref_logps: Tensor, log_q: Tensor, mask: Tensor, advantage: Tensor, group: int, beta: float, estimator: str
) -> Tensor:  # fmt: skip
    """Policy gradient with the pull toward q·π_ref: ``k3`` in the loss (published), or ``k1-reward`` (derived, Eq. 6)."""
    log_ratio = ref_logps + log_q - logps  # log(q·π_ref/π), (B, T)
    if estimator == "k1-reward":  # −KL as a reward of the whole completion, centred over its group
        bonus = (log_ratio.detach() * mask).sum(1).view(-1, group)
        advantage = advantage + beta * (bonus - bonus.mean(1, keepdim=True)).flatten()
    ratio = (
        logps - logps.detach()
    ).exp()  # π/π_old: 1 in value, ∇log π in gradient; one update per rollout needs no clip
    per_token = -ratio * advantage[:, None]
    if estimator == "k3":
        per_token = per_token + beta * (log_ratio.exp() - log_ratio - 1)
    return (
        (per_token * mask).sum(1) / mask.sum(1)
    ).mean()  # GRPO's: the mean of each completion, then over completions


# ---- 7. the loop ---------------------------------------------------------------------------------------------------


def train(model, tokenizer, problems: list[tuple[str, str]], steps: int, estimator: str = "k3") -> list[float]:
    """The mean reward of each step. ``problems`` are (prompt, answer)."""
    reference = copy.deepcopy(model).eval().requires_grad_(False)  # π_ref: where training starts
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    curve = []
    for step in range(steps):
        chosen = random.sample(problems, PROMPTS)
        with torch.no_grad():
            ids, attention, mask = sample(model, tokenizer, [prompt for prompt, _ in chosen])
        length = mask.shape[1]
        texts = [tokenizer.decode(row[on.bool()]).replace(" ", "") for row, on in zip(ids[:, -length:], mask)]
        texts = [text.removesuffix(tokenizer.eos_token) for text in texts]
        rewards = judge(texts, [answer for _, answer in chosen for _ in range(GROUP)])
        logps, entropies = score(model, ids, attention, length, TEMPERATURE)
        with torch.no_grad():
            ref_logps, _ = score(reference, ids, attention, length, TEMPERATURE)
        log_q = branch(entropies, mask)  # no gradient goes through q
        loss = sage_loss(logps, ref_logps, log_q, mask, advantages(rewards, GROUP), GROUP, BETA, estimator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        curve.append(rewards.mean().item())
        if step % 10 == 9:
            print(f"step {step + 1:3}  reward {sum(curve[-10:]) / 10:.3f}  entropy {entropies[mask.bool()].mean():.2f}")
    return curve


def tiny() -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """A two-layer Qwen2 over characters, with new weights."""
    vocab = {t: i for i, t in enumerate(["<pad>", "<eos>", *"0123456789+="])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(vocab), num_key_value_heads=2, **size))
    return model, PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


if __name__ == "__main__":
    torch.manual_seed(0)
    random.seed(0)
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(5) for b in range(5)]
    train(*tiny(), sums, steps=150, estimator=sys.argv[1] if len(sys.argv) > 1 else "k3")
