"""Before a run: is the machine ready, what will it cost, does the theory hold, what is there to train on."""

import argparse

from sage_rlvr.cli.verb import Verb, one_of
from sage_rlvr.errors import Failed, UserError


def _doctor_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--config", help="a recipe: check that it can run here")
    p.add_argument("--verl", action="store_true", help="check that the verl plug-in is active in this environment")
    p.add_argument("--json", action="store_true", help="print JSON")


def _doctor(args: argparse.Namespace) -> None:
    from sage_rlvr.doctor.console import show_doctor

    if not show_doctor(args.config, args.verl, args.json):
        raise Failed("something must be fixed: see above.")


DOCTOR = Verb(
    "check that this machine, its libraries and a recipe are ready, with a fix for what is not",
    "sage-rlvr doctor --config recipes/branch.yaml",
    _doctor_flags,
    _doctor,
)


def _plan(args: argparse.Namespace) -> None:
    from sage_rlvr.doctor.console import show_plan

    show_plan(args.argv)


PLAN = Verb(
    "estimated memory and disk of a run before it starts",
    "sage-rlvr plan --config recipes/branch.yaml --gpu rtx4090",
    None,
    _plan,
)


def _lab_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", default="runs/lab", help="folder for the figures and lab.json (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="which random world (default: %(default)s)")


def _lab(args: argparse.Namespace) -> None:
    from sage_rlvr.lab.page import show

    if not show(args.out, args.seed):
        raise Failed(f"a check of the theory does not hold for --seed {args.seed}: see the table above.")


LAB = Verb(
    "check the theory by exact enumeration: which solution each estimator reaches",
    "sage-rlvr lab --out runs/lab",
    _lab_flags,
    _lab,
)


def _tasks_flags(p: argparse.ArgumentParser) -> None:
    what = ["show", "decontaminate"]
    p.add_argument(
        "what", nargs="?", type=one_of(what, "part of tasks"), metavar="{show,decontaminate}", help="left out: list all"
    )
    p.add_argument("name", nargs="?", help="a task, such as gsm8k")
    p.add_argument("n", nargs="?", type=int, default=3, help="how many problems to show (default: %(default)s)")
    p.add_argument(
        "--format",
        default="paper",
        help="prompt format: paper, boxed, plain, symbols, or a registered name (default: %(default)s)",
    )
    p.add_argument("--data_dir", help="folder of local task files (default: $SAGE_RLVR_DATA, then ./data)")
    p.add_argument("--split", help="another split than the task's own")
    p.add_argument(
        "--pairs", action="store_true", help="decontaminate: print each dropped problem and the one it repeats"
    )


def _tasks(args: argparse.Namespace) -> None:
    from sage_rlvr.tasks import page

    if args.what is None:
        page.show_list()
    elif args.name is None:
        raise UserError(f"tasks {args.what} needs a task: write sage-rlvr tasks {args.what} amc23.")
    elif args.what == "show":
        page.show_problems(args.name, args.n, args.format, args.data_dir, split=args.split)
    else:
        page.show_decontamination(args.name, args.data_dir, args.pairs)


TASKS = Verb(
    "list the tasks; show problems as the model sees them, or what decontamination drops",
    "sage-rlvr tasks show countdown-ltr 3",
    _tasks_flags,
    _tasks,
)
