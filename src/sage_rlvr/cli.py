"""The door: one verb a function. Parse, call, print. Exit codes: 0 done, 2 wrong use, 1 failure."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sage_rlvr import __version__, extensions
from sage_rlvr.errors import UserError


@dataclass(frozen=True)
class Verb:
    """A verb of the command line: ``add`` declares its flags (None: it parses them itself), ``run`` does it."""

    help: str
    example: str
    add: Callable[[argparse.ArgumentParser], None] | None
    run: Callable[[argparse.Namespace], None]


# ---- lab -----------------------------------------------------------------------------------------------------------


def _lab_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", default="runs/lab", help="folder for the figures and lab.json (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="which random world (default: %(default)s)")


def _lab(args: argparse.Namespace) -> None:
    from sage_rlvr.lab.page import show

    if not show(args.out, args.seed):
        raise RuntimeError(f"a check of the theory does not hold for --seed {args.seed}: see the table above.")


# ---- tasks ---------------------------------------------------------------------------------------------------------


def _tasks_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("what", nargs="?", choices=["show", "decontaminate"], help="nothing: list them all")
    p.add_argument("name", nargs="?", help="a task, such as amc23")
    p.add_argument("n", nargs="?", type=int, default=3, help="how many problems to show (default: %(default)s)")
    p.add_argument("--format", default="paper", help="prompt format: paper, boxed or plain (default: %(default)s)")
    p.add_argument("--data_dir", help="folder of local task files (default: $SAGE_RLVR_DATA, then ./data)")
    p.add_argument("--split", help="another split than the task's own")
    p.add_argument("--pairs", action="store_true", help="decontaminate: print what was dropped beside what it repeats")


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


# ---- train ---------------------------------------------------------------------------------------------------------


def _train(args: argparse.Namespace) -> None:
    from sage_rlvr.train import run

    if "--help" in args.argv or "-h" in args.argv:
        print(run.short_help())
    elif "--help_all" in args.argv:
        run.make_parser().print_help()
    else:
        print(f"trained: {run.train(args.argv)}")


def _recipes_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", nargs="?", help="show this recipe, with all that it extends merged in")


def _recipes(args: argparse.Namespace) -> None:
    import yaml

    from sage_rlvr.train.recipes import list_recipes, load_recipe

    if args.name:
        print(yaml.safe_dump(load_recipe(args.name), sort_keys=False, allow_unicode=True), end="")
    else:
        for name, about in list_recipes().items():
            print(f"{name:<24} {about}")


# ---- evaluation ----------------------------------------------------------------------------------------------------


def _eval(args: argparse.Namespace) -> None:
    from transformers import HfArgumentParser

    from sage_rlvr.evaluate.page import show_results
    from sage_rlvr.evaluate.run import EvalArguments, evaluate

    verb = VERBS["eval"]
    parser = HfArgumentParser(
        EvalArguments,
        prog="sage-rlvr eval",
        description=verb.help,
        epilog=f"example: {verb.example}",
        allow_abbrev=False,
    )
    given, unknown = parser.parse_args_into_dataclasses(args.argv, return_remaining_strings=True)
    if unknown:
        raise UserError(f"eval has no {unknown[0]!r}: 'sage-rlvr eval --help' lists the flags.")
    show_results(evaluate(given))


def _results_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("folder", metavar="RUN", help="folder of an evaluation")
    p.add_argument("--base", help="another evaluation: support metrics and paired differences against it")
    p.add_argument("--out", help="folder for results.json, tables and the figure (default: RUN)")
    p.add_argument("--level", type=float, default=0.95, help="level of the intervals (default: %(default)s)")


def _results(args: argparse.Namespace) -> None:
    from sage_rlvr.evaluate.page import show_results

    show_results(args.folder, args.out, args.level, args.base)


def _compare_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "folders", nargs="+", metavar="RUN", help="folders of evaluations; differences are against the first"
    )
    p.add_argument("--out", help="folder for the tables and the figure")
    p.add_argument("--level", type=float, default=0.95, help="level of the intervals (default: %(default)s)")
    p.add_argument("--partial", action="store_true", help="show half-finished runs too, on what they have")


def _compare(args: argparse.Namespace) -> None:
    from sage_rlvr.evaluate.page import show_comparison

    show_comparison(args.folders, args.out, args.level, args.partial)


# ---- looking -------------------------------------------------------------------------------------------------------


def _analyze_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("kind", choices=["patterns", "perplexity", "support", "dynamics", "grid"], help="which analysis")
    p.add_argument("runs", nargs="+", metavar="RUN", help="folders of evaluations or training runs")
    p.add_argument("--base", help="support, perplexity: the base's evaluation (perplexity: or a model)")
    p.add_argument("--out", help="folder for the JSON and the figure")
    p.add_argument("--budget", type=int, help="support: how many samples a problem may take (default: the smaller n)")
    p.add_argument("--pattern", action="append", metavar="NAME=REGEX", help="patterns: a detector of your own")
    p.add_argument("--pattern_file", help="patterns: a YAML file of name: regex")
    p.add_argument("--thresholds", type=float, nargs="+", help="perplexity: tails above these, where --base is a model")
    p.add_argument("--limit", type=int, help="perplexity: samples a problem")
    p.add_argument("--data_dir", help="perplexity: folder of local task files")
    p.add_argument("--task", help="grid: which task")


def _analyze(args: argparse.Namespace) -> None:
    from sage_rlvr.analysis.page import analyze

    names = ("budget", "pattern", "pattern_file", "thresholds", "limit", "data_dir", "task")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    analyze(args.kind, args.runs, args.base, args.out, **options)


def _trace_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("folder", metavar="RUN", help="folder of an evaluation, whose completions are read again")
    p.add_argument(
        "--checkpoints", nargs="+", help="models to read through; a training folder stands for all its checkpoints"
    )
    p.add_argument("--reference", help="π_ref (default: what the training run started from)")
    p.add_argument("--guide", help="guide that shapes q (default: the training run's)")
    p.add_argument("--guide_args", help="its arguments, as JSON")
    p.add_argument("--limit", type=int, default=20, help="problems (default: %(default)s)")
    p.add_argument("--per_problem", type=int, default=8, help="completions a problem (default: %(default)s)")
    p.add_argument("--data_dir", help="folder of local task files")


def _trace(args: argparse.Namespace) -> None:
    from sage_rlvr.analysis.page import trace_page

    names = ("reference", "guide", "guide_args", "limit", "per_problem", "data_dir")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    trace_page(args.folder, args.checkpoints, **options)


def _tables_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("which", help="table1 … table6, table9, figure2 … figure7, or all")
    p.add_argument(
        "runs", nargs="*", metavar="LABEL=RUN", help="evaluations or training runs, such as grpo=runs/grpo-eval"
    )
    p.add_argument("--out", default="runs/paper", help="folder to write into (default: %(default)s)")


def _tables(args: argparse.Namespace) -> None:
    from sage_rlvr.report.tables import make, make_all, parse_runs

    runs = parse_runs(args.runs)
    for made in make_all(runs, args.out) if args.which == "all" else [make(args.which, runs, args.out)]:
        print("written: " + ", ".join(str(f) for f in made.files))


def _report_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="folders with evaluations and training runs, also nested"
    )
    p.add_argument("--out", default="report.html", help="the page (default: %(default)s)")
    p.add_argument("--base", help="the run that differences and support are against")
    p.add_argument("--open", action="store_true", help="show it in the browser")


def _report(args: argparse.Namespace) -> None:
    from sage_rlvr.report.page import build_report

    print(f"written: {build_report(args.folders, args.out, base=args.base, show=args.open)}")


def _explore_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="folders with evaluations and training runs, also nested"
    )
    p.add_argument("--port", type=int, default=8765, help="on this machine only (default: %(default)s)")
    p.add_argument("--open", action="store_true", help="show it in the browser")


def _explore(args: argparse.Namespace) -> None:
    from sage_rlvr.report.explore import explore

    explore(args.folders, args.port, show=args.open)


# ---- before a run --------------------------------------------------------------------------------------------------


def _doctor_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--config", help="a recipe: whether it can run here")
    p.add_argument("--verl", action="store_true", help="prove that the verl plug-in is active in this environment")
    p.add_argument("--json", action="store_true", help="print JSON")


def _doctor(args: argparse.Namespace) -> None:
    from sage_rlvr.doctor.page import show_doctor

    if not show_doctor(args.config, args.verl, args.json):
        raise RuntimeError("something is to be mended: see above.")


def _plan(args: argparse.Namespace) -> None:
    from sage_rlvr.doctor.page import show_plan

    show_plan(args.argv)


def _bench_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", help="also write the table as JSON, with machine and versions")
    p.add_argument("--quick", action="store_true", help="small sizes, seconds: to see that it runs, not to measure")


def _bench(args: argparse.Namespace) -> None:
    from sage_rlvr.doctor.bench import run_bench

    run_bench(args.out, args.quick)


# ---- the demo ------------------------------------------------------------------------------------------------------


def _demo_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", default="runs/demo", help="its folder (default: %(default)s); run again to go on")
    p.add_argument("--jobs", type=int, help="runs at a time (default: one a core up to 4)")
    p.add_argument("--open", action="store_true", help="show the page in the browser")


def _demo(args: argparse.Namespace) -> None:
    from sage_rlvr.demo import run_demo

    if not run_demo(args.out, args.jobs, args.open):
        raise RuntimeError("some runs failed; the others' results are above.")


# ---- studies -------------------------------------------------------------------------------------------------------


def _study_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "what", choices=["run", "status", "table", "frontier", "report", "list"], help="run a study, or look at one"
    )
    p.add_argument("target", nargs="?", help="run: a study file or a packaged name; else: the study's folder")
    p.add_argument(
        "--out", help="run: the study's folder (default: runs/NAME); report: the page (default: in the folder)"
    )
    p.add_argument("--open", action="store_true", help="report: show it in the browser")
    p.add_argument("--reference", help="frontier: the family the others are held against (default: the first)")
    p.add_argument("--task", help="frontier: which task (default: the study's first)")
    p.add_argument(
        "--jobs", type=int, help="run: how many runs at a time (default: one a GPU, else one a core up to 4)"
    )


def _study(args: argparse.Namespace) -> None:
    from sage_rlvr.study import page
    from sage_rlvr.study.plan import list_studies

    if args.what == "list":
        for name, about in list_studies().items():
            print(f"{name:<12} {about}")
    elif args.target is None:
        raise UserError(f"study {args.what} needs {'a study file' if args.what == 'run' else 'the folder of a study'}.")
    elif args.what == "run":
        if not page.run(args.target, args.out, args.jobs):
            raise RuntimeError("some runs failed; the others' results are above.")
    elif args.what == "status":
        page.show_status(args.target)
    elif args.what == "frontier":
        page.show_frontier(args.target, args.reference, args.task)
    elif args.what == "report":
        print(f"written: {page.make_report(args.target, args.out, show=args.open)}")
    else:
        page.show_table(args.target)


# ---- models --------------------------------------------------------------------------------------------------------


def _merge_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("adapter", help="folder of a PEFT adapter")
    p.add_argument("--out", required=True, help="folder for the merged weights and the tokenizer")
    p.add_argument("--base", help="base model (default: the one the adapter names)")
    p.add_argument("--dtype", help="dtype of the merged weights (default: the base's)")
    p.add_argument("--force", action="store_true", help="replace --out if it is there")


def _merge(args: argparse.Namespace) -> None:
    from sage_rlvr.models import merge_adapter

    print(f"merged: {merge_adapter(args.adapter, args.out, base=args.base, dtype=args.dtype, force=args.force)}")


def _export_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("source", help="a model folder, an adapter folder, a .gguf file or a Hub id")
    p.add_argument("--out", required=True, help="folder for safetensors, tokenizer and generation config")
    p.add_argument("--dtype", default="bfloat16", help="dtype of the weights (default: %(default)s)")
    p.add_argument("--force", action="store_true", help="replace --out if it is there")


def _export(args: argparse.Namespace) -> None:
    from sage_rlvr.models import export_model

    print(f"exported: {export_model(args.source, args.out, dtype=args.dtype, force=args.force)}")


VERBS = {
    "demo": Verb(
        "the whole product on an embedded default: train a small model four ways, sample, compare, look",
        "sage-rlvr demo --out runs/demo --open",
        _demo_flags,
        _demo,
    ),
    "doctor": Verb(
        "whether this machine, its libraries and a config are ready, with the mend for what is not",
        "sage-rlvr doctor --config recipes/branch.yaml",
        _doctor_flags,
        _doctor,
    ),
    "plan": Verb(
        "estimated memory, time and disk of a run before it starts",
        "sage-rlvr plan --config recipes/branch.yaml --gpu h200",
        None,
        _plan,
    ),
    "bench": Verb(
        "time the pieces of a training step on this machine: guides, head, verifier, the step, packing",
        "sage-rlvr bench --out bench.json",
        _bench_flags,
        _bench,
    ),
    "lab": Verb(
        "check the theory by exact enumeration: which solution each estimator reaches",
        "sage-rlvr lab --out runs/lab",
        _lab_flags,
        _lab,
    ),
    "tasks": Verb(
        "list the tasks, show problems as the model will see them, or what decontamination drops",
        "sage-rlvr tasks show countdown-ltr 3",
        _tasks_flags,
        _tasks,
    ),
    "train": Verb(
        "train with a shaped anchor: SFT where the recipe asks for it, then RL",
        "sage-rlvr train --config recipes/branch.yaml --learning_rate 1e-6",
        None,
        _train,
    ),
    "eval": Verb(
        "sample and judge: pass@k from 1 to n with intervals; the same command goes on after an interruption",
        "sage-rlvr eval --model runs/branch --tasks aime,amc23,math500-l5 --n 256 --seeds 5 --out runs/branch-eval",
        None,
        _eval,
    ),
    "results": Verb(
        "the numbers of an evaluation, with intervals", "sage-rlvr results runs/branch-eval", _results_flags, _results
    ),
    "compare": Verb(
        "evaluations side by side, as in the paper's Table 1, best in bold only where the interval says so",
        "sage-rlvr compare runs/base-eval runs/grpo-eval runs/branch-eval",
        _compare_flags,
        _compare,
    ),
    "analyze": Verb(
        "the paper's analyses over evaluations and training logs",
        "sage-rlvr analyze support runs/branch-eval --base runs/base-eval --budget 64",
        _analyze_flags,
        _analyze,
    ),
    "trace": Verb(
        "re-read stored completions through checkpoints: log-prob, entropy, q and penalty of every token",
        "sage-rlvr trace runs/branch-eval --checkpoints runs/branch",
        _trace_flags,
        _trace,
    ),
    "tables": Verb(
        "the paper's tables and figures from your runs, its own values beside them",
        "sage-rlvr tables table1 base=runs/base-eval grpo=runs/grpo-eval branch=runs/branch-eval",
        _tables_flags,
        _tables,
    ),
    "report": Verb(
        "one self-contained page: results, curves, support, and the token explorer",
        "sage-rlvr report runs --out report.html --open",
        _report_flags,
        _report,
    ),
    "explore": Verb(
        "the same page served on this machine, over stores of any size",
        "sage-rlvr explore runs",
        _explore_flags,
        _explore,
    ),
    "study": Verb(
        "one base, several variants, several seeds: run them all, resumably, and see the table",
        "sage-rlvr study run demo --out runs/demo",
        _study_flags,
        _study,
    ),
    "recipes": Verb(
        "list the recipes that ship, or show one in full", "sage-rlvr recipes branch", _recipes_flags, _recipes
    ),
    "merge": Verb(
        "merge a LoRA adapter into its base model",
        "sage-rlvr merge runs/branch --out runs/branch-merged",
        _merge_flags,
        _merge,
    ),
    "export": Verb(
        "write merged weights in one dtype, ready to serve or to convert",
        "sage-rlvr export runs/branch --out branch-bf16",
        _export_flags,
        _export,
    ),
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
        return 2
    except (RuntimeError, FloatingPointError) as e:
        print(f"sage-rlvr {args.verb}: {e}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has seen enough: | head
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print(f"\nsage-rlvr {args.verb}: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
