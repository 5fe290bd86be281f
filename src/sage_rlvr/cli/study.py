"""Many runs at once: a study, and the demo, which is one."""

import argparse
import shutil
import textwrap

from sage_rlvr.cli.verb import flag, one_of, switch, verb
from sage_rlvr.errors import Failed, UserError


@verb(
    "demo",
    "train a small model several ways on this CPU, sample, compare, and open the page",
    "demo --out runs/demo --open",
    flag("--out", default="runs/demo", help="its folder; run again to continue"),
    flag("--jobs", type=int, help="runs at a time (default: one per core, up to 4)"),
    switch("--open", "show the page in the browser"),
)
def _demo(args: argparse.Namespace) -> None:
    from sage_rlvr.demo import run_demo

    if not run_demo(args.out, args.jobs, args.open):
        raise Failed("some runs failed; the others' results are above.")


@verb(
    "study",
    "one base, several variants, several seeds: run them all, resumably, and see the table",
    "study run demo --out runs/demo",
    flag("what", **one_of("run", "status", "table", "frontier", "report", "list", word="part of study"),
         help="run: what is missing of a study; status: where its runs stand; table: pass@k of every variant; frontier: who has "
         "more pass@n at the same pass@1, and at the same distance from the reference, over a sweep; report: the page; list: "
         "the packaged studies"),
    flag("target", nargs="?", help="run: a study file or a packaged name; else: the study's folder"),
    flag("--out", help="run: the study's folder (default: runs/NAME); report: the page (default: in the folder)"),
    switch("--open", "report: show it in the browser"),
    flag("--reference", help="frontier: the family the others are held against (default: the first); table: a variant, to "
         "subtract from the others (default: base)"),
    flag("--task", help="frontier: which task (default: the study's first)"),
    flag("--jobs", type=int, help="run: how many runs at a time (default: one per GPU, else one per core, up to 4); "
         "stacked: runs per stack (default: 12 on a GPU, else 4)"),
    flag("--engine", default="trl", **one_of("trl", "stacked", "verl", word="engine"),
         help="run: trl: SAGETrainer, a process per run; stacked: many runs of a scratch model in one program, for the countdown "
         "worlds alone; verl: verl trains, in the Python that SAGE_VERL_PYTHON names (docs/howto/verl.md)"),
)  # fmt: skip
def _study(args: argparse.Namespace) -> None:
    from sage_rlvr.study import console
    from sage_rlvr.study.plan import list_studies

    if args.what == "list":
        columns = shutil.get_terminal_size().columns
        for name, about in list_studies().items():
            print(textwrap.fill(about, columns, initial_indent=f"{name:<16}", subsequent_indent=" " * 16))
    elif args.target is None:
        raise UserError(f"study {args.what} needs {'a study file' if args.what == 'run' else 'the folder of a study'}.")
    elif args.what == "run":
        if not console.run(args.target, args.out, args.jobs, engine=args.engine):
            raise Failed("some runs failed; the others' results are above.")
    elif args.what == "status":
        console.show_status(args.target)
    elif args.what == "frontier":
        console.show_frontier(args.target, args.reference, args.task)
    elif args.what == "report":
        print(f"written: {console.make_report(args.target, args.out, show=args.open)}")
    else:
        console.show_table(args.target, reference=args.reference)
