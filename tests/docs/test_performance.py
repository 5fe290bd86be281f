"""docs/performance.md says what the JSON of the runs says, digit for digit."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
RESULTS = ROOT / "results" / "gpu"
pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="the measured results are not shipped with the package")


def load(name):
    return json.loads((RESULTS / name).read_text())


def tables(title):
    """Rows of every table under ``title``: first cell → lists of the others."""
    section = PAGE.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            first, *others = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(first, []).append(others)
    return found


def test_the_head_against_its_peers():
    shown, wide, narrow = tables("Measured against peers"), *(load("head.json")["head"][w] for w in ("3584", "1536"))
    for name in ("full logits, TRL ≤ 1.14", "full logits, TRL 1.16", "TRL fused head", "verl fused kernel", "ours"):
        error = [f"{wide[name]['error'][what]:.1e}" for what in ("logps", "entropies", "gradient")]
        times = [f"{rows[name]['ms']:.1f} ms" for rows in (wide, narrow)]
        assert shown[name][0] == [*times, f"{wide[name]['extra_gib']:.2f} GiB", *error]
    floor = shown["floor (two bf16 passes, same run)"][0][:2]
    assert floor == [f"{rows['floor']['ms']:.1f} ms" for rows in (wide, narrow)]
    assert f"{wide['ours']['ms'] / wide['floor']['ms']:.2f} × the floor at 3,584" in PAGE
    assert f"{narrow['ours']['ms'] / narrow['floor']['ms']:.2f} × at 1,536" in PAGE


def test_the_head_that_learns_and_long_batches():
    shown, found = tables("Measured against peers"), load("head.json")
    for name, row in found["trainable"]["3584"].items():
        other = found["trainable"]["1536"][name]
        memory = f"{row['extra_gib']:.2f} / {other['extra_gib']:.2f} GiB"
        assert shown[name][1] == [f"{row['ms']:.1f} ms", f"{other['ms']:.1f} ms", memory]
    for tokens, ways in found["linearity"].items():
        cells = [
            f"{ways[w]['us_per_token']:.2f} µs, {ways[w]['extra_gib']:.2f} GiB" for w in ("one call", "micro-batches")
        ]
        assert shown[f"{int(tokens):,}"][0] == cells


def test_the_step():
    found, shown = load("step.json"), tables("Measured so far")
    assert shown.pop("trainer") == [["time", "peak memory"]]
    assert len(shown) == 7  # four of TRL's, three of ours
    for name, cells in shown.items():
        row = found["b"][name.replace("TRL 1.16", "TRL")]
        assert cells[0] == [f"{row['ms']:.0f} ms", f"{row['peak_gib']:.1f} GiB"]
    guide = found["a"]["branch k3 against guide off"]
    assert f"time {guide['time_ratio']:.3f} ×,\npeak memory {guide['memory_ratio']:.3f} ×" in PAGE
