r"""The judge that runs in the workers: Math-Verify, without its timeouts (the pool kills from outside).

Gold and answer are read alike: tidied, wrapped as ``\boxed{…}``, and given to ``math_verify.parse`` with its default
settings; then ``math_verify.verify(gold, answer)``, gold first, with its defaults (``strict=True``, six decimals).
The verdict is Math-Verify's, but for what ``tidy`` and ``spellings`` mend and ``alike`` and ``stated`` add.
"""

import re
from types import SimpleNamespace
from typing import Any

from sage_rlvr.verify.sentence import stated

_INTEGER = re.compile(r"-?[0-9]{1,18}")
# The point of 0.\overline{3}, and that of "1. 5", stays.
_DANGLING_POINT = re.compile(r"(?<=\d)\.(?=(?:\s|\\,)*(?:$|[/,;)}=+*^A-Za-z-]|\\(?:text|mathrm|%)))")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])([+-]?\d+(?:\.\d+)?)[eE]\+?(-?\d{1,4})(?![\w.])")
_SPACES = re.compile(r"(?<!\w)\s+|\s+(?!\w)")  # that of "1 1/2" stays


def compare_integers(gold: str, answer: str) -> bool | None:
    """Two plain integers are equal or not, and Math-Verify says the same: no process needed. None: not two plain integers."""
    if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
        return int(gold) == int(answer)
    return None


def tidy(text: str) -> str:
    r"""Takes off what Math-Verify stumbles over: bold marks, closing punctuation, a point without decimals (``-3./2``)."""
    text = _stripped(text)
    for left, right in (("**", "**"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inside = text[len(left) : -len(right)]
        if text == left + inside + right and left not in inside and right not in inside:
            text = _stripped(inside)
    return _DANGLING_POINT.sub("", text)


def _stripped(text: str) -> str:
    bare = text.strip().rstrip(".,;: \n")
    return bare + " " if bare.endswith("\\") else bare  # "5\;" was LaTeX spacing


def spellings(text: str) -> list[str]:
    r"""How Math-Verify is to read ``text``. Only scientific notation needs help: it takes the e of ``8.7e8`` for Euler's number.

    ``8.7e8`` becomes ``8.7 \times 10^{8}`` and, being whole, ``870000000``, since Math-Verify holds those two for different.
    """
    out = [_SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text)]
    if m := _SCIENTIFIC.fullmatch(text):
        whole, _, decimals = m.group(1).partition(".")
        exponent = int(m.group(2))
        if len(decimals) <= exponent <= 30:
            out.append(f"{whole}{decimals.ljust(exponent, '0')}")
    return out


def alike(gold: str, answer: str) -> bool:
    """The same spelling but for spaces beside signs. Math-Verify can lose a gold's own (the c of "a + b + c" is a unit to it)."""
    return _SPACES.sub("", gold) == _SPACES.sub("", answer)


# Shapes of answers the parser's tables are warmed with.
_SHAPES = (
    "12", "-3", "0.25", "3/4", "x = 5", "y = 2x + 1", "x^2 - 3x", r"50\%", r"30^\circ", r"12 \text{ cm}", r"\text{even}",
    r"\frac{1}{2}", r"-\dfrac{3}{7}", r"\frac{\sqrt{3}}{2}", r"2\sqrt{5}", r"\sqrt{3} \cdot 4", r"\frac{\pi}{6}",
    "(1, 2)", r"\left(\frac{1}{2}, 3\right)", r"[0, \infty)", "1, 2", r"\{1, 2\}", r"4.5 \times 10^{3}",
)  # fmt: skip


class MathJudge:
    """``parse_gold(gold)``: what the gold means, None if it cannot be told. ``is_right(parsed, answer)``: the verdict."""

    def __init__(self) -> None:
        # Once, in the template: workers are forked with all this done.
        _speed_up_the_grammar()
        for text in _SHAPES:
            self.is_right(self.parse_gold(text), text + "1")

    def parse_gold(self, gold: str) -> Any:
        text = tidy(gold)
        parsed = self._parse(text)
        return (text, parsed) if parsed else None

    def is_right(self, parsed: Any, answer: str) -> bool:
        from math_verify import verify

        gold, gold_parsed = parsed
        text = tidy(answer)
        said = stated(text)
        term = text if said is None else tidy(said)  # one reading, never two: a second would be a second guess
        return alike(gold, text) or alike(gold, term) or verify(gold_parsed, self._parse(term), timeout_seconds=None)

    def _parse(self, text: str) -> list[Any]:
        from math_verify import parse

        return [x for spelling in spellings(text) for x in parse(rf"\boxed{{{spelling}}}", parsing_timeout=None)]


def _speed_up_the_grammar() -> None:
    """Two short cuts to the same parse, five times as fast on the benchmarks' golds.

    ANTLR's SLL prediction first, and its costly LL prediction only after a syntax error: ANTLR's documentation promises the
    same tree or an error. And plain digits become an integer at once, not by way of Python's compiler (sympy's ``sympify``).
    """
    from antlr4 import PredictionMode
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy
    from sympy import Integer

    create_parser, parse_number = _Latex2Sympy.create_parser, _Latex2Sympy.parse_number

    def create_fast_parser(self: Any, latex: str) -> Any:
        fast = create_parser(self, latex)
        fast._interp.predictionMode = PredictionMode.SLL
        try:
            tree = fast.math()
        except Exception:
            return create_parser(self, latex)
        return SimpleNamespace(math=lambda: tree)  # all that its caller asks of a parser

    def parse_number_fast(self: Any, text: str) -> Any:
        return Integer(int(text)) if _INTEGER.fullmatch(text) and text[0] != "-" else parse_number(self, text)

    _Latex2Sympy.create_parser, _Latex2Sympy.parse_number = create_fast_parser, parse_number_fast
