"""docs/performance.md says what the JSON of the runs says, digit for digit."""

import json
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
RESULTS = ROOT / "results" / "gpu"
pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="the measured results are not shipped with the package")


LAYER = 2 * 1536 * 1536 + 2 * 1536 * 256 + 3 * 1536 * 8960  # Qwen2.5-1.5B: q, o; k, v; the three of the MLP
WEIGHTS = 28 * LAYER + 151_936 * 1536


def ms_of_a_pass(tokens):
    """Two operations a weight and token, at the 670 TFLOP/s that the head's floor reaches."""
    return 1e3 * 2 * WEIGHTS * tokens / 670e12


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


def test_the_gpu_agrees_with_the_cpu_within_what_is_said():
    found = load("agreement.json")["agreement"]
    assert len(found) == 20
    for dtype in ("bfloat16", "float32"):
        rows = [row for name, row in found.items() if name.endswith(f", {dtype}")]
        worst = [max(row[what] for row in rows) for what in ("logps", "entropies", "gradient")]
        assert all(off < bound for off, bound in zip(worst, (5e-3, 5e-3, 1e-2)))
        assert all(f"{off:.1e}" in PAGE for off in worst)


def test_the_step_without_generation():
    found, shown = load("step.json"), tables("Measured without generation")
    assert shown.pop("trainer") == [["time", "peak memory"]]
    assert shown.pop("tokens") == [["time", "per token", "peak memory"]]
    for name, row in found["c"].items():
        cells = [f"{row['ms']:.0f} ms", f"{row['us_per_token']:.1f} µs", f"{row['peak_gib']:.1f} GiB"]
        assert shown.pop(f"{int(name.split()[0]):,}") == [cells]
    verdict = found["b"].pop("verdict")
    floor = 3 * ms_of_a_pass(found["rollouts"]["real_tokens"])
    cells = [[f"{floor:.0f} ms", f"{2 * WEIGHTS / 2**30:.1f} GiB"]]
    assert shown.pop("floor: three passes, 0.30 PFLOP at 670 TFLOP/s; the weights, bf16") == cells
    assert len(shown) == len(found["b"]) == 10  # six of TRL's, four of ours
    for name, row in found["b"].items():
        assert shown[name.replace("TRL", "TRL 1.16")] == [[f"{row['ms']:.0f} ms", f"{row['peak_gib']:.1f} GiB"]]
    assert f"**{verdict['speedup']:.2f} × TRL's fastest, with {verdict['memory_ratio']:.2f} of its memory**" in PAGE
    guide = found["a"]["branch k3 against guide off"]
    assert f"time {guide['time_ratio']:.3f} ×,\npeak memory {guide['memory_ratio']:.3f} ×" in PAGE
    assert f"{guide['passes_on']:.0f} forward passes both" in PAGE
    assert guide["passes_on"] == guide["passes_off"]
    assert guide["updates"] >= 30
    grows = found["c"]["131072 tokens"]["ms"] / found["c"]["32768 tokens"]["ms"]
    assert f"the time grows {grows:.2f} ×" in PAGE


def test_the_whole_step():
    found, shown = load("whole_step.json"), tables("The whole step, with vLLM")
    assert shown.pop("phase") == [["ours", "TRL 1.16", "TRL ÷ ours, per token", "floor"]]
    tokens = statistics.median(found["ours"]["tokens"]) + 64 * 125  # prompts of 50 to 200
    one, sync = ms_of_a_pass(tokens), 1e3 * 4 * WEIGHTS / 4.3e12
    floors = {"rollout": 1024 * 1e3 * 2 * WEIGHTS / 4.3e12, "sampling policy": one, "reference": one, "update": 2 * one}
    floors |= {
        "sync": sync,
        "all but rollout": 4 * one + sync,
        "step": 4 * one + sync + 1024 * 1e3 * 2 * WEIGHTS / 4.3e12,
    }
    assert set(shown) == set(found["ours"]["ms"]) == set(found["theirs"]["ms"])
    for name, cells in shown.items():
        times = [f"{found[who]['ms'][name]:.0f}" for who in ("ours", "theirs")]
        floor = f"{floors[name]:.0f}" if name in floors else "–"
        assert cells == [[*times, f"{found['theirs ÷ ours'][name]:.2f}", floor]]
    peaks = [f"{found[who]['peak_gib']:.1f}" for who in ("ours", "theirs")]
    assert f"{peaks[0]} and {peaks[1]} GiB" in PAGE
    ours, theirs = found["ours"]["ms"], found["theirs"]["ms"]
    assert f"{theirs['step'] / (ours['step'] - ours['rollout'] + theirs['rollout']):.2f} × as fast" in PAGE
