"""Looking at what was run: analyses, traces, the paper's tables, the page."""

import argparse
from typing import Any

from sage_rlvr.cli.verb import flag, one_of, switch, verb
from sage_rlvr.errors import UserError

RUNS = flag("folders", nargs="+", metavar="FOLDER", help="folders with evaluations and training runs, also nested")
OPEN = switch("--open", "show it in the browser")


def _given(args: argparse.Namespace, *others: str) -> dict[str, Any]:
    """The options that were set, those that the function takes by place left out."""
    return {k: v for k, v in vars(args).items() if v is not None and k not in {"verb", "run_verb", *others}}


@verb(
    "analyze",
    "the paper's analyses over evaluations and training logs",
    "analyze support runs/branch-eval --base runs/base-eval --budget 64",
    flag(
        "kind",
        **one_of("patterns", "perplexity", "support", "dynamics", "grid", word="analysis"),
        help="which analysis",
    ),
    flag("runs", nargs="+", metavar="RUN", help="folders of evaluations or training runs"),
    flag("--base", help="support, perplexity: the base's evaluation (perplexity: or a model)"),
    flag("--out", help="folder for the JSON and the figure"),
    flag("--budget", type=int, help="support: samples per problem (default: the smaller n)"),
    flag("--pattern", action="append", metavar="NAME=REGEX", help="patterns: a detector of your own"),
    flag("--pattern_file", help="patterns: a YAML file of name: regex"),
    flag("--first", type=int, help="patterns: only the first samples of each problem and seed (the paper: 16)"),
    flag("--level", type=float, help="patterns: level of the intervals (default: 0.95)"),
    flag("--thresholds", type=float, nargs="+", help="perplexity: tails above these, where --base is a model"),
    flag("--limit", type=int, help="perplexity: samples per problem (default: all)"),
    flag("--batch_tokens", type=int, help="perplexity: tokens read together (default: 4,096, on a GPU 16,384)"),
    flag("--data_dir", help="perplexity: folder of local task files"),
    flag("--task", help="grid: which task"),
)
def _analyze(args: argparse.Namespace) -> None:
    from sage_rlvr.show.console_analysis import analyze

    analyze(args.kind, args.runs, args.base, args.out, **_given(args, "kind", "runs", "base", "out"))


@verb(
    "trace",
    "re-read stored completions through checkpoints: log-prob, entropy, q and penalty of every token",
    "trace runs/branch-eval --checkpoints runs/branch",
    flag("folder", metavar="RUN", help="folder of an evaluation, whose completions are read again"),
    flag("--checkpoints", nargs="+", help="models to read through; a training folder stands for all its checkpoints"),
    flag("--reference", help="π_ref (default: what the training run started from)"),
    flag("--guide", help="guide that shapes q (default: the training run's)"),
    flag("--guide_args", help="its arguments, as JSON"),
    flag("--limit", type=int, default=20, help="problems"),
    flag("--per_problem", type=int, default=8, help="completions per problem"),
    flag("--data_dir", help="folder of local task files"),
    flag("--out", help="folder for the trace (default: RUN/trace, where report and explore look for it)"),
    flag("--batch_tokens", type=int, help="tokens read together (default: 4,096, on a GPU 16,384)"),
    flag("--temperature", type=float, help="of log π, log π_ref and entropy (default: the training run's)"),
    flag("--seed", type=int, help="of a stochastic guide's noise (default: the training run's)"),
)
def _trace(args: argparse.Namespace) -> None:
    from sage_rlvr.show.console_analysis import trace_page

    trace_page(args.folder, args.checkpoints, **_given(args, "folder", "checkpoints"))


@verb(
    "tables",
    "the paper's tables and figures from your runs, its own values beside them",
    "tables table1 base=runs/base-eval grpo=runs/grpo-eval branch=runs/branch-eval",
    flag("which", help="table1 … table6, table9, figure2 … figure7, or all"),
    flag("runs", nargs="*", metavar="LABEL=RUN", help="evaluations or training runs, such as grpo=runs/grpo-eval"),
    flag("--out", default="runs/paper", help="folder to write into"),
)
def _tables(args: argparse.Namespace) -> None:
    from sage_rlvr.show.paper_tables import make, make_all, parse_runs

    runs = parse_runs(args.runs)
    done = make_all(runs, args.out) if args.which == "all" else [make(args.which, runs, args.out)]
    for note in dict.fromkeys(note for made in done for note in made.notes):
        print(f"note: {note}")
    for made in done:
        print("written: " + ", ".join(str(f) for f in made.files))


@verb(
    "report",
    "one self-contained page: results, curves, support, and the token explorer",
    "report runs --out report.html --open",
    RUNS,
    flag("--out", default="report.html", help="the page"),
    flag(
        "--base",
        help="the run to compare with (default: one called base, else one of the model that a training started from)",
    ),
    OPEN,
    flag(
        "--watch", type=float, nargs="?", const=5.0, metavar="SECONDS",
        help="write it again whenever the runs have changed, looking every 5 seconds, and serve it on this machine until Ctrl-C",
    ),
    flag("--port", type=int, default=8765, help="--watch: on this machine only"),
)  # fmt: skip
def _report(args: argparse.Namespace) -> None:
    from sage_rlvr.report.explore import explore
    from sage_rlvr.report.page import build_report

    if args.watch is not None:
        if not 0 < args.watch < float("inf"):
            raise UserError(f"--watch {args.watch:g}: the seconds between two looks must be above 0, and finite.")
        explore(args.folders, args.port, args.open, base=args.base, out=args.out, every=args.watch)
        return
    print(f"written: {build_report(args.folders, args.out, base=args.base, show=args.open)}")


@verb(
    "explore",
    "the same page served on this machine, over stores of any size; or the tokens alone as a file",
    "explore runs",
    RUNS,
    flag("--port", type=int, default=8765, help="on this machine only"),
    flag("--out", help="write the token explorer alone to this page, without a score, and serve nothing"),
    OPEN,
)
def _explore(args: argparse.Namespace) -> None:
    if args.out:
        from sage_rlvr.report.page import build_report

        page = build_report(args.folders, args.out, title="SAGE tokens", show=args.open, only_tokens=True)
        print(f"written: {page}")
        return
    from sage_rlvr.report.explore import explore

    explore(args.folders, args.port, show=args.open)
