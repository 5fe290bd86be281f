r"""Spellings of one value made one: dashes, grouped digits, degrees, brackets, units, percent signs, the sides of an equation.

Text in, text out; gold and answer are treated alike. What a unit cannot say (``5 \text{ or more}``) is no answer.
"""

import re
from decimal import Decimal

from sage_rlvr.verify.sentence import TURNED, TURNS_A_UNIT, stated

# The point of 0.\overline{3}, and that of "1. 5", stays.
_DANGLING_POINT = re.compile(r"(?<=\d)\.(?=(?:\s|\\,)*(?:$|[/,;)}=+*^A-Za-z-]|\\(?:text|mathrm|%)))")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])([+-]?\d+(?:\.\d+)?)[eE]\+?(-?\d{1,4})(?![\w.])")
_DASH = re.compile(r"(^|[(\[{=,])(\s*)[‐‑‒–](?=\s*[\d.\\A-Za-z(])")  # a minus; that of "3–5" is a range
_GROUPED = re.compile(r"(?<![\w.,\\])(\d{1,3})((?:(?:,\\!|\{,\}|\\[,:; ]|~|[\u00a0\u2009\u202f])\d{3})+)(?![\w.]*\d)")
_ABOUT = re.compile(r"\s*(?:\\approx\b|≈)")
_ANGLE = re.compile(r"(?:\\left\s*)?\\langle\b(.*?)(?:\\right\s*)?\\rangle\b", re.DOTALL)

_TEXT_UNIT = re.compile(
    r"(.*[\d)\]}])(?:\s|\\[,:; ]|~)*\\(?:text|mathrm|mbox|textbf|textrm|textit)\s*\{([^{}]*)\}(?:\^\{?[23]\}?)?",
    re.DOTALL,
)
_WORD_UNIT = re.compile(r"(.*[\d)\]}])(?:\\[,:; ]|~|\s)+([A-Za-z]{3,}(?:\s+[A-Za-z]{2,}){0,3})", re.DOTALL)
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_LETTERS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega"
)
_FUNCTIONS = "sin cos tan cot sec csc log exp sqrt inf infinity frac"
_GREEK = re.compile(rf"\\(?:var)?(?:{_LETTERS.replace(' ', '|')})(?![a-z])", re.IGNORECASE)
_NO_UNITS = {*_LETTERS.split(), *_FUNCTIONS.split()}

_PERCENT = re.compile(
    r"(?:\s|\\[,:; ])*(?:\\?%|\\(?:text|mathrm)\s*\{\s*(?:\\?%|percent(?:age)?|pct)\s*\}|\b(?:percent(?:age)?|pct)\b)",
    re.IGNORECASE,
)
_PERCENTAGE = re.compile(rf"(?<![\d.,])(\d{{1,18}}(?:\.\d{{1,18}})?){_PERCENT.pattern}", re.IGNORECASE)

_PARTS = re.compile(r"[,;]|\\(?:text|mathrm)\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b")
_EQUALS = re.compile(r"(?<![<>!:=\\])=(?!=)")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_INSIDE = re.compile(r"[\^_](?:\w|\\[A-Za-z]+)|\{[^{}]*\}|\([^()]*\)|\[[^][]*\]")


def tidy(text: str) -> str:
    r"""Takes off what Math-Verify stumbles over: bold marks, closing punctuation, a point without decimals (``-3./2``)."""
    text = _stripped(text)
    for left, right in (("**", "**"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inside = text[len(left) : -len(right)]
        if text == left + inside + right and left not in inside and right not in inside:
            text = _stripped(inside)
    return _DANGLING_POINT.sub("", text)


def term(text: str) -> str:
    """What of a tidy answer is judged: what its sentence states, or all of it. One reading, never two: a second would be a
    second guess."""
    statement = stated(text)
    return text if statement is None else tidy(statement)


def _stripped(text: str) -> str:
    bare = text.strip().rstrip(".,;: \n")
    return bare + " " if bare.endswith("\\") else bare  # "5\;" was LaTeX spacing


def plain(text: str) -> str:
    r"""Typography: ``–3`` is -3, ``1\,000`` 1000, ``30°`` ``30^\circ``, ``\langle 1,2\rangle`` (1,2), ``\approx 5`` 5."""
    about = _ABOUT.match(text)
    text = _DASH.sub(r"\1\2-", text[about.end() :] if about else text)
    text = _GROUPED.sub(lambda m: m[1] + re.sub(r"\\.|\D", "", m[2]), text)
    text = re.sub(r"\s*[°º](?=\s*$|[^\w])", r"^\\circ", text)
    return _ANGLE.sub(r"(\1)", text)


def without_unit(text: str) -> str | None:
    r"""The number of ``18 eggs`` and of ``18 \text{ eggs}``; a unit that counts multiplies (million); None where it is none."""
    in_text = _TEXT_UNIT.fullmatch(text)
    found = in_text or _WORD_UNIT.fullmatch(text)
    if not found:
        return text
    number, words = found[1], found[2].split()
    if words and (scale := _SCALES.get(words[0].lower()) or _SCALES.get(words[0].lower().removesuffix("s"))):
        return rf"{number} \times {scale}" if _clean(words[1:], in_text) else None
    if in_text:
        return number if _clean(words, in_text) else None
    return number if not any(w.lower() in _NO_UNITS for w in words) and _clean(words, in_text) else text


def _clean(words: list[str], in_text: object) -> bool:
    return not (TURNS_A_UNIT if in_text else TURNED).search(" ".join(words))


def has_percent(text: str) -> bool:
    return _PERCENT.search(text) is not None


def without_percent(text: str) -> str:
    return _PERCENT.sub("", text)


def as_share(text: str) -> str:
    r"""``5\%`` as the number it is, 0.05."""
    text = _PERCENTAGE.sub(lambda m: f"{Decimal(m[1]) / 100:f}", text)
    return _PERCENT.sub(r" \\cdot \\frac{1}{100}", text)


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


def equations(text: str) -> list[list[str]]:
    """The sides of each equation in ``text``; those of a system in its own environment are left to Math-Verify."""
    if "=" not in text or r"\begin" in text:
        return []
    sides = [[side.strip() for side in _EQUALS.split(part)] for part in _PARTS.split(text)]
    return [chain for chain in sides if len(chain) > 1]


def is_name(side: str) -> bool:
    r"""Whether this names a quantity: ``x``, ``AB``, ``f(2)``, ``m+n``, ``\text{Area}``; not ``1+1``, ``x+1``, ``\sqrt{4}``."""
    letters = _COMMAND.sub(" ", _GREEK.sub("a", side))
    if not re.search(r"[^\W\d_]", letters):
        return False
    before = ""
    while before != side:  # what stands in brackets, below or above is the name's own
        before, side = side, _INSIDE.sub("", side)
    return not re.search(r"\d", side)
