"""Formulas of the pages: known ones as MathML, all of them well formed, code left alone."""

import re
import xml.etree.ElementTree as ET

import pytest

from docs_tools.maths import CODE, Formula, render
from tests.docs.fences import PAGES, label

RATIO = "<msub><mi>π</mi><mrow><mtext>ref</mtext></mrow></msub>"


@pytest.mark.parametrize(
    ("latex", "inside"),
    [
        (r"\pi_{\text{ref}}", RATIO),
        ("x^2_i", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        (r"\frac{1}{2}", "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>"),
        ("a - b", "<mi>a</mi><mo>−</mo><mi>b</mi>"),
        (r"\text{right or wrong}", "<mtext>right or wrong</mtext>"),
        (r"y^*", "<msup><mi>y</mi><mo>&#42;</mo></msup>"),
        (r"\log q", '<mi>log</mi><mspace width="0.17em"/><mi>q</mi>'),
        (r"\sum_t", "<msub><mo>∑</mo><mi>t</mi></msub>"),
        ("π < 1", "<mi>π</mi><mo>&lt;</mo><mn>1</mn>"),
        (r"\sqrt{x}", "<msqrt><mrow><mi>x</mi></mrow></msqrt>"),
        (
            r"\binom{N}{k}",
            '<mrow><mo>(</mo><mfrac linethickness="0"><mrow><mi>N</mi></mrow><mrow><mi>k</mi></mrow></mfrac><mo>)</mo></mrow>',
        ),
    ],
)
def test_known_formulas(latex, inside):
    assert Formula(latex).mathml() == f"<span><math><mrow>{inside}</mrow></math></span>"


def test_a_shown_sum_has_its_limit_below():
    assert "<munder><mo>∑</mo><mi>t</mi></munder>" in Formula(r"\sum_t", display=True).mathml()


def test_code_and_shell_variables_are_left_alone():
    text = "`$x$` and $HOME, ``a `$y$` ``\n\n```bash\necho $A $B\n```\n"
    assert render(text) == text
    assert render("cost $q$ now") == "cost " + Formula("q").mathml() + " now"


def test_a_letter_with_an_index_needs_no_dollars():
    drawn = Formula(r"q\,π_{\text{ref}}").mathml()
    assert render("toward q·π_ref, not `π_ref`") == f"toward {drawn}, not `π_ref`"
    assert render("set V_top and my_q_t.md#q_t") == "set V_top and my_q_t.md#q_t"


@pytest.mark.parametrize("wrong", [r"\alhpa", "{x", r"\text{x", r"\frac{1}", "x_"])
def test_what_is_not_understood_is_named(wrong):
    with pytest.raises(ValueError, match="formula"):
        Formula(wrong).mathml()


def test_every_formula_of_the_pages_is_well_formed():
    found = 0
    for page in PAGES:
        text = CODE.sub("", page.read_text(encoding="utf-8"))
        for shown in re.findall(r"\$\$.+?\$\$|(?<![\w$\\])\$(?=\S)[^$\n]+?\$(?![\w$])", text, re.S):
            try:
                ET.fromstring(render(shown))
            except (ValueError, ET.ParseError) as e:
                raise AssertionError(f"{label(page)}: {shown}: {e}") from e
            found += 1
    assert found > 40
