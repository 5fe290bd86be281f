"""Plain words on every page and in every message, one meaning for every symbol, and formulas set as maths."""

import ast
import re

import pytest

from docs_tools.maths import CODE, render

from .fences import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
UNITS = "nats|samples?|tokens|rollouts|completions|answers?|prompts|numbers?|operations|bytes|minutes|hours|values?|one|[hs]"
OF = "token|problem|step|run|completion|row|prompt|group|card|arm|task|thread|line|GPU|answer|variant|optimizer step"
INSTEAD = {  # what no page and no message says → the plain term
    rf"(?<!-)\b(?:{UNITS}) an? (?:{OF})\b": "per token, per problem …",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"` less `|\b(?:arm|pass@\d+|log-prob|reward) less (?:the|GRPO|its|that)\b": "minus",
    r"(?i)\bunless said\b": "default",
    r"(?i)\bleash": "KL penalty",
    r"(?i)\bnothing shown\b|\bmachine's mood\b|\bwithout a word\b|\bnot asked well\b": "a plain sentence",
    r"\bLoRA r\b|LoRA's α": "LoRA rank, LoRA's alpha",
    r"\bp-quantile\b": "a quantile: p is the chance to be right",
    r"log²? ?ρ|ρ = q": "w for q·π_ref/π: ρ is a guide's ratio",
}


def found(text):
    return [f"{m[0]!r}: write {word}" for pattern, word in INSTEAD.items() for m in re.finditer(pattern, text)]


@pytest.mark.parametrize(
    "bad",
    [
        "8 samples a problem",
        "log q is .007 nats a token",
        "`kl_ref` less `sage/pseudo_kl`",
        "names the mend",
        "½ log²ρ",
    ],
)
def test_a_bad_word_is_found(bad):
    assert len(found(f"Words before, {bad}, words after.")) == 1


@pytest.mark.parametrize(
    "good", ["it needs less memory", "a base gives a token q = 1", "two samples, a problem", "amend"]
)
def test_plain_words_are_let_through(good):
    assert found(good) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_pages_are_in_plain_words(page):
    assert found(page.read_text(encoding="utf-8")) == []


def test_messages_are_in_plain_words():
    """Every string of the source that is no docstring: what a person may read in a terminal."""
    wrong = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                wrong += [f"{file.relative_to(ROOT)}:{node.lineno}: {x}" for x in found(node.value)]
    assert wrong == []


def greek(text):
    names = {
        "alpha": "α",
        "beta": "β",
        "gamma": "γ",
        "delta": "δ",
        "epsilon": "ε",
        "eta": "η",
        "kappa": "κ",
        "lambda": "λ",
    }
    names |= {"pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "Delta": "Δ"}
    latex = [names[word] for word in re.findall(r"\\([A-Za-z]+)", text) if word in names]
    return [*latex, *re.findall("[α-ωΔΣ]", text)]


def test_every_greek_letter_is_in_the_table_of_symbols_once():
    table = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8").split("## Symbols")[1].split("\n## ")[0]
    first = [cell for line in table.splitlines() if line.startswith("| $") for cell in [line.split(" | ")[0]]]
    symbols = [symbol for cell in first for symbol in re.findall(r"\$(.+?)\$", cell)]
    assert len(symbols) == len(set(symbols)) > 30
    known = set(greek(" ".join(symbols)))
    for page in PAGES:
        text = CODE.sub("", page.read_text(encoding="utf-8")).replace("Σ", "")
        assert set(greek(text)) - {"µ", "μ"} <= known, page.name


def test_formulas_are_set_as_maths():
    """A product, a power or a sum of symbols in plain letters is a formula that was forgotten."""
    forgotten = re.compile(r"[A-Za-zα-ω)\]]·[\dA-Za-zα-ω(]|[πqr)]\^|∝|Σ_|∇|(?:log|exp)\(|[πHqV]_(?:ref|old|t)\b")
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs"):
            text = re.sub(r"<math.*?</math>", "", CODE.sub("", render(page.read_text(encoding="utf-8"))), flags=re.S)
            assert forgotten.findall(text) == [], page.name
