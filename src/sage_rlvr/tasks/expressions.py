"""Arithmetic as models write it: read into tokens, judged on a parsed tree in exact fractions, never by ``eval``.

Every limit is a plain number, so an answer of 10⁶ brackets or digits costs one look at its length.
"""

import ast
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 2_000  # an answer uses a handful of numbers once each; nothing right is near these
MAX_TOKENS = 200
MAX_DIGITS = 12

_SPELLINGS = (
    (r"\\(?:left|right|displaystyle|,|;|!|:)|[$`~]|\\[()\[\]]", " "),  # typesetting
    (r"\\[dt]?frac\s*\{", "(("),
    (r"\}\s*\{", ")/("),
    (r"\}", "))"),
    (r"\\(?:times|cdot|ast)(?![a-zA-Z])|[×·⋅∙∗✕✖]|(?<=[\d)\s])[xX](?=[\d(\s])", "*"),
    (r"\\div(?![a-zA-Z])|[÷∕⁄]", "/"),
    (r"[−–—‒﹣－]", "-"),
    (r"＋", "+"),
    (r"\[", "("),
    (r"\]", ")"),
)
_PLAIN = re.compile(r"[-+*/()=0-9._\s]*")  # what none of them is about
_ARITHMETIC = re.compile(rf"(?:\s*(?:[0-9]{{1,{MAX_DIGITS}}}(?![0-9])|[-+*/()]))+\s*")
_BARE = re.compile(r"[1-9][0-9]{0,3}(?:[-+*/][1-9][0-9]{0,3}){0,9}")  # 3+4*2-1: nearly every answer of a trained model
_PIECES = re.compile(r"[0-9]+|[-+*/()]")
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@dataclass(frozen=True)
class Node:
    """A number (op "") or two expressions under an operator."""

    op: str
    value: Fraction | None  # None: a division by zero below
    left: "Node | None" = None
    right: "Node | None" = None


def tokens_of(text: str, target: int | None = None) -> list[str] | None:
    """["3", "+", "4"] from "$3 + 4$", or None if it is no such thing. A trailing "= target" is allowed, "= other" is not."""
    if _BARE.fullmatch(text):
        return _PIECES.findall(text)
    if len(text) > MAX_CHARACTERS:
        return None
    if not _PLAIN.fullmatch(text):
        for pattern, plain in _SPELLINGS:
            text = re.sub(pattern, plain, text)
    text, equals, stated = text.strip(" \t\n*_.").partition("=")  # bold and a full stop
    if equals and target is not None and stated.strip() != str(target):
        return None
    tokens = _PIECES.findall(text) if _ARITHMETIC.fullmatch(text) else []
    return [str(int(t)) if t.isdigit() else t for t in tokens] if 0 < len(tokens) <= MAX_TOKENS else None


def uses_exactly(tokens: Sequence[str], numbers: Sequence[int]) -> bool:
    """Every given number once, and no other."""
    return sorted(int(t) for t in tokens if t.isdigit()) == sorted(numbers)


def parse(tokens: Sequence[str]) -> Node | None:
    """Usual precedence and brackets; None where it is not well formed. A sign is no operator here."""
    try:
        return _node(ast.parse(" ".join(tokens), mode="eval").body)
    except (SyntaxError, ValueError):
        return None


def _node(tree: ast.expr) -> Node:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return Node("", Fraction(tree.value))
    if not isinstance(tree, ast.BinOp):  # a sign, a call, a tuple
        raise ValueError("no arithmetic")
    op, left, right = _SIGNS[type(tree.op)], _node(tree.left), _node(tree.right)
    return Node(op, _apply(op, left.value, right.value), left, right)


def _apply(op: str, a: Fraction | None, b: Fraction | None) -> Fraction | None:
    if a is None or b is None or (op == "/" and b == 0):
        return None
    return _OPERATORS[op](a, b)


def left_to_right(tokens: Sequence[str]) -> int | None:
    """3+4*2 is 14: numbers joined by + − × with no precedence and no brackets; None for anything else."""
    numbers, ops = tokens[::2], tokens[1::2]
    if len(tokens) % 2 == 0 or not all(t.isdigit() for t in numbers) or not all(op in "+-*" for op in ops):
        return None
    value = int(numbers[0])
    for op, number in zip(ops, numbers[1:]):
        value = _OPERATORS[op](value, int(number))
    return value


def canonical(node: Node) -> str:
    """One spelling for expressions that differ only in the order or bracketing of sums and of products.

    a−(b−c) is the sum of a, c and −b; (a/b)·c the product of a and c over b. Depth is bounded by MAX_TOKENS.
    """
    if node.op == "":
        return str(node.value)
    above, below = ("+", "-") if node.op in "+-" else ("*", "/")
    terms: list[str] = []
    stack = [(node, above)]
    while stack:
        item, sign = stack.pop()
        if item.op and item.op in above + below and item.left and item.right:
            flipped = {above: below, below: above}[sign]
            stack += [(item.left, sign), (item.right, sign if item.op == above else flipped)]
        else:
            terms.append(sign + canonical(item))
    return f"({''.join(sorted(terms))})"
