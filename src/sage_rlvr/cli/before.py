"""Before a run: is the machine ready, what will it cost, does the theory hold, what is there to train on."""

import argparse

from sage_rlvr.cli.verb import flag, one_of, switch, verb
from sage_rlvr.errors import Failed, UserError


@verb(
    "doctor",
    "check that this machine, its libraries and a recipe are ready, with a fix for what is not",
    "doctor --config recipes/branch.yaml",
    flag("--config", help="a recipe: check that it can run here"),
    switch("--verl", "check that the verl plug-in is active in this environment"),
    switch("--json", "print JSON"),
)
def _doctor(args: argparse.Namespace) -> None:
    from sage_rlvr.doctor.console import show_doctor

    if not show_doctor(args.config, args.verl, args.json):
        raise Failed("something must be fixed: see above.")


@verb(
    "plan",
    "estimated memory and disk of a run before it starts",
    "plan --config recipes/branch.yaml --gpu rtx4090",
    raw=True,
)
def _plan(args: argparse.Namespace) -> None:
    from sage_rlvr.doctor.console import show_plan

    show_plan(args.argv)


@verb(
    "lab",
    "check the theory by exact enumeration: which solution each estimator reaches",
    "lab --out runs/lab",
    flag("--out", default="runs/lab", help="folder for the figures and lab.json"),
    flag("--seed", type=int, default=0, help="which random world"),
)
def _lab(args: argparse.Namespace) -> None:
    from sage_rlvr.show.console_lab import show

    if not show(args.out, args.seed):
        raise Failed(f"a check of the theory does not hold for --seed {args.seed}: see the table above.")


@verb(
    "tasks",
    "list the tasks; show problems as the model sees them, or what decontamination drops",
    "tasks show countdown-ltr 3",
    flag("what", nargs="?", **one_of("show", "decontaminate", word="part of tasks"), help="left out: list all"),
    flag("name", nargs="?", help="a task, such as gsm8k"),
    flag("n", nargs="?", type=int, default=3, help="how many problems to show"),
    flag("--format", default="paper", help="prompt format: paper, boxed, plain, symbols, or a registered name"),
    flag("--data_dir", help="folder of local task files (default: $SAGE_RLVR_DATA, then ./data)"),
    flag("--split", help="another split than the task's own"),
    switch("--pairs", "decontaminate: print each dropped problem and the one it repeats"),
)
def _tasks(args: argparse.Namespace) -> None:
    from sage_rlvr.tasks import console

    if args.what is None:
        console.show_list()
    elif args.name is None:
        raise UserError(f"tasks {args.what} needs a task: write sage-rlvr tasks {args.what} amc23.")
    elif args.what == "show":
        console.show_problems(args.name, args.n, args.format, args.data_dir, split=args.split)
    else:
        console.show_decontamination(args.name, args.data_dir, args.pairs)
