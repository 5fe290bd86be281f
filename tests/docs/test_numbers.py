"""Numbers on pages are filled in from records: a fresh fill changes nothing, and a number typed by hand does not stay."""

import re

import pytest

from tests.docs.fences import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="the records are not shipped with the package")


@pytest.fixture
def evidence(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import evidence

    return evidence


def test_a_fresh_fill_changes_nothing(evidence):
    """What whole studies say is asked by tests/study/test_results_pages.py, which makes their pages again."""
    pages = evidence.filled_pages(ROOT, {})
    assert {"README.md", "docs/performance.md", "docs/reliability.md"} <= {str(path) for path in pages}
    for path, filled in pages.items():
        text = filled.decode()
        assert text == (ROOT / path).read_text(encoding="utf-8"), f"{path}: run make results"
        begun = re.search(r"^\s*([-*+] |\d+\. )?<!-- made: \w+ -->\S.*", text, re.M)
        assert not begun, f"{path}: a line that begins with a comment is not read as Markdown: {begun[0]}"


def test_what_was_typed_is_replaced_and_line_breaks_stay(evidence, monkeypatch, tmp_path):
    monkeypatch.setattr(evidence.doc_numbers, "found", lambda: "2 of 3 runs", raising=False)
    one, two = "<!-- made: found -->", "<!-- /made -->"
    (tmp_path / "README.md").write_text(f"A {one}2 of\n3 runs{two}, {one}1 of 3{two}.\n\n{one}\nx\n{two}\n")
    filled = f"A {one}2 of\n3 runs{two}, {one}2 of 3 runs{two}.\n\n{one}\n\n2 of 3 runs\n\n{two}\n"
    assert {k.name: v.decode() for k, v in evidence.filled_pages(tmp_path, {}).items()} == {"README.md": filled}


def test_a_state_that_the_records_contradict_is_refused(evidence):
    """docs/evidence/studies.json says what is done; the records count it."""
    with pytest.raises(ValueError, match=r"frontier: studies\.json says done, 3 of 521 runs are"):
        evidence.states(ROOT, {"frontier": {"done": (3, 521), "gpu_minutes": 1.0}})


def test_all_records_together_stay_small():
    assert sum(f.stat().st_size for f in (ROOT / "results").rglob("*") if f.is_file()) < 20e6
