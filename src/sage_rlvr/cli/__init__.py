"""The command line: one function per verb. Parse, call, print. Exit codes: 0 done, 2 wrong use, 1 failure, 130 interrupted."""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from sage_rlvr import __version__, extensions
from sage_rlvr.cli import before, evaluate, look, study, train, verb
from sage_rlvr.cli.verb import Parser
from sage_rlvr.errors import UserError
from sage_rlvr.files import refused
from sage_rlvr.names import near, shown_flags

# of --help
ORDER = (
    "demo doctor plan lab tasks train eval results compare analyze trace tables report explore study recipes merge blend "
    "export"
)
ROOMS = (before, evaluate, look, study, train)  # each fills the table of verbs
VERBS = {name: verb.VERBS[name] for name in ORDER.split()}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The verb and its flags, old names included; a misspelling raises UserError with the nearest name."""
    argv = list(argv)
    if not argv or argv[0] in ("-h", "--help", "--version"):
        return _door().parse_args(argv)
    name = argv[0]
    if name not in VERBS:
        if name.startswith("-"):
            _door().refuse_unknown([name])
        raise UserError(f"there is no verb {name!r}: {near(name, VERBS)}; 'sage-rlvr --help' lists them.")
    verb, words = VERBS[name], shown_flags(argv[1:])
    if verb.add is None:
        return argparse.Namespace(verb=name, run_verb=verb.run, argv=words)
    parser = Parser(f"sage-rlvr {name}", verb.help, verb.example)
    verb.add(parser)
    parser.set_defaults(verb=name, run_verb=verb.run)
    return parser.parse_args(words)


def _door() -> Parser:
    """What stands before the verb, and the list of verbs."""
    parser = Parser(
        "sage-rlvr",
        "Train language models with verifiable rewards (RLVR): GRPO, and SAGE's shaped KL anchor, with evaluation.",
        usage="sage-rlvr [--import MODULE] VERB [flags]",
    )
    about = "before the verb: a Python module or file that registers your tasks, scorers, formats or guides"
    parser.add_argument("--import", metavar="MODULE", help=about)
    parser.add_argument("--version", action="version", version=f"sage-rlvr {__version__}")
    width = max(map(len, VERBS)) + 4
    columns = min(shutil.get_terminal_size().columns, 120) - 2
    lines = [
        textwrap.fill(verb.help, columns, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
        for name, verb in VERBS.items()
    ]
    end = "\nexample: sage-rlvr demo\n'sage-rlvr VERB --help' shows the flags of a verb, defaults and an example."
    parser.epilog = "\n".join(["verbs:", *lines, end])
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0].startswith("--import="):
        argv[:1] = argv[0].split("=", 1)
    if argv[:1] == ["--import"] and len(argv) > 1:
        os.environ[extensions.MODULES] = argv[1]
        argv = argv[2:]
    if not argv:
        _door().print_usage(sys.stderr)
        print("sage-rlvr: name a verb: 'sage-rlvr --help' lists them.", file=sys.stderr)
        return 2
    who = f"sage-rlvr {argv[0]}" if argv[0] in VERBS else "sage-rlvr"
    try:
        args = parse(argv)
        extensions.load()
        args.run_verb(args)
    except UserError as e:
        print(f"{who}: {e}", file=sys.stderr)
        return e.exit_code
    except BrokenPipeError:  # the reader has seen enough: | head
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print(f"\n{who}: interrupted", file=sys.stderr)
        return 130
    except Exception as e:
        sentence = refused(e, argv)
        if sentence is None:
            raise  # the program's own: its traceback is what helps
        print(f"{who}: {sentence}", file=sys.stderr)
        return 1
    return 0
