"""The report at its largest: 25 runs × 1,000 problems, built, weighed and opened in headless Chromium.

    python benchmarks/report.py                  # a table
    python benchmarks/report.py --json out.json
    python benchmarks/report.py --runs 100 --problems 300

Stores are written through SampleStore, with training logs of 1,000 steps beside them and traces in the first. "Interactive"
is the moment at which every control answers (the page's own mark, counted from the start of navigation); the explorer is
timed from its first scroll into view until a completion is on the screen. Needs Chromium and selenium.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sage_rlvr.report.page import build_report

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.report.browser import Browser, installed
from tests.report.synthetic import chances, write_log, write_store, write_trace

SHARES = {"aime": 0.2, "amc23": 0.1, "math500": 0.4, "minerva": 0.3}  # of the problems


def make(root: Path, runs: int, problems: int, n: int, words: int) -> None:
    for i in range(runs):
        lift, reach = 0.02 * i, 0.002 * i
        rights = {
            t: chances(round(problems * part), seed, lift, reach) for seed, (t, part) in enumerate(SHARES.items())
        }
        folder = write_store(root / f"run-{i:03d}" / "eval", rights, n=n, words=words, model=f"toy/{i}")
        write_log(root / f"run-{i:03d}", steps=1000, lift=1 + lift / 4)
        if i == 0:
            keys = [("aime", f"aime-{p:03d}", 0, j) for p in range(8) for j in range(4)]
            write_trace(folder, keys, ["base", *(f"checkpoint-{s}" for s in (250, 500, 750, 1000))])


def measure(page: Path, times: int = 5) -> dict[str, float]:
    """Medians over fresh loads."""
    seen: list[dict[str, float]] = []
    browser = Browser()
    try:
        for _ in range(times):
            browser.size(1440)
            start = time.perf_counter()
            browser.open(page)
            took = {"opened_s": time.perf_counter() - start}
            took["interactive_s"] = browser.js("return performance.getEntriesByName('ready')[0].startTime") / 1000
            start = time.perf_counter()
            browser.show("explorer")
            took["explorer_s"] = time.perf_counter() - start
            start = time.perf_counter()
            browser.js(
                "document.getElementById('runs-button').click(); document.querySelector('#runs-panel button').click()"
            )
            took["all_runs_s"] = time.perf_counter() - start  # every run switched on, in every figure drawn so far
            seen.append(took)
        said = browser.errors()
        if said:
            raise SystemExit(f"the console says: {said[:3]}")
    finally:
        browser.close()
    return {name: sorted(s[name] for s in seen)[len(seen) // 2] for name in seen[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=16, help="samples of each problem")
    parser.add_argument("--words", type=int, default=150, help="words of a completion")
    parser.add_argument("--keep", help="folder to leave the runs and the page in")
    parser.add_argument("--json", help="also write the numbers here")
    args = parser.parse_args()
    if not installed():
        raise SystemExit("Chromium is missing: apt-get install chromium chromium-driver, pip install selenium.")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(args.keep or scratch)
        start = time.perf_counter()
        if not (root / "runs").exists():
            make(root / "runs", args.runs, args.problems, args.samples, args.words)
        made, start = time.perf_counter() - start, time.perf_counter()
        page = build_report(root / "runs", root / "report.html")
        built, size = time.perf_counter() - start, page.stat().st_size
        numbers: dict[str, Any] = {
            "runs": args.runs,
            "problems": args.problems,
            "samples_a_problem": args.samples,
        }
        numbers |= {"written_s": made, "build_s": built, "page_mb": size / 1e6} | measure(page)
    numbers |= {"cpu": platform.machine(), "cores": os.cpu_count()}
    table = Table("what", "measured", title=f"{args.runs} runs × {numbers['problems']} problems")
    for name, value in numbers.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    Console().print(table)
    if args.json:
        Path(args.json).write_text(json.dumps(numbers, indent=1) + "\n")
    good = numbers["interactive_s"] < 2 and numbers["page_mb"] < 5
    Console().print("under 2 s and under 5 MB" if good else "[bold red]over 2 s or 5 MB[/]")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
