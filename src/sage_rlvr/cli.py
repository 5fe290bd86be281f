"""The door: one verb a function. Parse, call, print. Exit codes: 0 done, 2 wrong use, 1 failure."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sage_rlvr import __version__
from sage_rlvr.errors import UserError


@dataclass(frozen=True)
class Verb:
    """A verb of the command line: ``add`` declares its flags, ``run`` does it."""

    help: str
    example: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def _lab_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", default="runs/lab", help="folder for the figures and lab.json (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="which random world (default: %(default)s)")


def _lab(args: argparse.Namespace) -> None:
    from sage_rlvr.lab.page import show

    if not show(args.out, args.seed):
        raise RuntimeError(f"a check of the theory does not hold for --seed {args.seed}: see the table above.")


VERBS = {
    "lab": Verb(
        "check the theory by exact enumeration: which solution each estimator reaches",
        "sage-rlvr lab --out runs/lab",
        _lab_flags,
        _lab,
    ),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sage-rlvr",
        description="SAGE: RLVR whose KL anchor is shaped, and honest about its gradient.",
        epilog="'sage-rlvr VERB --help' shows the flags of a verb and an example.",
    )
    parser.add_argument("--version", action="version", version=f"sage-rlvr {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        sub = verbs.add_parser(name, help=verb.help, description=verb.help, epilog=f"example: {verb.example}")
        verb.add(sub)
        sub.set_defaults(run=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except UserError as e:
        print(f"sage-rlvr {args.verb}: {e}", file=sys.stderr)
        return 2
    except RuntimeError as e:
        print(f"sage-rlvr {args.verb}: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nsage-rlvr {args.verb}: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
