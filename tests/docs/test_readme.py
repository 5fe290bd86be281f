"""The README: short enough to read, nothing wider than a screen, its links and figures exist, its Python lines train a model,
and its numbers are those of the records."""

import json
import re
import runpy
import sys
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
    assert 700 <= len(TEXT.split()) <= 900
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


@pytest.fixture(scope="module")
def drawing():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return runpy.run_path(str(ROOT / "benchmarks" / "readme_figure.py"))
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@needs_records
def test_the_figure_shows_the_records(drawing):
    """The committed files are what the script draws, and what it draws are the numbers of the study's page."""
    points, base = drawing["read"](ROOT)
    for path, content in drawing["files"](ROOT).items():
        assert drawing["same"](path, (ROOT / path).read_bytes(), content), f"{path}: run benchmarks/readme_figure.py"
    page = (ROOT / "docs" / "results" / "confirm.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| countdown-ltr-fresh \| (\S+) \| (\d+) \|(.*)\|$", page, re.M)
    told = {
        v: [float(x) for x in (seeds, *(cells.split("|")[i].split()[0] for i in (0, 3)))] for v, seeds, cells in table
    }
    drawn = {f"{f}+beta{p.beta:g}": [p.seeds, p.pass_1, p.pass_k] for f, own in points.items() for p in own}
    assert len(drawn) == 24
    for variant, numbers in (drawn | {"base": [1, *base]}).items():
        assert numbers == pytest.approx(told[variant], abs=0.00051), variant


@needs_records
def test_every_interval_is_on_a_page_of_results():
    """[] in the table of evidence, as the pages made from the records have them."""
    made = (page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "results").glob("*.md")))
    pages = re.sub(r"\b0\.", ".", "".join(made)).replace("-", "−")
    quoted = re.findall(r"[+−]\.\d+ \[[+−]\.\d+, [+−]\.\d+\]", SHOWN)
    assert len(quoted) == 3
    assert [x for x in quoted if x not in pages] == []


@needs_records
def test_what_one_card_takes_is_in_the_log():
    """The settings of the recipe for 24 GB without its KL: 150 steps on a shared H200."""
    pieces = json.loads((ROOT / "results" / "gpu" / "gsm8k_gate" / "stopped.json").read_text())
    log = max((run for piece in pieces for run in piece["runs"].values()), key=len)
    rewards, seconds = ([entry[name] for entry in log] for name in ("reward", "step_time"))
    first, last = (f"{sum(part) / 10:.2f}".removeprefix("0") for part in (rewards[:10], rewards[-10:]))
    step = sum(seconds) / len(log)
    said = " ".join(SHOWN.split())
    assert f"took {step:.1f} s per step ({len(log) * step / 60:.0f} minutes)" in said
    assert f"{len(log)} steps" in said
    assert f"the training reward rose from {first} to {last}" in said


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


def test_the_demos_numbers_are_its_records():
    rows = {r["variant"]: r["pass_at"] for r in json.loads((ROOT / "results/cpu/demo.json").read_text())["table"]}
    short = {
        (v, k): f"{rows[v][k][0]:.3f}".removeprefix("0") for v in ("base", "grpo_no_kl", "grpo") for k in ("1", "64")
    }
    said = " ".join(SHOWN.split())
    for k in ("1", "64"):
        assert f"pass@{k} from {short['base', k]} to {short['grpo_no_kl', k]}" in said
    assert f"reached {short['grpo', '1']} and {short['grpo', '64']}." in said
