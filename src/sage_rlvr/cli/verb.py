"""What a verb of the command line is, and a parser whose every refusal is one sentence."""

import argparse
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from sage_rlvr.errors import UserError
from sage_rlvr.names import closest, near


class Verb(NamedTuple):
    """``add`` declares its flags (None: it parses them itself), ``run`` does it."""

    help: str
    example: str
    add: Callable[[argparse.ArgumentParser], None] | None
    run: Callable[[argparse.Namespace], None]


Declares = Callable[[argparse.ArgumentParser], object]
VERBS: dict[str, Verb] = {}  # filled by the modules of this room


def verb(
    name: str, about: str, example: str, *flags: Declares, raw: bool = False
) -> Callable[[Callable[[argparse.Namespace], None]], Callable[[argparse.Namespace], None]]:
    """Makes a function the verb ``name``. ``example`` is what comes after "sage-rlvr"; ``raw``: it gets the words as they are."""

    def add(parser: argparse.ArgumentParser) -> None:
        for declare in flags:
            declare(parser)

    def register(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
        VERBS[name] = Verb(about, f"sage-rlvr {example}", None if raw else add, run)
        return run

    return register


def flag(*names: str, help: str, **options: Any) -> Declares:
    """argparse's add_argument, to be done later. The help says the default where there is one."""
    if options.get("default") is not None:
        help += " (default: %(default)s)"
    return lambda parser: parser.add_argument(*names, help=help, **options)


def switch(name: str, help: str) -> Declares:
    return flag(name, help=help, action="store_true")


class Parser(argparse.ArgumentParser):
    """argparse with whole flags, an example, and a suggestion for a misspelled flag; wrong use raises UserError."""

    def __init__(self, prog: str, about: str, example: str = "", **more: Any) -> None:
        super().__init__(
            prog=prog,
            description=textwrap.fill(about, max(40, min(shutil.get_terminal_size().columns, 120) - 2)),
            epilog=f"example: {example}" if example else None,
            allow_abbrev=False,
            formatter_class=_Whole,
            **more,
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse_unknown(unknown)
        return given

    def refuse_unknown(self, words: list[str]) -> NoReturn:
        word = next((w for w in words if w.startswith("-")), words[0]).partition("=")[0]
        known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        close = closest(word, known) if word.startswith("-") else []
        verb = self.prog.removeprefix("sage-rlvr ")
        end = f"did you mean {' or '.join(close)}?" if close else f"'{self.prog} --help' lists what it takes."
        raise UserError(f"{verb} has no {word!r}: {end}")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; '{self.prog} --help' shows an example.")


class _Whole(argparse.RawDescriptionHelpFormatter):
    """The example stands on a line of its own, to be copied; help begins at column 26, and fits the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=max(40, min(shutil.get_terminal_size().columns, 120) - 2))


def one_of(*names: str, word: str) -> dict[str, Any]:
    """Options of a flag that takes one of these names, or answers a sentence with the nearest; ``word`` is what one is called."""

    def check(value: str) -> str:
        if value not in names:
            raise argparse.ArgumentTypeError(f"there is no {word} {value!r}: {near(value, names)}")
        return value

    return {"type": check, "metavar": f"{{{','.join(names)}}}"}


# ---- a dataclass as flags ------------------------------------------------------------------------------------------


def add_fields(p: argparse.ArgumentParser, cls: type, names: dict[str, str]) -> None:
    """A flag for each field of a dataclass, under ``names``' name where it has one, with help and default."""
    hints = get_type_hints(cls)
    for f in fields(cls):
        kind, several = _kind(hints[f.name])
        default = f.default if f.default is not MISSING else f.default_factory()  # type: ignore[operator]
        about = f.metadata["help"].rstrip(".").replace("%", "%%")
        if default not in (None, "", []):
            about += f" (default: {' '.join(map(str, default)) if several else default})"
        more: dict[str, Any] = {"nargs": "+"} if several else {"nargs": "?", "const": True} if kind is bool else {}
        name = names.get(f.name, f.name)
        p.add_argument(
            f"--{name}", dest=f.name, default=default, type=_truth if kind is bool else kind, metavar=name.upper(),
            help=about, **more,
        )  # fmt: skip


def _kind(hint: Any) -> tuple[type, bool]:
    """(type of one value, whether there may be several)."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    return (get_args(hint)[0], True) if get_origin(hint) is list else (hint, False)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"
