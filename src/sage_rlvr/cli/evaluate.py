"""Samples, judged: one evaluation, its numbers, several side by side."""

import argparse
from dataclasses import fields

from sage_rlvr.cli.verb import add_fields, flag, switch, verb
from sage_rlvr.names import OLD

LEVEL = flag("--level", type=float, default=0.95, help="level of the intervals")


def _eval_flags(p: argparse.ArgumentParser) -> None:
    from sage_rlvr.evaluate.arguments import EvalArguments

    p.usage = (
        "sage-rlvr eval --model MODEL (--task TASK | --dataset DATA) --out FOLDER\n"
        "                      [--n N] [flags]"
    )
    add_fields(p, EvalArguments, OLD)


@verb(
    "eval",
    "sample and judge: pass@k for k up to n, with intervals; run the same command again to continue",
    "eval --model runs/branch --task amc23 --n 64 --out runs/eval",
    _eval_flags,
)
def _eval(args: argparse.Namespace) -> None:
    from sage_rlvr.evaluate.arguments import EvalArguments
    from sage_rlvr.evaluate.run import evaluate
    from sage_rlvr.show.console_eval import show_results

    given = EvalArguments(**{f.name: getattr(args, f.name) for f in fields(EvalArguments)})
    show_results(evaluate(given))


@verb(
    "results",
    "the numbers of an evaluation, with intervals",
    "results runs/branch-eval",
    flag("folder", metavar="RUN", help="folder of an evaluation"),
    flag("--base", help="another evaluation: support metrics and paired differences against it"),
    flag("--out", help="folder for results.json, tables and the figure (default: RUN)"),
    LEVEL,
)
def _results(args: argparse.Namespace) -> None:
    from sage_rlvr.show.console_eval import show_results

    show_results(args.folder, args.out, args.level, args.base)


@verb(
    "compare",
    "evaluations side by side, as in the paper's Table 1, best in bold only where the interval says so",
    "compare runs/base-eval runs/grpo-eval runs/branch-eval",
    flag("folders", nargs="+", metavar="RUN", help="folders of evaluations; differences are against the first"),
    flag("--out", help="folder for the tables and the figure"),
    LEVEL,
    switch("--partial", "show half-finished runs too, on what they have"),
)
def _compare(args: argparse.Namespace) -> None:
    from sage_rlvr.show.console_eval import show_comparison

    show_comparison(args.folders, args.out, args.level, args.partial)
