"""The text of each token, so that the pieces put together are the completion, character for character."""

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any


def token_pieces(tokenizer: Any, ids: Sequence[int], completion: str) -> list[str]:
    """One piece a token; "" where a token adds no character (EOS, or bytes of a character that a later token completes).

    Their concatenation is ``completion``, also where that was cut at a stop string inside a token.
    """
    out, at = [], 0
    for piece in _decoded(tokenizer, ids):
        end = at + len(piece)
        out.append(piece if completion[at:end] == piece else completion[at:end])
        at = min(end, len(completion))
    if out and at < len(completion):  # other text than these tokens decode to: nothing of it is lost
        out[-1] += completion[at:]
    return out


def _decoded(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Each token decoded behind the one or two before it: a lone token may lose a space, or be half a character."""

    def decode(part: Sequence[int]) -> str:
        return tokenizer.decode(part, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    out: list[str] = []
    start = read = 0
    for i in range(len(ids)):
        before, now = decode(ids[start:read]), decode(ids[start : i + 1])
        if now.endswith("�") and i + 1 < len(ids) and i - read < 8:  # not a whole character yet
            out.append("")
            continue
        out.append(now[len(before) :] if now.startswith(before) else now)
        start, read = read, i + 1
    whole = decode(ids)
    return out if "".join(out) == whole else _by_prefixes([decode(ids[: i + 1]) for i in range(len(ids))], whole)


def _by_prefixes(prefixes: Sequence[str], whole: str) -> list[str]:
    """For a tokenizer whose text depends on more than two tokens of context: slow, and right by construction."""
    ends = [0]
    for text in prefixes:
        ends.append(max(ends[-1], sum(1 for _ in takewhile(lambda ab: ab[0] == ab[1], zip(text, whole)))))
    ends[-1] = len(whole)
    return [whole[a:b] for a, b in pairwise(ends)]
