"""docs/results.md's tables of bases say what results/gpu/bases.json says, which the script's own lists describe."""

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
RECORD = ROOT / "results" / "gpu" / "bases.json"
pytestmark = pytest.mark.skipif(not RECORD.is_file(), reason="the measured results are not shipped with the package")

BASES = {
    "8,000 problems, 2e-3, 500 steps": "a2_500",
    "the same, 700 steps": "a2_700",
    "dropout 0.2, 700 steps": "drop2",
    "12,000 problems, 500 steps": "p12_500",
    "12,000 problems, dropout 0.1, 700 steps": "q12d",
    "GPT-2 in place of Qwen2, dropout 0.1, 1e-3, 1,400 steps": "g14",
}
RUNS = ["rl_p12_500_0.0001", "rl_p12_500_0.0002", "rl_q12d_0.0001_still", "rl_q12d_0.0002_still"]
RUNS += ["rl_qd3_900_0.0001_still", "rl_qd3_900_0.0002_still"]


def rows_under(title):
    """The rows of the table whose head begins with ``title``, without bold."""
    lines = PAGE.replace("**", "").split(f"| {title} ", 1)[1].splitlines()[2:]
    table = lines[: next(i for i, line in enumerate(lines) if not line.strip().startswith("|"))]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]


def short(number, digits=3):
    return f"{number:.{digits}f}".removeprefix("0")


def test_the_bases_and_their_runs():
    record = json.loads(RECORD.read_text())
    bases, runs = ({row["name"]: row for row in record[what]} for what in ("bases", "runs"))
    shown = {
        first: others
        for first, *others in rows_under("base | pass@1 | pass@16 | pass@256 | distinct")
        if not first.startswith("asked")
    }
    assert set(shown) == set(BASES)
    for label, name in BASES.items():
        row = bases[name]
        assert shown[label] == [*(short(row[k]) for k in ("pass@1", "pass@16", "pass@256")), short(row["distinct"], 2)]
    for name, (_, rate, *others) in zip(RUNS, rows_under("GRPO without KL, 250 steps"), strict=True):
        row = runs[name]
        assert float(rate) == row["settings"]["learning_rate"]
        ends = ", ".join(short(sum(part) / 5) for part in (row["rewards"][:5], row["rewards"][-5:]))
        assert others == [*(short(row[k]) for k in ("pass@1", "pass@16", "pass@256")), ends]
    assert f"{len(bases)} bases and {len(runs)} RL runs" in PAGE


def test_the_script_would_make_them_again(monkeypatch):
    folder = ROOT / "benchmarks" / "gpu"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    script, record = runpy.run_path(str(folder / "bases.py")), json.loads(RECORD.read_text())
    assert {row["name"]: row["settings"] for row in record["bases"]} == json.loads(json.dumps(script["BASES"]))
    runs = {name: run for name, run in script["RUNS"].items() if run[0] != script["STUDY"]}
    assert {row["name"]: (row["base"], row["settings"]) for row in record["runs"]} == runs


def test_the_rewards_at_three_rates():
    record = json.loads((ROOT / "results" / "cpu" / "rates.json").read_text())
    shown = {rate: cells for rate, *cells in rows_under("learning rate | steps 1–10")}
    assert shown == {rate: [short(x) for x in row] for rate, row in record["reward_every_10_steps"].items()}
    last = record["k1_reward_0.05_at_2e-4"]
    said = f"the latest of {last['step']} steps on a CPU: `kl_ref` {last['kl_ref']}, mean log-ratio {last['mean_log_ratio']}"
    assert said in PAGE
