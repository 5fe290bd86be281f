"""The README: short enough to read, nothing wider than a screen, its links and figures exist, its Python lines train a model,
and its intervals are those of the pages of results (its other numbers: test_numbers.py)."""

import re
from pathlib import Path

import pytest
from PIL import Image

from tests.docs.fences import ROOT, read
from tests.train import tiny

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.sub(r"<!--.*?-->", "", TEXT, flags=re.S)  # what a reader sees
FENCES = read(TEXT, "README.md")
CELLS = [cell for line in SHOWN.splitlines() if line.startswith("|") for cell in line.strip("|").split("|")]
RECORDS = ROOT / "results" / "gpu" / "confirm"
needs_records = pytest.mark.skipif(not RECORDS.is_dir(), reason="the measured results are not shipped with the package")


def test_it_is_short():
    assert 700 <= len(SHOWN.split()) <= 900
    for cell in CELLS:
        assert len(cell.split()) <= 25, cell
    assert len(CELLS) > 40


def test_nothing_is_wider_than_a_screen():
    for fence in FENCES:
        for line in fence.text.splitlines():
            assert len(line) <= 100, line
    for line in SHOWN.splitlines():
        assert len(re.sub(r"\]\([^)]*\)", "]", line)) <= 130, line  # as shown: an address takes no room


def test_every_link_and_picture_exists():
    links = re.findall(r"\]\(([^)\s]+)\)", SHOWN) + re.findall(r'(?:src|srcset)="([^"]+)"', SHOWN)
    headings = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", TEXT, re.M)}
    missing = [x for x in links if x.startswith("#") and x[1:] not in headings]
    missing += [x for x in links if not re.match(r"[a-z]+:|#", x) and not (ROOT / x.partition("#")[0]).exists()]
    assert not missing


def test_the_figure_is_there_in_light_and_dark_and_the_demos_page_is_small():
    dark, light = re.search(
        r'<source media="\(prefers-color-scheme: dark\)" srcset="(.+?)">\s*<img .*?src="(.+?)"', TEXT
    ).groups()
    assert (dark, light) == ("docs/img/frontier-dark.svg", "docs/img/frontier-light.svg")
    picture = ROOT / re.search(r'<img [^>]*src="([^"]+\.webp)"', TEXT)[1]
    assert picture.stat().st_size < 150_000
    assert min(Image.open(picture).size) >= 500


@needs_records
def test_every_interval_is_on_a_page_of_results():
    """[] in the table of evidence, as the pages made from the records have them."""
    made = (page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "results").glob("*.md")))
    pages = re.sub(r"\b0\.", ".", "".join(made)).replace("-", "−")
    quoted = re.findall(r"[+−]\.\d+ \[[+−]\.\d+, [+−]\.\d+\]", SHOWN)
    assert len(quoted) == 4
    assert [x for x in quoted if x not in pages] == []


def test_the_python_lines_train_a_model(tmp_path, monkeypatch):
    """As they stand, but for the model, which is tiny and here, and the number of steps."""
    (block,) = [f for f in FENCES if f.language == "python"]
    lines = [line for line in block.text.splitlines() if line.strip()]
    assert len(lines) <= 15
    name = re.search(r'SAGETrainer\("([^"]+)"', block.text)[1]
    text = block.text.replace(name, tiny.folder(tmp_path / "model")).replace("max_steps=50", "max_steps=1")
    assert text.count(str(tmp_path)) == text.count("max_steps=1,") == 1
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(text, "README.md", "exec"), names)
    (entry,) = [e for e in names["trainer"].state.log_history if "sage/active" in e]
    assert entry["num_tokens"] > 0
    assert (Path("runs/sums") / "log.jsonl").is_file()
