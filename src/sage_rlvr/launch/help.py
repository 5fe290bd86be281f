"""What ``sage-rlvr train --help`` prints. It reads our settings from the source, for importing TRL takes seconds."""

import ast
import shutil
import textwrap
from pathlib import Path
from typing import Any

from sage_rlvr.launch.recipes import recipe_lines, shelf
from sage_rlvr.names import FIELDS

# the shared names and those fields of TRL that most runs set; a test holds the defaults against TRL's
SHARED = {
    "config": ("a recipe (listed below) or a YAML file of yours; flags override it", None),
    "model": ("a Hub id, a folder or a .gguf file", None),
    "out": ("folder for checkpoints and trained weights (default: runs/RECIPE; without one, by guide, task and model)", None),
    "max_tokens": ("longest completion, in tokens", 512),
}  # fmt: skip
TRL = {
    "learning_rate": ("peak learning rate", 1e-6),
    "num_generations": ("completions per prompt: the size of a group", 8),
    "per_device_train_batch_size": ("completions of one forward and backward pass, per GPU", 8),
    "gradient_accumulation_steps": ("passes per optimizer step", 1),
    "max_steps": ("optimizer steps; -1: as many as num_train_epochs gives", -1),
    "temperature": ("sampling temperature", 1.0),
    "use_vllm": ("generate with vLLM", False),
    "use_peft": ("train a LoRA adapter (lora_r, lora_alpha, lora_target_modules)", False),
    "seed": ("seed of data order and sampling", 42),
    "report_to": ("wandb, trackio, tensorboard or none", "none"),
}
EXAMPLES = (
    "sage-rlvr train --config recipes/branch.yaml --learning_rate 1e-6",
    "sage-rlvr train --model Qwen/Qwen2.5-0.5B-Instruct --task gsm8k --out runs/x",
    "sage-rlvr train --model Qwen/Qwen2.5-0.5B-Instruct --dataset data.jsonl",
    "                --reward rewards.py:correct --out runs/x",
)
DERIVED = {"use_bias_correction_kl"}  # nobody sets it


def train_help() -> str:
    """Usage, examples, our settings with their defaults, TRL's that most runs set, and the recipes."""
    width = min(shutil.get_terminal_size().columns, 120)
    several = {
        "accelerate_config": (f"several processes: {', '.join(shelf('launchers'))}, or a file", None),
        "num_processes": ("how many (default: as the config says, else one per GPU)", None),
    }
    method = declared("train/config", "SAGEConfig")
    run = declared("launch/run", "RunArguments")
    about = (
        "Train with GRPO, or with SAGE's anchor. Flags override the recipe. Run the same command again to continue after an "
        "interruption."
    )
    more = (
        "Every other field of TRL's GRPOConfig and ModelConfig works too: 'sage-rlvr train --help_all' lists them. Old names "
        f"still work: {', '.join(f'--{field} is --{name}' for name, field in FIELDS.items())}."
    )
    parts = [
        "usage: sage-rlvr train [--config RECIPE] [--model MODEL] [--out FOLDER]\n"
        "                       [--task TASK | --dataset DATA] [--SETTING VALUE ...]",
        textwrap.fill(about, width),
        "examples:\n" + "\n".join(f"  {line}" for line in EXAMPLES),
        _listed("the run:", SHARED | run, width),
        _listed("the method:", method, width),
        _listed("several GPUs:", several, width),
        _listed("of TRL, set most often:", TRL, width),
        textwrap.fill(more, width),
        "recipes:\n\n" + "\n".join(recipe_lines(width)),
        f"example: {EXAMPLES[0]}",
    ]
    return "\n\n".join(parts)


def _listed(title: str, settings: dict[str, tuple[str, Any]], width: int) -> str:
    wrapper = textwrap.TextWrapper(width, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)
    lines = [title]
    for name, (text, default) in settings.items():
        suffix = "" if default in (None, "") or "(default" in text else f" (default: {default})"
        lines += [f"  --{name}", *wrapper.wrap(text.rstrip(".") + suffix)]
    return "\n".join(lines)


def declared(module: str, name: str) -> dict[str, tuple[str, Any]]:
    """field → (help, default) of a dataclass, from its source: each field is a call that names the two."""
    source = Path(__file__).parents[1].joinpath(f"{module}.py").read_text(encoding="utf-8")
    body = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name).body
    listed = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call):
            given = {word.arg: ast.literal_eval(word.value) for word in node.value.keywords}
            if node.target.id not in DERIVED:
                listed[node.target.id] = (given["help"], given["default"])
    return listed
