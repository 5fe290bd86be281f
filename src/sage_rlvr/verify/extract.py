r"""Where in a completion the answer is. Strict by default: <SOLUTION>, then \boxed, then nothing.

Every step is linear in the length of the text, whatever the text is.
"""

import re
from collections import deque

OPEN, CLOSE = "<SOLUTION>", "</SOLUTION>"
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)  # an escaped brace is a character, not a brace
_STATED = re.compile(r"(?:\banswer\s*(?:is|:|=)|####)", re.IGNORECASE)
_NUMBER = re.compile(r"(?:(?<![\w)])-)?(?:\d[\d,]*)?\.?\d+(?:/\d+)?%?")


def extract_answer(text: str, fallback: bool = False) -> str | None:
    r"""The answer a completion gives, or None.

    1. What follows the last ``<SOLUTION>``, up to ``</SOLUTION>`` or, since generation stops at that tag and most backends
       cut it off, up to the end of the text; a ``\boxed`` in there is opened. A blank one is no answer, and neither is
       an unclosed one whose braces do not balance: that completion was cut short. (One cut inside a plain number looks like a
       finished one; whoever knows that the length limit ended a completion asks ``judged_text`` first.)
    2. Else what the last ``\boxed{…}`` with balanced braces holds.
    3. Else, only with ``fallback``: what the last "answer is", "answer:", "answer =" or "####" is followed by, up to
       the end of its line or sentence; else the last number in the text.
    """
    tag = text.rfind(OPEN)
    if tag >= 0:
        return _in_solution(text[tag + len(OPEN) :])
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed.strip() or None
    return _stated(text) if fallback else None


def judged_text(text: str, truncated: bool) -> str:
    """What is judged of a completion, in training, held-out curves and evaluation alike: all of it, or, where the length limit
    ended it, nothing unless its answer was closed before. An open <SOLUTION> may have been cut inside a number, and the last
    line of unmarked text is wherever the limit fell."""
    if not truncated:
        return text
    tag = text.rfind(OPEN)
    closed = text.find(CLOSE, tag) >= 0 if tag >= 0 else extract_answer(text) is not None
    return text if closed else ""


def _in_solution(rest: str) -> str | None:
    end = rest.find(CLOSE)
    content = rest[:end] if end >= 0 else _without_half_tag(rest)
    boxed = _last_boxed(content)
    if boxed is not None:
        return boxed.strip() or None
    if end < 0 and not _balanced(content):
        return None
    return content.strip() or None


def _without_half_tag(text: str) -> str:
    """Drops a closing tag that was cut in the middle: ``12</SOLU``."""
    start = text.rfind("</", -len(CLOSE))
    return text[:start] if start >= 0 and CLOSE.startswith(text[start:]) else text


def _last_boxed(text: str) -> str | None:
    r"""Content of the balanced \boxed{…} that opens last, in one pass over the braces from the first \boxed on."""
    first = text.find("\\boxed")
    if first < 0:
        return None
    open_braces: list[int] = []  # where the content starts; −1 for a brace that is not a \boxed's
    span = None
    for m in _BRACES.finditer(text, first):
        token = m.group()
        if token == "{":
            open_braces.append(-1)
        elif token == "}":
            start = open_braces.pop() if open_braces else -1
            if start >= 0 and (span is None or start > span[0]):
                span = (start, m.start())
        elif len(token) > 2:  # \boxed{; anything else is an escaped character
            open_braces.append(m.end())
    return None if span is None else text[span[0] : span[1]]


def _balanced(text: str) -> bool:
    depth = 0
    for m in _BRACES.finditer(text):
        token = m.group()
        depth += (token[-1] == "{" and len(token) != 2) - (token == "}")
    return depth == 0


def _stated(text: str) -> str | None:
    last = deque(_STATED.finditer(text), maxlen=1)
    if last:
        line = text[last[0].end() :].lstrip().split("\n", 1)[0]
        answer = re.split(r"\.(?:\s|$)", line, maxsplit=1)[0].strip().strip("*").strip()
        if answer:
            return answer
    number = deque(_NUMBER.finditer(text), maxlen=1)
    return number[0].group() if number else None
