"""The door: one verb a function. Parse, call, print. Exit codes: 0 done, 2 wrong use, 1 failure, 130 interrupted."""

import argparse
import os
import sys
from collections.abc import Sequence

from sage_rlvr import __version__, extensions
from sage_rlvr.cli import before, evaluate, look, study, train
from sage_rlvr.errors import UserError
from sage_rlvr.files import refused

VERBS = {  # in the order of --help
    "demo": study.DEMO,
    "doctor": before.DOCTOR,
    "plan": before.PLAN,
    "bench": before.BENCH,
    "lab": before.LAB,
    "tasks": before.TASKS,
    "train": train.TRAIN,
    "eval": evaluate.EVAL,
    "results": evaluate.RESULTS,
    "compare": evaluate.COMPARE,
    "analyze": look.ANALYZE,
    "trace": look.TRACE,
    "tables": look.TABLES,
    "report": look.REPORT,
    "explore": look.EXPLORE,
    "study": study.STUDY,
    "recipes": train.RECIPES,
    "merge": train.MERGE,
    "export": train.EXPORT,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sage-rlvr",
        description="SAGE: RLVR whose KL anchor is shaped, and honest about its gradient.",
        epilog="'sage-rlvr VERB --help' shows the flags of a verb and an example.",
    )
    parser.add_argument(
        "--import",
        metavar="MODULE",
        help="before the verb: a Python module or file name that registers tasks, scorers, formats or guides of yours",
    )
    parser.add_argument("--version", action="version", version=f"sage-rlvr {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        sub = verbs.add_parser(name, help=verb.help, description=verb.help, epilog=f"example: {verb.example}")
        if verb.add is not None:
            verb.add(sub)
        sub.set_defaults(run_verb=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0].startswith("--import="):
        argv[:1] = argv[0].split("=", 1)
    if argv[:1] == ["--import"] and len(argv) > 1:
        os.environ[extensions.MODULES] = argv[1]
        argv = argv[2:]
    verb = VERBS.get(argv[0]) if argv else None
    if verb is not None and verb.add is None:
        args = argparse.Namespace(verb=argv[0], run_verb=verb.run, argv=argv[1:])
    else:
        args = _parser().parse_args(argv)
    try:
        extensions.load()
        args.run_verb(args)
    except UserError as e:
        print(f"sage-rlvr {args.verb}: {e}", file=sys.stderr)
        return e.exit_code
    except BrokenPipeError:  # the reader has seen enough: | head
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print(f"\nsage-rlvr {args.verb}: interrupted", file=sys.stderr)
        return 130
    except Exception as e:
        sentence = refused(e, argv)
        if sentence is None:
            raise  # the program's own: its traceback is what helps
        print(f"sage-rlvr {args.verb}: {sentence}", file=sys.stderr)
        return 1
    return 0
