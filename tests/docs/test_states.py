"""No two pages disagree about the state of a study: docs/evidence/studies.json says it, and no sentence says otherwise."""

import json
import re

import pytest

from .told import ROOT, needs_records

STUDIES = json.loads((ROOT / "docs" / "evidence" / "studies.json").read_text(encoding="utf-8"))
SAYS = {  # what a sentence says of the study that it names
    "not started": r"not (?:yet )?(?:been )?(?:started|run)\b|no arm has run|\bis a draft\b|no run\b",
    "open": r"\bis open\b|not (?:yet )?(?:finished|done|decided|complete)|until .* is (?:finished|done)|is running",
    "done": r"(?<!not )\b(?:is|are|was|been) (?:done|finished|complete)\b",
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def disagreements(text, name="page"):
    """Sentences that give a study another state than studies.json does. What is dated (under Amendments) was true that day."""
    found = []
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-|]", text.split("## Amendments")[0]):
        flat = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence).split())
        named = [s for s in STUDIES if any(n.lower() in flat.lower() for n in s["names"])]
        said = {state for state, pattern in SAYS.items() if re.search(pattern, flat, re.I)}
        if len({s["state"] for s in named}) == 1 and said - {named[0]["state"]}:
            found.append(f"{name}: {flat!r} says {sorted(said)}, studies.json says {named[0]['state']}")
    return found


def test_every_page_agrees():
    assert [x for page in PAGES for x in disagreements(page.read_text(encoding="utf-8"), page.name)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        "No claim stands here yet: the miniature search is not finished ([Results](results.md)).",
        "Nothing is concluded until the [miniature search](x.md) is done.",
        "The gate on GSM8K\nis done.",
        "The harder miniature is open.",
        "- The 7B studies are done",
    ],
)
def test_a_page_that_disagrees_is_found(wrong):
    assert len(disagreements(f"Words before. {wrong} Words after.")) == 1


@needs_records
def test_what_is_done_is_what_the_records_have():
    """ "done": every run; "open": some; "not started": no records."""
    for study in STUDIES:
        page = ROOT / "docs" / "results" / f"{study['study']}.md"
        if study["state"] == "not started":
            assert not page.exists(), study
            continue
        done, of = map(int, re.search(r"Runs: (\d+) of (\d+) done", page.read_text(encoding="utf-8")).groups())
        assert (done == of) == (study["state"] == "done"), study


@needs_records
def test_all_records_together_stay_small():
    assert sum(f.stat().st_size for f in (ROOT / "results").rglob("*") if f.is_file()) < 20e6
