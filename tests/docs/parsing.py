"""A documented ``sage-rlvr …`` against the real parser: the verb, its flags, and the names it uses must exist."""

import contextlib
import io
import re
from dataclasses import fields
from typing import Any

from sage_rlvr import cli
from sage_rlvr.errors import UserError

BESIDE = {"--guide": "--guide_args", "--reward": "--reward_weights"}  # what means nothing without the other
_ENDS = {"&", "&&", "||", "|", ";", ">", ">>", "2>"}


def verb_words(words: list[str]) -> list[str] | None:
    """What follows ``sage-rlvr`` in a command, without variables before it and pipes behind it; None for another program."""
    words = [w for i, w in enumerate(words) if i or w not in _ENDS]
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        words = words[1:]
    if words[:1] != ["sage-rlvr"]:
        return None
    end = next((i for i, w in enumerate(words) if w in _ENDS), len(words))
    return words[1:end] if words[1] != "--import" else None  # names of the reader's own; tests/test_cli.py runs one


def check(argv: list[str], whole: bool = True) -> None:
    """Raises an AssertionError that says what does not exist. ``whole=False``: a verb by itself is its name, not a command."""
    if not whole and len(argv) == 1 and argv[0] in cli.VERBS:
        return
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            _check(argv)
    except (UserError, ValueError) as e:
        raise AssertionError(f"sage-rlvr {' '.join(argv)}: {e}") from e
    except SystemExit as e:
        if e.code:
            raise AssertionError(f"sage-rlvr {' '.join(argv)}: {said.getvalue().strip().splitlines()[-1]}") from e


def _check(argv: list[str]) -> None:
    if argv and argv[0].isupper():  # VERB
        return
    args = cli.parse(argv)
    if argv[0] in _OWN:
        _OWN[argv[0]](args.argv)
    else:
        _names(vars(args))


def _names(args: dict[str, Any]) -> None:
    """Recipes, tasks, studies and paper tables that the arguments name."""
    from sage_rlvr.evaluate.arguments import EvalArguments
    from sage_rlvr.report.paper_figures import FIGURES
    from sage_rlvr.report.tables import TABLES
    from sage_rlvr.study.plan import load_study
    from sage_rlvr.tasks import get_format, get_task
    from sage_rlvr.train.recipes import load_recipe

    verb, what = args["verb"], args.get("what")
    if verb == "tasks":
        get_format(args["format"])
        if args["name"] and not _theirs(args["name"]):
            get_task(args["name"])
    if verb == "eval":
        given = EvalArguments(**{f.name: args[f.name] for f in fields(EvalArguments)})
        for task in given.tasks:
            get_task(task)
        get_format(given.prompt_format)
    if verb == "recipes" and args["name"]:
        load_recipe(args["name"])
    if verb == "study" and what == "run" and args["target"] and not _theirs(args["target"]):
        load_study(args["target"])
    if verb == "doctor" and args["config"] and not _theirs(args["config"]):
        load_recipe(args["config"])
    if verb == "tables":
        assert args["which"] in {*TABLES, *FIGURES, "all"}, f"there is no {args['which']} to make"
    if verb == "analyze" and args["task"]:
        get_task(args["task"])


def _train(argv: list[str]) -> None:
    from sage_rlvr.tasks import get_format, get_task
    from sage_rlvr.train import launch, run

    if {"--help", "-h", "--help_all"} & set(argv):
        return
    argv, config, _ = launch.take_flags(argv)
    assert config is None or config in launch.names() or _theirs(config), f"there is no accelerate config {config}"
    argv = _without_theirs(argv, "--config", "--guide", "--task", "--reward")
    given, _, _ = run.parse(argv, read=False)
    for name in [given.task, *(given.held_out or [])]:
        if name:  # else it is data of the reader's
            get_task(name)
    get_format(given.prompt_format)


def _plan(argv: list[str]) -> None:
    import argparse

    from sage_rlvr.doctor.console import plan_flags

    parser = argparse.ArgumentParser(prog="sage-rlvr plan", allow_abbrev=False)
    plan_flags(parser)
    _train(parser.parse_known_args(argv)[1])


_OWN = {"train": _train, "plan": _plan}  # verbs that parse their words themselves


def _theirs(name: str) -> bool:
    """A name that stands for one of the reader's: FILE, my_cluster.yaml, mine.yaml, data.jsonl, rewards.py:correct."""
    return name.isupper() or name.startswith(("my_", "mine")) or name.endswith(".jsonl") or ".py:" in name


def _without_theirs(argv: list[str], *flags: str) -> list[str]:
    """Flags whose values are the reader's own are taken out: there is nothing here to hold them against."""
    gone: set[int] = set()
    for i, word in enumerate(argv[:-1]):
        if word in flags and _theirs(argv[i + 1]):
            gone |= {*range(i, _end(argv, i))}
            if word in BESIDE:
                gone |= {j for k, other in enumerate(argv) if other == BESIDE[word] for j in range(k, _end(argv, k))}
    return [word for i, word in enumerate(argv) if i not in gone]


def _end(argv: list[str], flag: int) -> int:
    """Where the values of the flag at that place end."""
    return next((j for j in range(flag + 1, len(argv)) if argv[j].startswith("--")), len(argv))
