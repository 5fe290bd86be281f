"""A model: trained by a recipe, merged, written out."""

import argparse

from sage_rlvr.cli.verb import Verb


def _train(args: argparse.Namespace) -> None:
    if "--help" in args.argv or "-h" in args.argv:
        from sage_rlvr.launch.help import train_help

        print(train_help())
        return
    from sage_rlvr.launch import run

    if "--help_all" in args.argv:
        run.make_parser().print_help()
    else:
        print(f"trained: {run.train(args.argv)}")


TRAIN = Verb(
    "train with GRPO or SAGE: SFT if the recipe asks for it, then RL",
    "sage-rlvr train --config recipes/branch.yaml --learning_rate 1e-6",
    None,
    _train,
)


def _recipes_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", nargs="?", help="show this recipe, with all that it extends merged in")


def _recipes(args: argparse.Namespace) -> None:
    import yaml

    from sage_rlvr.launch.recipes import load_recipe, recipe_lines

    if args.name:
        print(yaml.safe_dump(load_recipe(args.name), sort_keys=False, allow_unicode=True), end="")
    else:
        print(*recipe_lines(), sep="\n")


RECIPES = Verb(
    "list the recipes that ship, or show one in full",
    "sage-rlvr recipes branch",
    _recipes_flags,
    _recipes,
)


def _merge_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("adapter", help="folder of a PEFT adapter")
    p.add_argument("--out", required=True, help="folder for the merged weights and the tokenizer")
    p.add_argument("--base", help="base model (default: the one the adapter names)")
    p.add_argument("--dtype", help="dtype of the merged weights (default: the base's)")
    p.add_argument("--force", action="store_true", help="replace --out if it is there")


def _merge(args: argparse.Namespace) -> None:
    from sage_rlvr.models import merge_adapter

    print(f"merged: {merge_adapter(args.adapter, args.out, base=args.base, dtype=args.dtype, force=args.force)}")


MERGE = Verb(
    "merge a LoRA adapter into its base model",
    "sage-rlvr merge runs/branch --out runs/branch-merged",
    _merge_flags,
    _merge,
)


def _export_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("source", help="a model folder, an adapter folder, a .gguf file or a Hub id")
    p.add_argument("--out", required=True, help="folder for safetensors, tokenizer and generation config")
    p.add_argument("--dtype", default="bfloat16", help="dtype of the weights (default: %(default)s)")
    p.add_argument("--force", action="store_true", help="replace --out if it is there")


def _export(args: argparse.Namespace) -> None:
    from sage_rlvr.models import export_model

    print(f"exported: {export_model(args.source, args.out, dtype=args.dtype, force=args.force)}")


EXPORT = Verb(
    "write merged weights in one dtype, ready to serve or to convert",
    "sage-rlvr export runs/branch --out branch-bf16",
    _export_flags,
    _export,
)
