"""Formulas of the pages as MathML, made when the site is built: a browser draws them itself, and nothing is fetched.

`$…$` in a line and `$$…$$` on its own hold a small part of LaTeX, or plain Unicode letters; GitHub draws the same source. A
command that is not known here stops the build with its page. A letter with an index in a sentence
(π_ref, q·π_ref) needs no `$`.
"""

import re
from html import escape
from typing import Any

LETTERS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eta": "η", "kappa": "κ", "lambda": "λ", "pi": "π",
    "rho": "ρ", "sigma": "σ", "tau": "τ", "Delta": "Δ", "infty": "∞", "ell": "ℓ",
}  # fmt: skip
SIGNS = {
    "cdot": "·", "propto": "∝", "in": "∈", "le": "≤", "ge": "≥", "ne": "≠", "approx": "≈", "to": "→", "mid": "|", "parallel": "‖",
    "neg": "¬", "nabla": "∇", "sum": "∑", "prod": "∏", "ldots": "…", "{": "{", "}": "}", "sup": "sup", "inf": "inf",
    "times": "×", "pm": "±", "lvert": "|", "rvert": "|",
}  # fmt: skip
NAMES = {"log", "exp", "min", "max", "logit", "tanh"}
LARGE = {"∑", "∏", "sup", "inf"}
ACCENTS = {"tilde": "~", "hat": "^", "bar": "¯"}
SPACES = {",": "0.17em", ";": "0.28em", "quad": "1em", "qquad": "2em"}
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\s+|.", re.S)


class Formula:
    """One formula, read from left to right. ``display``: sums have their limits above and below."""

    def __init__(self, text: str, display: bool = False):
        self.text, self.display = text, display
        self.words = TOKEN.findall(text.strip())

    def mathml(self) -> str:
        inside = self.row(None)
        if self.display:
            return f'<p class="formula"><math display="block">{inside}</math></p>'
        return f"<span><math>{inside}</math></span>"  # a span, because Markdown takes a bare <math> for a block

    def row(self, end: str | None) -> str:
        parts: list[str] = []
        while self.skip() and self.words[0] != end:
            parts.append(self.with_scripts())
        if end is not None:
            self.take(end)
        return f"<mrow>{''.join(parts)}</mrow>"

    def skip(self) -> bool:
        """Past white space; whether anything is left."""
        while self.words and self.words[0].isspace():
            self.words.pop(0)
        return bool(self.words)

    def take(self, wanted: str | None = None) -> str:
        if not self.words or (wanted is not None and self.words[0] != wanted):
            raise ValueError(f"formula {self.text!r}: {wanted or 'something'} is missing")
        return self.words.pop(0)

    def with_scripts(self) -> str:
        """An atom with what hangs below and above it."""
        base, low, high = self.atom(), "", ""
        while self.skip() and self.words[0] in ("_", "^", "'"):
            mark = self.words.pop(0)
            if mark == "_":
                low = self.atom()
            else:
                high = "<mo>′</mo>" if mark == "'" else self.atom()
        large = self.display and re.sub("<[^>]+>", "", base) in LARGE
        names = ("munder", "mover", "munderover") if large else ("msub", "msup", "msubsup")
        if low and high:
            return f"<{names[2]}>{base}{low}{high}</{names[2]}>"
        return (
            f"<{names[0]}>{base}{low}</{names[0]}>"
            if low
            else f"<{names[1]}>{base}{high}</{names[1]}>"
            if high
            else base
        )

    def atom(self) -> str:
        self.skip()
        word = self.take()
        if word == "{":
            return self.row("}")
        if word.startswith("\\"):
            return self.command(word[1:])
        if word[0].isdigit():
            return f"<mn>{word}</mn>"
        if word.isalpha():
            return f"<mi>{word}</mi>"
        return sign("−" if word == "-" else word)

    def command(self, name: str) -> str:
        if name in ("left", "right"):
            return self.atom()
        if name in ("text", "mathrm", "tag"):
            said = self.braces()
            return f'<mspace width="2em"/><mtext>({said})</mtext>' if name == "tag" else f"<mtext>{said}</mtext>"
        if name == "mathbb":
            return f"<mi>{ {'E': '𝔼', 'R': 'ℝ'}[self.braces()] }</mi>"
        if name == "frac":
            return f"<mfrac>{self.atom()}{self.atom()}</mfrac>"
        if name == "binom":
            return f'<mrow><mo>(</mo><mfrac linethickness="0">{self.atom()}{self.atom()}</mfrac><mo>)</mo></mrow>'
        if name == "sqrt":
            return f"<msqrt>{self.atom()}</msqrt>"
        if name in ACCENTS:
            return f'<mover accent="true">{self.atom()}<mo>{ACCENTS[name]}</mo></mover>'
        if name in LETTERS:
            return f"<mi>{LETTERS[name]}</mi>"
        if name in NAMES:
            apart = self.skip() and self.words[0] not in ("(", "_", "^")
            return f"<mi>{name}</mi>" + ('<mspace width="0.17em"/>' if apart else "")
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"/>'
        if name in SIGNS:
            return sign(SIGNS[name])
        raise ValueError(f"formula {self.text!r}: \\{name} is not known to docs_tools/maths.py")

    def braces(self) -> str:
        """Words between braces, as they are written."""
        self.take("{")
        end = self.words.index("}") if "}" in self.words else len(self.words)
        said, self.words = self.words[:end], self.words[end:]
        self.take("}")
        return escape("".join(said))


def sign(text: str) -> str:
    """Markdown must not read it: * and _ would be emphasis, | a cell of a table."""
    safe = escape(text).replace("*", "&#42;").replace("_", "&#95;").replace("|", "&#124;")
    if text == "‖":
        return f'<mo lspace="0.25em" rspace="0.25em" stretchy="false">{safe}</mo>'
    return f'<mo stretchy="false">{safe}</mo>' if text in "()[]{}|" else f"<mo>{safe}</mo>"


CODE = re.compile(r"(^ *(`{3,}|~{3,}).*?^ *\2\s*?$|(?<!`)(`+)(?!`).*?(?<!`)\3(?!`))", re.S | re.M)
SHOWN = re.compile(r"\$\$(.+?)\$\$", re.S)
INDEXED = re.compile(r"(?<![\w`.#-])(q·)?([πHqVyZ])_(ref|old|base|t)\b(?!`)")  # in a sentence, without $
INLINE = re.compile(r"(?<![\w$\\])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])")


def render(markdown: str) -> str:
    """A page with its formulas as MathML; code stays as it is."""
    parts, at = [], 0
    for code in CODE.finditer(markdown):
        parts += [_formulas(markdown[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, _formulas(markdown[at:])])


def _formulas(text: str) -> str:
    text = SHOWN.sub(lambda m: Formula(m[1], display=True).mathml(), text)
    text = INLINE.sub(lambda m: Formula(m[1]).mathml(), text)
    return INDEXED.sub(lambda m: Formula(f"{m[1] or ''}{m[2]}_{{\\text{{{m[3]}}}}}".replace("·", "\\,")).mathml(), text)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    from mkdocs.exceptions import PluginError

    try:
        return render(markdown)
    except ValueError as e:
        raise PluginError(f"{page.file.src_uri}: {e}") from e
