"""Writes the parts of docs/reference that the code decides: flags, settings, refusals. ``make reference`` runs it, a test
compares.

A page keeps its own words above the MARK; all below is made here.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from docs_tools.refusals import CASES

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
MARK = "<!-- below: written by make reference -->"


def cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def value(default: Any) -> str:
    return "" if default is None or default in (MISSING, argparse.SUPPRESS, "") else f"`{default}`"


# ---- the command line ----------------------------------------------------------------------------------------------


def flag_rows(parser: argparse.ArgumentParser, only: set[str] | None = None) -> list[tuple[str, ...]]:
    rows = []
    for action in parser._actions:
        if (
            isinstance(action, argparse._HelpAction)
            or action.help == argparse.SUPPRESS
            or (only and action.dest not in only)
        ):
            continue
        name = shown(action.option_strings[0]) if action.option_strings else str(action.metavar or action.dest)
        said = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        said = said.replace(f" (default: {action.default})", "")  # the last column says it
        said += f" One of {', '.join(map(str, action.choices))}." if action.choices and action.option_strings else ""
        default = value(None if action.default is False or action.required else action.default)
        rows.append((f"`{name}`", cell(said), "required" if action.required and action.option_strings else default))
    return rows


def shown(flag: str) -> str:
    """The name that every verb takes, where TRL has another."""
    from sage_rlvr.names import OLD

    return f"--{OLD.get(flag.removeprefix('--'), flag.removeprefix('--'))}"


def own_parser(verb: str) -> tuple[argparse.ArgumentParser, set[str] | None]:
    """Of a verb that parses its words itself, with the flags that are shown here: the others are settings (fields.md)."""
    from transformers import HfArgumentParser

    from sage_rlvr.doctor.console import plan_flags
    from sage_rlvr.evaluate.run import EvalArguments
    from sage_rlvr.train import run

    if verb == "train":
        return run.make_parser(), {f.name for f in fields(run.RunArguments)} | {"model_name_or_path", "output_dir"}
    if verb == "eval":
        return HfArgumentParser(EvalArguments), None
    parser = argparse.ArgumentParser()
    plan_flags(parser)
    return parser, None


def command_line() -> list[str]:
    from sage_rlvr.cli import VERBS
    from sage_rlvr.train import launch

    lines: list[str] = []
    for name, verb in VERBS.items():
        lines += [f"## {name}", "", f"{verb.help[0].upper()}{verb.help[1:]}.", "", f"`{verb.example}`", ""]
        parser, only = argparse.ArgumentParser(), None
        if verb.add is not None:
            verb.add(parser)
        else:
            parser, only = own_parser(name)
        rows = flag_rows(parser, only)
        if name == "train":
            rows += [
                ("`--config`", "A recipe, by name or file; flags override it.", ""),
                ("`--accelerate_config`", f"Several processes: {', '.join(launch.names())}, or a file.", ""),
                ("`--num_processes`", "How many processes.", ""),
            ]
        if rows:
            lines += table(("flag", "meaning", "default"), rows)
        if name in ("train", "plan"):
            lines += [
                "And [every setting](fields.md), ours and TRL's, as `--NAME VALUE`; `sage-rlvr train --help_all` lists them.",
                "",
            ]
    return lines


# ---- settings ------------------------------------------------------------------------------------------------------


def settings() -> list[str]:
    from sage_rlvr.train.config import SAGEConfig
    from sage_rlvr.train.run import RunArguments

    def rows(cls: type, names: Iterable[str]) -> list[tuple[str, ...]]:
        known = {f.name: f for f in fields(cls)}
        return [(f"`{n}`", value(known[n].default) or "unset", cell(known[n].metadata["help"])) for n in names]

    ours = [name for name in inspect.get_annotations(SAGEConfig) if not name.startswith("_")]
    head = ("setting", "default", "meaning")
    lines = ["## SAGEConfig", "", *table(head, rows(SAGEConfig, ours))]
    lines += [
        "## Of `sage-rlvr train` alone",
        "",
        *table(head, rows(RunArguments, [f.name for f in fields(RunArguments)])),
    ]
    return lines


# ---- refusals ------------------------------------------------------------------------------------------------------


def sentence(given: dict[str, Any]) -> str:
    from sage_rlvr import SAGEConfig, UserError

    try:
        SAGEConfig(output_dir="runs/x", report_to="none", use_cpu=True, bf16=False, **given)
    except UserError as e:
        return str(e)
    raise AssertionError(f"{given} is not refused any more")


def refusals() -> list[str]:
    lines: list[str] = []
    for title, cases in CASES.items():
        lines += [f"## {title}", ""]
        for given in cases:
            wrote = ", ".join(f"{k}={v!r}" for k, v in given.items())
            pair = f"- `{wrote}`  \n  {cell(sentence(given))}"
            lines.append(pair.replace("docs_tools.refusals:", "my_module:"))
        lines.append("")
    return lines


PAGES: dict[str, Callable[[], list[str]]] = {"cli.md": command_line, "fields.md": settings, "refused.md": refusals}


def made(name: str) -> str:
    """The page as it should be."""
    above, mark, _ = (FOLDER / name).read_text(encoding="utf-8").partition(MARK)
    assert mark, f"docs/reference/{name} has no line {MARK}"
    return above + MARK + "\n\n" + "\n".join(PAGES[name]()).rstrip() + "\n"


if __name__ == "__main__":
    for page in PAGES:
        (FOLDER / page).write_text(made(page), encoding="utf-8")
        print(f"docs/reference/{page}", file=sys.stderr)
