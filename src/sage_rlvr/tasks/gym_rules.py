"""Where reasoning-gym's own scorers cannot be used as they are: they run the answer as code, or pay for what is no answer.

An answer is data. The scorers in ``EVALUATES`` hand it to ``eval`` or to SymPy's ``parse_expr`` (which calls ``eval``); here a
rule of ours reads it instead, as text or as a formula, and the scorer is never called. More scorers pay for constants:
``game_of_life_halting`` for any text at all, ``coin_flip`` for 0 (it is a prefix of 0.5), and every one that computes with
floats may for NaN, which is not above any tolerance.
"""

import ast
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from sage_rlvr.tasks import expressions

# Generators whose scorer evaluates the answer, and what with.
EVALUATES = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), "Python's eval"),
    **dict.fromkeys(
        ("countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"),
        "SymPy's parse_expr",
    ),
}

_NO_NUMBER = re.compile(r"(?<![a-z])(?:s?nan|inf(?:inity)?)[ij]?(?![a-z])", re.IGNORECASE)
_FUNCTIONS = (
    "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "exp", "log", "ln", "sqrt", "Abs",
)  # fmt: skip
_POINTS = ((1, 7), (-1, 7), (2, 9), (-3, 10), (4, 5), (-6, 5), (9, 4), (-7, 3), (5, 1), (-17, 3), (11, 1), (-23, 2))
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def is_right(name: str, generator: Any, entry: dict[str, Any], answer: str) -> bool:
    """The verdict of our rule for this generator, else reasoning-gym's: a full score, since part marks are for near misses."""
    rule = _RULES.get(name)
    if rule is not None:
        return rule(answer, entry)
    gold = str(entry["answer"])
    if re.search(r"\d", gold) and _NO_NUMBER.search(answer) and not _NO_NUMBER.search(gold):
        return False
    return float(generator.score_answer(answer, entry)) >= 1


# ---- rules: (answer, entry) → right ------------------------------------------------------------------------------


def _same_text(answer: str, entry: dict[str, Any]) -> bool:
    return answer.strip() == entry["answer"].strip()


def _same_word(answer: str, entry: dict[str, Any]) -> bool:
    return answer.strip().lower() == str(entry["answer"]).lower()


def _one_of_the_boards(answer: str, entry: dict[str, Any]) -> bool:
    return answer.strip() in entry["metadata"]["valid_answers"]


def _probability(answer: str, entry: dict[str, Any]) -> bool:
    """Within 10⁻⁴, as upstream has it, but never by more than 1% of a small one: 0 is not the chance of 15 heads."""
    exact = Fraction(entry["metadata"]["rational"]["numerator"], entry["metadata"]["rational"]["denominator"])
    try:
        given = Fraction(answer.replace(",", "")) if len(answer) < 100 else None
    except (ValueError, ZeroDivisionError):
        return False
    return given is not None and abs(given - exact) <= min(Fraction(1, 10_000), exact / 100)


def _makes(target: int, numbers: Sequence[int], answer: str) -> bool:
    """+ − × ÷ and brackets over the given numbers, each once; a sign may open a bracket or the whole."""
    tokens = expressions.tokens_of(answer, target)
    if not tokens or not expressions.uses_exactly(tokens, numbers):
        return False
    signed: list[str] = []
    for before, token in zip(["(", *tokens], tokens):
        signed += ["0", token] if token == "-" and before == "(" else [token]
    tree = expressions.parse(signed)
    return tree is not None and tree.value == target


def _antiderivative(answer: str, entry: dict[str, Any]) -> bool:
    """Whether its derivative is the integrand at every point tried where that is real, three of them at least."""
    import sympy

    variable = sympy.Symbol(entry["metadata"]["variable"])
    integral, integrand = formula(answer), formula(entry["metadata"]["integrand"])
    if integral is None:
        return False
    slope = sympy.diff(integral, variable)
    others = {symbol: sympy.Rational(97, 71 + i) for i, symbol in enumerate(sorted(slope.free_symbols, key=str))}
    agree = 0
    for point in _POINTS:
        at = {**others, variable: sympy.Rational(*point)}
        asked, given = integrand.evalf(30, subs=at), slope.evalf(30, subs=at)
        if not asked.is_real or not given.is_number or not given.is_finite:
            continue
        if abs(given - asked) > 1e-15 * (1 + abs(asked)):
            return False
        agree += 1
    return agree >= 3


def _same_polynomial(answer: str, entry: dict[str, Any]) -> bool:
    polynomial = formula(answer)
    return polynomial is not None and bool(polynomial == formula(entry["answer"]))


_RULES: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "binary_matrix": _same_text,
    "spiral_matrix": _same_text,
    "string_insertion": _same_text,
    "n_queens": _one_of_the_boards,
    "game_of_life_halting": _same_word,
    "coin_flip": _probability,
    "countdown": lambda answer, entry: _makes(entry["metadata"]["target"], entry["metadata"]["numbers"], answer),
    "puzzle24": lambda answer, entry: _makes(24, entry["metadata"]["numbers"], answer),
    "simple_integration": _antiderivative,
    "intermediate_integration": _antiderivative,
    "polynomial_multiplication": _same_polynomial,
}


# ---- formulas ----------------------------------------------------------------------------------------------------


def formula(text: str) -> Any:
    """What SymPy makes of a formula in numbers, one-letter names, + − * / ** and the usual functions; None for anything else.

    The text is parsed and its tree walked, node by node; nothing in it is evaluated.
    """
    try:
        return _built(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, ArithmeticError, TypeError, RecursionError, MemoryError):
        return None


def _built(node: ast.AST) -> Any:
    import sympy

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return sympy.Integer(value) if isinstance(value, int) else sympy.Float(value)
        case ast.Name(id="E" | "pi" as name):
            return getattr(sympy, name)
        case ast.Name(id=name) if len(name) == 1 and name.isascii() and name.isalpha():
            return sympy.Symbol(name)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_built(operand) if isinstance(sign, ast.USub) else _built(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_built(left), _built(right))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return getattr(sympy, name)(_built(argument))
    raise ValueError("no formula")
