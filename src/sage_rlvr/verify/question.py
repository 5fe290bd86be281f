r"""What only the question can tell of an answer: whether it asks for a percentage, what it calls the value, and whether the
answer says more than the question did (``54 \times 46`` is worth 2484, and no answer to "What is $54 \times 46$?")."""

import re
from collections import Counter
from functools import lru_cache

from sage_rlvr.verify import notation

_ASKS_PERCENT = re.compile(
    r"\b(?:what|which|how|find|express|determine|calculate|compute|give|write|as|nearest)\b(?:[^.?!]|\.\d)*?"
    r"(?<![\d\\])(?<!\d\s)(?:percent|\\?%)",  # not that of "find 50% of 10"
    re.IGNORECASE,
)
_SPAN = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SIDES = re.compile(r"=|<|>|\\(?:leq?|geq?|neq?|approx|equiv|to|in)\b|[,;]|\\\\|&")
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|quad|qquad|[bB]igg?[lr]?)\b|\\[,:;! ]|\\begin\{\w+\*?\}|\\end\{\w+\*?\}|\^\{?\\circ\}?"
)
_SAME = [
    (re.compile(r"\\[dtc]?frac\b|\\div\b|÷"), "/"),
    (re.compile(r"\\(?:cdot|times|ast)\b|[×·]"), "*"),
    (re.compile("−"), "-"),
]
_TOKEN = re.compile(r"\\[A-Za-z]+|\d+(?:\.\d+)?|[^\s{}()\[\]*$]")  # no brackets, no product signs
_OPERATION = re.compile(
    r"(?<=[^\s(\[{,=])\s*[-+]|[/^!|*]|\\(?!pi\b|text|infty\b|mathrm|%|\$)[A-Za-z]+|\d_|\)\s*\(|\d\s*\("
)


def read_for(question: str, gold: str, answer: str) -> str:
    r"""``answer`` as the question lets it be read: ``50\%`` is 50 where a percentage is asked for, and ``2x+1=7`` is 7 where the
    question speaks of 2x+1."""
    if notation.has_percent(answer) and not notation.has_percent(gold) and _ASKS_PERCENT.search(question):
        answer = notation.without_percent(answer)
    if "=" in answer and "=" not in gold:
        chains = notation.equations(answer)
        if len(chains) == 1 and re.search(r"[A-Za-z]", chains[0][0]) and _within(chains[0][0], question):
            return "=".join(chains[0][1:])
    return answer


def repeats(question: str, gold: str, answer: str) -> bool:
    """Whether a right answer only repeats the question: an expression, not a value, that stands there as it is or with its parts
    in another order, and is not the gold's own."""
    value = _value(answer)
    if not _OPERATION.search(_same(value)):  # it is evaluated
        return False
    parts = Counter(_tokens(value))
    if parts in (Counter(_tokens(notation.spellings(_value(gold))[0])), Counter(_tokens(gold))):
        return False
    return _within(value, question) or any(parts == formula for formula in _formulas(question))


def _value(text: str) -> str:
    """What of an answer is judged: the term of a sentence, the right side of an equation, without unit and percent sign."""
    text = notation.plain(notation.term(notation.tidy(text)))
    text = notation.without_percent(notation.without_unit(text) or text)
    chains = notation.equations(text)
    return chains[0][-1] if len(chains) == 1 else text


def _same(text: str) -> str:
    text = _LAYOUT.sub(" ", text)
    for pattern, sign in _SAME:
        text = pattern.sub(sign, text)
    return text


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(_same(notation.plain(text)))


@lru_cache(maxsize=256)
def _question_tokens(question: str) -> str:
    return f" {' '.join(_tokens(question))} "


@lru_cache(maxsize=256)
def _formulas(question: str) -> list[Counter[str]]:
    spans = [next(filter(None, m.groups())) for m in _SPAN.finditer(question)]
    return [Counter(_tokens(side)) for span in spans for side in (span, *_SIDES.split(span))]


def _within(text: str, question: str) -> bool:
    tokens = _tokens(text)
    return bool(tokens) and f" {' '.join(tokens)} " in _question_tokens(question)
