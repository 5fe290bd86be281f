r"""The judge that runs in the workers: Math-Verify, without its timeouts (the pool kills from outside).

Gold and answer are read alike: tidied, put into plain notation (``notation.py``), and the whole of each given to Math-Verify as
``\boxed{…}``. Where that cannot be read as a whole it stays a string: Math-Verify by itself would go on to look for a number
in it, and find the 5 of ``\neg 5``. Then ``math_verify.verify(gold, answer)``, gold first, strict. Beyond its verdict:

- an equation is an answer where its left side names something (``x = 5``, ``f(2) = 5``) or it is true (``2+3=5``);
- floats must agree to six decimals, as there, and relatively: 0 is not 1e-7;
- a percent sign divides by 100, unless the gold has one too; an inequality in one variable may stand for an interval.
"""

import re
from functools import cache
from itertools import dropwhile, pairwise
from types import SimpleNamespace
from typing import Any

from sage_rlvr.verify import notation

RELATIVE = 1e-4  # floats that agree to six decimals must also be this near: it decides for values below 0.01
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_SPACES = re.compile(r"(?<!\w)\s+|\s+(?!\w)")  # that of "1 1/2" stays


def compare_integers(gold: str, answer: str) -> bool | None:
    """Two plain integers are equal or not, and Math-Verify says the same: no process needed. None: not two plain integers."""
    if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
        return int(gold) == int(answer)
    return None


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
        from math_verify import LatexExtractionConfig

        self._whole = [LatexExtractionConfig(boxed_match_priority=0)]
        _speed_up_the_grammar()
        _compare_relatively()
        for text in _SHAPES:
            self.is_right(self.parse_gold(text), text + "1")

    def parse_gold(self, gold: str) -> Any:
        """(its text, its value, its value as a share of one where it has a percent sign)"""
        text = notation.tidy(gold)
        bare = notation.plain(text)
        bare = notation.without_unit(bare) or bare
        share = self._parse(notation.as_share(bare)) if notation.has_percent(bare) else []
        parsed = self._parse(notation.without_percent(bare))
        return (text, parsed, share) if parsed else None

    def is_right(self, parsed: Any, answer: str) -> bool:
        gold, value, share = parsed
        text = notation.tidy(answer)
        term = notation.term(text)
        if alike(gold, text) or alike(gold, term):
            return True
        bare = notation.without_unit(notation.plain(term))
        if bare is None or not ("=" in gold or self._sound(bare)):
            return False
        if not notation.has_percent(bare):
            return self._equal(value + share, self._parse(bare))
        return self._equal(value, self._parse(notation.without_percent(bare) if share else notation.as_share(bare)))

    def _sound(self, text: str) -> bool:
        """Every equation gives a name a value, or is true."""
        chains = [list(dropwhile(notation.is_name, sides[:-1])) + sides[-1:] for sides in notation.equations(text)]
        return all(self._equal(self._parse(a), self._parse(b)) for chain in chains for a, b in pairwise(chain))

    def _equal(self, gold: list[Any], answer: list[Any]) -> bool:
        from math_verify import verify

        return verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True)

    def _parse(self, text: str) -> list[Any]:
        from math_verify import parse

        how = {"extraction_config": self._whole, "extraction_mode": "first_match", "parsing_timeout": None}
        return [x for spelling in notation.spellings(text) for x in parse(rf"\boxed{{{spelling}}}", **how)]


@cache  # Math-Verify is changed once in a process, however many judges there are
def _compare_relatively() -> None:
    """Math-Verify rounds to six decimals and drops what is below 1e-15, so that 0 and 1e-7, 1e-23 and 2e-23 were equal."""
    from math_verify import grader
    from sympy import MatrixBase, MatrixExpr, N

    absolutely = grader.sympy_numeric_eq

    def relatively(a: Any, b: Any, *precision: int) -> bool:
        if not absolutely(a, b, *precision):
            return False
        if isinstance(a, MatrixBase | MatrixExpr) or a.free_symbols or b.free_symbols:
            return True  # a matrix's entries have come here one by one
        x, y = N(a.doit()), N(b.doit())
        return bool(abs(x - y) <= RELATIVE * max(abs(x), abs(y)))  # exact zeros are found symbolically, after this

    grader.sympy_numeric_eq = relatively


@cache
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
