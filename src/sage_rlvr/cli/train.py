"""A model: trained by a recipe, merged, written out."""

import argparse

from sage_rlvr.cli.verb import flag, switch, verb

FORCE = switch("--force", "replace --out if it is there")


@verb(
    "train",
    "train with GRPO or SAGE: SFT if the recipe asks for it, then RL",
    "train --config recipes/branch.yaml --learning_rate 1e-6",
    raw=True,
)
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


@verb(
    "recipes",
    "list the recipes that ship, or show one in full",
    "recipes branch",
    flag("name", nargs="?", help="show this recipe, with all that it extends merged in"),
)
def _recipes(args: argparse.Namespace) -> None:
    import yaml

    from sage_rlvr.launch.recipes import load_recipe, recipe_lines

    if args.name:
        print(yaml.safe_dump(load_recipe(args.name), sort_keys=False, allow_unicode=True), end="")
    else:
        print(*recipe_lines(), sep="\n")


@verb(
    "merge",
    "merge a LoRA adapter into its base model",
    "merge runs/branch --out runs/branch-merged",
    flag("adapter", help="folder of a PEFT adapter"),
    flag("--out", required=True, help="folder for the merged weights and the tokenizer"),
    flag("--base", help="base model (default: the one the adapter names)"),
    flag("--dtype", help="dtype of the merged weights (default: the base's)"),
    FORCE,
)
def _merge(args: argparse.Namespace) -> None:
    from sage_rlvr.models import merge_adapter

    print(f"merged: {merge_adapter(args.adapter, args.out, base=args.base, dtype=args.dtype, force=args.force)}")


@verb(
    "blend",
    "go back part of the way from a trained model to its base: base + weight · (trained − base)",
    "blend runs/branch --weight 0.8 --out runs/branch-0.8",
    flag("trained", help="folder of an adapter or of full weights that were trained"),
    flag("--weight", type=float, required=True, help="0 is the base, 1 the trained model"),
    flag("--out", required=True, help="folder for the blend: an adapter of an adapter, else full weights"),
    flag("--base", help="full weights: what they were trained from (default: what their run.json says)"),
    FORCE,
)
def _blend(args: argparse.Namespace) -> None:
    from sage_rlvr.models import blend

    print(f"blended: {blend(args.trained, args.out, args.weight, base=args.base, force=args.force)}")


@verb(
    "export",
    "write merged weights in one dtype, ready to serve or to convert",
    "export runs/branch --out branch-bf16",
    flag("source", help="a model folder, an adapter folder, a .gguf file or a Hub id"),
    flag("--out", required=True, help="folder for safetensors, tokenizer and generation config"),
    flag("--dtype", default="bfloat16", help="dtype of the weights"),
    FORCE,
)
def _export(args: argparse.Namespace) -> None:
    from sage_rlvr.models import export_model

    print(f"exported: {export_model(args.source, args.out, dtype=args.dtype, force=args.force)}")
