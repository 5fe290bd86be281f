"""Looking at what was run: analyses, traces, the paper's tables, the page."""

import argparse

from sage_rlvr.cli.verb import Verb, one_of
from sage_rlvr.errors import UserError


def _analyze_flags(p: argparse.ArgumentParser) -> None:
    kinds = ["patterns", "perplexity", "support", "dynamics", "grid"]
    p.add_argument("kind", type=one_of(kinds, "analysis"), metavar=f"{{{','.join(kinds)}}}", help="which analysis")
    p.add_argument("runs", nargs="+", metavar="RUN", help="folders of evaluations or training runs")
    p.add_argument("--base", help="support, perplexity: the base's evaluation (perplexity: or a model)")
    p.add_argument("--out", help="folder for the JSON and the figure")
    p.add_argument("--budget", type=int, help="support: samples per problem (default: the smaller n)")
    p.add_argument("--pattern", action="append", metavar="NAME=REGEX", help="patterns: a detector of your own")
    p.add_argument("--pattern_file", help="patterns: a YAML file of name: regex")
    p.add_argument(
        "--first", type=int, help="patterns: only the first samples of each problem and seed (the paper: 16)"
    )
    p.add_argument("--level", type=float, help="patterns: level of the intervals (default: 0.95)")
    p.add_argument("--thresholds", type=float, nargs="+", help="perplexity: tails above these, where --base is a model")
    p.add_argument("--limit", type=int, help="perplexity: samples per problem (default: all)")
    p.add_argument(
        "--batch_tokens", type=int, help="perplexity: tokens read together (default: 4,096, on a GPU 16,384)"
    )
    p.add_argument("--data_dir", help="perplexity: folder of local task files")
    p.add_argument("--task", help="grid: which task")


def _analyze(args: argparse.Namespace) -> None:
    from sage_rlvr.show.console_analysis import analyze

    names = (
        "budget", "pattern", "pattern_file", "first", "level", "thresholds", "limit", "batch_tokens", "data_dir", "task",
    )  # fmt: skip
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    analyze(args.kind, args.runs, args.base, args.out, **options)


ANALYZE = Verb(
    "the paper's analyses over evaluations and training logs",
    "sage-rlvr analyze support runs/branch-eval --base runs/base-eval --budget 64",
    _analyze_flags,
    _analyze,
)


def _trace_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("folder", metavar="RUN", help="folder of an evaluation, whose completions are read again")
    p.add_argument(
        "--checkpoints", nargs="+", help="models to read through; a training folder stands for all its checkpoints"
    )
    p.add_argument("--reference", help="π_ref (default: what the training run started from)")
    p.add_argument("--guide", help="guide that shapes q (default: the training run's)")
    p.add_argument("--guide_args", help="its arguments, as JSON")
    p.add_argument("--limit", type=int, default=20, help="problems (default: %(default)s)")
    p.add_argument("--per_problem", type=int, default=8, help="completions per problem (default: %(default)s)")
    p.add_argument("--data_dir", help="folder of local task files")
    p.add_argument("--out", help="folder for the trace (default: RUN/trace, where report and explore look for it)")
    p.add_argument("--batch_tokens", type=int, help="tokens read together (default: 4,096, on a GPU 16,384)")
    p.add_argument("--temperature", type=float, help="of log π, log π_ref and entropy (default: the training run's)")
    p.add_argument("--seed", type=int, help="of a stochastic guide's noise (default: the training run's)")


def _trace(args: argparse.Namespace) -> None:
    from sage_rlvr.show.console_analysis import trace_page

    names = ("reference", "guide", "guide_args", "limit", "per_problem", "data_dir", "out", "batch_tokens", "temperature",
             "seed")  # fmt: skip
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    trace_page(args.folder, args.checkpoints, **options)


TRACE = Verb(
    "re-read stored completions through checkpoints: log-prob, entropy, q and penalty of every token",
    "sage-rlvr trace runs/branch-eval --checkpoints runs/branch",
    _trace_flags,
    _trace,
)


def _tables_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("which", help="table1 … table6, table9, figure2 … figure7, or all")
    p.add_argument(
        "runs", nargs="*", metavar="LABEL=RUN", help="evaluations or training runs, such as grpo=runs/grpo-eval"
    )
    p.add_argument("--out", default="runs/paper", help="folder to write into (default: %(default)s)")


def _tables(args: argparse.Namespace) -> None:
    from sage_rlvr.show.paper_tables import make, make_all, parse_runs

    runs = parse_runs(args.runs)
    done = make_all(runs, args.out) if args.which == "all" else [make(args.which, runs, args.out)]
    for note in dict.fromkeys(note for made in done for note in made.notes):
        print(f"note: {note}")
    for made in done:
        print("written: " + ", ".join(str(f) for f in made.files))


TABLES = Verb(
    "the paper's tables and figures from your runs, its own values beside them",
    "sage-rlvr tables table1 base=runs/base-eval grpo=runs/grpo-eval branch=runs/branch-eval",
    _tables_flags,
    _tables,
)


def _report_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="folders with evaluations and training runs, also nested"
    )
    p.add_argument("--out", default="report.html", help="the page (default: %(default)s)")
    p.add_argument(
        "--base",
        help="the run to compare with (default: one called base, else one of the model that a training started from)",
    )
    p.add_argument("--open", action="store_true", help="show it in the browser")
    p.add_argument(
        "--watch", type=float, nargs="?", const=5.0, metavar="SECONDS",
        help="write it again whenever the runs have changed, looking every 5 seconds, and serve it on this machine until Ctrl-C",
    )  # fmt: skip
    _port_flag(p, "--watch: ")


def _port_flag(p: argparse.ArgumentParser, when: str = "") -> None:
    p.add_argument("--port", type=int, default=8765, help=f"{when}on this machine only (default: %(default)s)")


def _report(args: argparse.Namespace) -> None:
    from sage_rlvr.report.explore import explore
    from sage_rlvr.report.page import build_report

    if args.watch is not None:
        if not 0 < args.watch < float("inf"):
            raise UserError(f"--watch {args.watch:g}: the seconds between two looks must be above 0, and finite.")
        explore(args.folders, args.port, args.open, base=args.base, out=args.out, every=args.watch)
        return
    print(f"written: {build_report(args.folders, args.out, base=args.base, show=args.open)}")


REPORT = Verb(
    "one self-contained page: results, curves, support, and the token explorer",
    "sage-rlvr report runs --out report.html --open",
    _report_flags,
    _report,
)


def _explore_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="folders with evaluations and training runs, also nested"
    )
    _port_flag(p)
    p.add_argument("--out", help="write the token explorer alone to this page, without a score, and serve nothing")
    p.add_argument("--open", action="store_true", help="show it in the browser")


def _explore(args: argparse.Namespace) -> None:
    if args.out:
        from sage_rlvr.report.page import build_report

        page = build_report(args.folders, args.out, title="SAGE tokens", show=args.open, only_tokens=True)
        print(f"written: {page}")
        return
    from sage_rlvr.report.explore import explore

    explore(args.folders, args.port, show=args.open)


EXPLORE = Verb(
    "the same page served on this machine, over stores of any size; or the tokens alone as a file",
    "sage-rlvr explore runs",
    _explore_flags,
    _explore,
)
