"""The text of each token, so that the pieces put together are the completion, character for character."""

from collections.abc import Sequence
from typing import Any


def token_pieces(tokenizer: Any, ids: Sequence[int], completion: str) -> list[str]:
    """One piece per token; "" where a token adds no character (EOS, or bytes of a character that a later token completes).

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
    return out
