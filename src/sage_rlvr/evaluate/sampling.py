"""How one token is drawn, where a completion ends, and what crosses between a run and its backends.

Every draw is addressed, not taken from a stream: the uniform of token t is a hash of (seed, task, problem, index, t), so a
sample is the same whoever else is in its batch and however often the run was interrupted.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import Tensor

from sage_rlvr.anchor import noise
from sage_rlvr.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """Temperature, then min_p, then top_k, then top_p (vLLM's order). Temperature 0 takes the likeliest token.

    The log-prob of a sample is summed under the distribution its tokens were drawn from: tempered, truncated, renormalised.
    That is vLLM's ``processed_logprobs`` and what TRL's own vLLM rollouts report; with min_p 0, top_p 1 and top_k off it is
    TRL's per-token log-prob at that temperature. Greedy: the model's own, at temperature 1 and without truncation.
    """

    temperature: float = 0.3
    top_p: float = 1.0
    min_p: float = 0.01
    top_k: int = 0  # 0: off
    max_tokens: int = 2048
    stop: tuple[str, ...] = ()  # a completion ends with the token that completes one of these

    def __post_init__(self) -> None:
        limits = {
            "temperature": (self.temperature >= 0 and math.isfinite(self.temperature), "0 (greedy) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "in 0..1"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
        }
        for name, (fine, wanted) in limits.items():
            if not fine:
                raise UserError(f"{name}={getattr(self, name)} must be {wanted}.")


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to draw. ``prompt`` is shared between all samples of a problem."""

    task: str
    problem: str
    seed: int
    index: int
    prompt: tuple[int, ...]  # token ids
    wanted: bool = True  # False: drawn only so that its batch is what it was, and thrown away

    @property
    def key(self) -> int:
        """62 bits: all the randomness of this sample follows from it."""
        address = repr((self.seed, self.task, self.problem, self.index)).encode()
        return int.from_bytes(blake2b(address, digest_size=8).digest(), "big") >> 2


@dataclass(slots=True)
class Generation:
    """What a backend gives back. ``token_ids`` and ``logprob`` include the EOS or the token that completed a stop string."""

    request: Request
    token_ids: list[int]
    text: str
    finish: str  # "stop" or "length"
    logprob: float | None


class Backend(Protocol):
    """``batch_size`` is None where a sample does not depend on its batch-mates; else batches are drawn whole."""

    batch_size: int | None

    def generate(self, requests: Iterator[Request]) -> Iterator[list[Generation]]: ...
    def close(self) -> None: ...


# ---- drawing -----------------------------------------------------------------------------------------------------


def uniforms(keys: Sequence[int], steps: int, device: Any = "cpu") -> Tensor:
    """(B, steps) float64 in (0, 1), 46 bits each, a function of key and step alone."""
    rows = torch.tensor(keys, dtype=torch.int64, device=device)
    coarse, fine = (noise.uniform(0, rows, steps, stream).double() for stream in (0, 1))
    return coarse + (fine - 0.5) / 2**23


def truncated(logits: Tensor, how: Sampling) -> Tensor:
    """(B, V) log-probs of the distribution that is drawn from; −inf where nothing is."""
    logps = torch.log_softmax(logits.float() / how.temperature, dim=-1)
    if how.min_p > 0:
        logps = logps.masked_fill(logps < logps.amax(-1, keepdim=True) + math.log(how.min_p), -torch.inf)
    if 0 < how.top_k < logps.shape[-1]:
        logps = logps.masked_fill(logps < logps.topk(how.top_k, dim=-1).values[:, -1:], -torch.inf)
    if how.top_p < 1:
        ordered, places = torch.log_softmax(logps, -1).sort(dim=-1, descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()  # mass of the likelier ones: the first is always kept
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, places, before >= how.top_p)
        logps = logps.masked_fill(dropped, -torch.inf)
    return torch.log_softmax(logps, dim=-1)


def draw(logits: Tensor, how: Sampling, u: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (B,) and their log-probs (B,) from logits (B, V) and uniforms (B,), by inverting the cumulative distribution."""
    if how.temperature == 0:
        logps = torch.log_softmax(logits.float(), dim=-1)
        tokens = logps.argmax(-1)
    else:
        logps = truncated(logits, how)
        cumulative = logps.double().exp().cumsum(-1)
        # right=True: the first token whose cumulative mass exceeds u, so never one without mass
        tokens = torch.searchsorted(cumulative, (u * cumulative[:, -1])[:, None], right=True)[:, 0]
        tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens, logps.gather(-1, tokens[:, None])[:, 0]


# ---- where a completion ends -------------------------------------------------------------------------------------


class Stops:
    """Finds the token that completes a stop string, looking only where one could.

    Decoding every row at every step would cost more than a small model's forward pass, so a row is decoded only after a
    token that holds the last character of some stop string.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str], eos: Sequence[int]):
        self.tokenizer, self.stop, self.eos = tokenizer, tuple(stop), frozenset(eos)
        self.window = 2 * max(map(len, stop), default=0) + 16  # tokens: some decode to nothing
        self.closing = self._closing(len(tokenizer))

    def _closing(self, size: int) -> frozenset[int] | None:
        """Tokens that may complete a stop string; None: any may."""
        lasts = {s[-1] for s in self.stop}
        if not all(c.isascii() for c in lasts):  # its bytes may be spread over tokens
            return None
        texts = self.tokenizer.batch_decode([[i] for i in range(size)])
        return frozenset(i for i, text in enumerate(texts) if lasts & set(text))

    def ends(self, ids: Sequence[int]) -> bool:
        """Whether a completion ends with the last of these tokens."""
        if ids[-1] in self.eos:
            return True
        if not self.stop or (self.closing is not None and ids[-1] not in self.closing):
            return False
        tail = self.decode(ids[-self.window :])
        return any(s in tail for s in self.stop)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def text(self, ids: Sequence[int]) -> str:
        """The completion's text, up to the end of the first stop string (its token may hold more)."""
        text = self.decode(ids)
        ends = [at + len(s) for s in self.stop if (at := text.find(s)) >= 0]
        return text[: min(ends)] if ends else text


# ---- which samples are missing -----------------------------------------------------------------------------------


Have = Callable[[tuple[str, str, int]], set[int]]  # (task, problem, seed) → indices that are there


@dataclass(frozen=True)
class Ask:
    """A problem with its prompt, in the run's order."""

    task: str
    problem: str
    prompt: tuple[int, ...]


def missing(asks: Sequence[Ask], seeds: Sequence[int], n: int, have: Have, batch: int | None) -> Iterator[Request]:
    """Requests for what the store does not have, one at a time: the whole list is never made.

    With ``batch``, the full list (longest prompts first) is cut into batches of that size, and a batch with any gap is
    given whole: the floats of a padded batch depend on who is in it, so only the same batch gives the same samples.
    """
    waiting: list[Request] = []
    for ask in sorted(asks, key=lambda a: (-len(a.prompt), a.task, a.problem)):
        for seed in seeds:
            there = have((ask.task, ask.problem, seed))
            for index in range(n):
                request = Request(ask.task, ask.problem, seed, index, ask.prompt, index not in there)
                if batch is None:
                    if request.wanted:
                        yield request
                    continue
                waiting.append(request)
                if len(waiting) == batch:
                    yield from waiting if any(r.wanted for r in waiting) else ()
                    waiting = []
    yield from waiting if any(r.wanted for r in waiting) else ()
