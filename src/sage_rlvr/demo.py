"""``sage-rlvr demo``: the whole product on an embedded default. A base, four ways to train it, samples, table, page."""

from pathlib import Path

from transformers.utils import logging

from sage_rlvr.analysis.page import trace_page
from sage_rlvr.study import page
from sage_rlvr.study.plan import read_folder
from sage_rlvr.study.run import finished_runs

TRACED = {"limit": 12, "per_problem": 4}  # problems and completions whose tokens the page can shade


def run_demo(
    out: str | Path = "runs/demo", jobs: int | None = None, show: bool = False, source: str | Path = "demo"
) -> bool:
    """Runs or goes on with the demo study under ``out``; True if every run is done. The page is made of those that are."""
    whole = page.run(source, out, jobs)
    console = page.wide_console()
    logging.disable_progress_bar()  # a bar for each of a dozen small models says nothing
    study = read_folder(out)
    for run, evaluation in finished_runs(out).items():
        if run != "base" and study.settings_of(run).get("guide", "none") != "none":
            trace_page(evaluation, [Path(out, run, "train")], console, **TRACED)
    report = page.make_report(out, show=show)
    console.print(f"\nthe page: {report.resolve()}", soft_wrap=True, highlight=False)
    console.print("one seed, a model of toy size: what it shows is how the parts behave, not which one is best.")
    return whole
