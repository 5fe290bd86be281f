"""Samples, judged: one evaluation, its numbers, several side by side."""

import argparse

from sage_rlvr.cli.verb import Verb
from sage_rlvr.errors import UserError


def _eval(args: argparse.Namespace) -> None:
    from transformers import HfArgumentParser

    from sage_rlvr.evaluate.page import show_results
    from sage_rlvr.evaluate.run import EvalArguments, evaluate

    parser = HfArgumentParser(
        EvalArguments,
        prog="sage-rlvr eval",
        description=EVAL.help,
        epilog=f"example: {EVAL.example}",
        allow_abbrev=False,
    )
    given, unknown = parser.parse_args_into_dataclasses(args.argv, return_remaining_strings=True)
    if unknown:
        raise UserError(f"eval has no {unknown[0]!r}: 'sage-rlvr eval --help' lists the flags.")
    show_results(evaluate(given))


EVAL = Verb(
    "sample and judge: pass@k from 1 to n with intervals; the same command goes on after an interruption",
    "sage-rlvr eval --model runs/branch --tasks aime,amc23,math500-l5 --n 256 --seeds 5 --out runs/branch-eval",
    None,
    _eval,
)


def _results_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("folder", metavar="RUN", help="folder of an evaluation")
    p.add_argument("--base", help="another evaluation: support metrics and paired differences against it")
    p.add_argument("--out", help="folder for results.json, tables and the figure (default: RUN)")
    p.add_argument("--level", type=float, default=0.95, help="level of the intervals (default: %(default)s)")


def _results(args: argparse.Namespace) -> None:
    from sage_rlvr.evaluate.page import show_results

    show_results(args.folder, args.out, args.level, args.base)


RESULTS = Verb(
    "the numbers of an evaluation, with intervals",
    "sage-rlvr results runs/branch-eval",
    _results_flags,
    _results,
)


def _compare_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "folders", nargs="+", metavar="RUN", help="folders of evaluations; differences are against the first"
    )
    p.add_argument("--out", help="folder for the tables and the figure")
    p.add_argument("--level", type=float, default=0.95, help="level of the intervals (default: %(default)s)")
    p.add_argument("--partial", action="store_true", help="show half-finished runs too, on what they have")


def _compare(args: argparse.Namespace) -> None:
    from sage_rlvr.evaluate.page import show_comparison

    show_comparison(args.folders, args.out, args.level, args.partial)


COMPARE = Verb(
    "evaluations side by side, as in the paper's Table 1, best in bold only where the interval says so",
    "sage-rlvr compare runs/base-eval runs/grpo-eval runs/branch-eval",
    _compare_flags,
    _compare,
)
