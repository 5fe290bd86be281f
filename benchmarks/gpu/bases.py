"""Which base, and which learning rate, for the frontier study? Bases side by side on one GPU, then RL from some of them.

    python benchmarks/gpu/bases.py --out runs/bases --to results/gpu/bases.json [--only 'q12*'] [--jobs 16] [--quick]
    python benchmarks/gpu/bases.py --out runs/rates --to results/gpu/rates.json --only study

Every base is the frontier study's but for what BASES says, every run its GRPO without KL but for what RUNS says; the development
problems and samples are the study's. The base "study" is not made: it is the one in results/gpu/frontier. --quick: two steps and
few samples, on a CPU; its numbers mean nothing.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from study import ENVIRONMENT, start_mps

from sage_rlvr.models import scratch_model
from sage_rlvr.provenance import made_with
from sage_rlvr.study import job, warm
from sage_rlvr.study.plan import Study, load_study
from sage_rlvr.study.records import unpack

TASK, STUDY = "countdown-ltr", "study"
RECORDS = Path(__file__).resolve().parents[2] / "results" / "gpu" / "frontier"


def _base(steps: int, lr: float = 2e-3, *, problems: int = 8000, after: int = 3000, batch: int = 512, decay: float = 0.0,
          scratch: dict | None = None, **odd: Any) -> dict[str, Any]:  # fmt: skip
    """``odd``: what the product's own scratch models do not have (see ``odd_model``)."""
    sft = {"max_steps": steps, "learning_rate": lr, "per_device_train_batch_size": batch, "weight_decay": decay}
    return {"scratch": scratch or {}, "demonstrations": {"problems": problems, "after": after}, "sft": sft, "odd": odd}


SMALLER = {"width": 96, "layers": 3}
TORCH = {"init": "torch"}
GPT2 = {"architecture": "gpt2"}
BASES = {
    # the study's own size: rate and steps
    "a2_400": _base(400), "a2_500": _base(500), "a2_700": _base(700), "a3_400": _base(400, 3e-3), "a3_600": _base(600, 3e-3),
    # weight decay, batch, size
    "wd.1": _base(600, decay=0.1), "wd1": _base(700, decay=1.0), "wd1lo": _base(700, 1e-3, decay=1.0),
    "b256": _base(700, batch=256), "b128": _base(1400, 1e-3, batch=128),
    "w96": _base(600, scratch=SMALLER), "w96b": _base(900, batch=256, scratch=SMALLER), "w64": _base(1000, scratch={"width": 64}),
    # more problems
    "p12_500": _base(500, problems=12000), "p12_700": _base(700, problems=12000), "p12lo": _base(600, 1e-3, problems=12000),
    "p12wd1": _base(900, problems=12000, decay=1.0), "a7": _base(500, after=7000),
    # dropout in attention
    "drop": _base(700, 1e-3, scratch={"dropout": 0.1}), "drop2": _base(700, scratch={"dropout": 0.2}),
    "qd_800": _base(800, scratch={"dropout": 0.2}), "qd3_900": _base(900, scratch={"dropout": 0.3}),
    "q12d": _base(700, problems=12000, scratch={"dropout": 0.1}),
    # another MLP, GPT-2's architecture, torch's own initialisation
    "inter": _base(700, 1e-3, config={"intermediate_size": 256, "tie_word_embeddings": False}),
    "g0": _base(700, 1e-3, **GPT2), "g0_1000": _base(1000, 1e-3, **GPT2), "p12g": _base(700, problems=12000, **GPT2),
    "g1": _base(700, 1e-3, scratch={"dropout": 0.1}, **GPT2), "g2": _base(700, scratch={"dropout": 0.1}, **GPT2),
    "g14": _base(1400, 1e-3, scratch={"dropout": 0.1}, **GPT2),
    "qti_300": _base(300, 1e-3, **TORCH), "qti_500": _base(500, 1e-3, **TORCH),
    "q12ti": _base(400, 1e-3, problems=12000, **TORCH), "qtid": _base(500, 1e-3, scratch={"dropout": 0.2}, **TORCH),
    "gti_400": _base(400, 1e-3, **GPT2, **TORCH), "gti_700": _base(700, 1e-3, **GPT2, **TORCH),
    "gtid_700": _base(700, 1e-3, scratch={"dropout": 0.1}, **GPT2, **TORCH),
    "gtid_1000": _base(1000, 1e-3, scratch={"dropout": 0.1}, **GPT2, **TORCH),
}  # fmt: skip

STILL = {"disable_dropout": True}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"rl_{base}_{lr:g}": (base, {"learning_rate": lr})
       for base in ("p12lo", "g14", "p12_500", "drop2") for lr in (5e-5, 1e-4, 2e-4, 4e-4)},
    **{f"rl_{base}_{lr:g}_still": (base, {"learning_rate": lr, **STILL})
       for base in ("drop2", "q12d", "qd3_900") for lr in (1e-4, 2e-4)},
    "rl_p12_500_longer": ("p12_500", {"learning_rate": 1e-4, "max_steps": 500}),
    "rl_p12_500_1536_1e-4": ("p12_500", {"learning_rate": 1e-4, "per_device_train_batch_size": 1536}),
    "rl_p12_500_1536_2e-4": ("p12_500", {"learning_rate": 2e-4, "per_device_train_batch_size": 1536}),
    "rl_p12_500_beta2": ("p12_500", {"learning_rate": 1e-4, "adam_beta2": 0.95}),
    "rl_p12_500_k3_0.05": ("p12_500", {"learning_rate": 1e-4, "beta": 0.05}),
    "rl_p12_500_k3_0.2": ("p12_500", {"learning_rate": 1e-4, "beta": 0.2}),
    "rl_p12_500_k1_0.1": ("p12_500", {"learning_rate": 1e-4, "beta": 0.1, "anchor_estimator": "k1-reward"}),
    "rl_a7_3000": ("a7", {"learning_rate": 1e-4}),
    "rl_a7_7000": ("a7", {"learning_rate": 1e-4, "rows": 7000}),
    "rl_a7_7000_longer": ("a7", {"learning_rate": 1e-4, "rows": 7000, "max_steps": 500}),
}  # fmt: skip


# what the third attempt's rate and batch are chosen by (docs/evidence/notebook.md): no guide in any
WIDE = {"per_device_train_batch_size": 1536, **STILL}  # 96 problems × 16
RUNS |= {
    "rate_768_5e-5": (STUDY, {"learning_rate": 5e-5, **STILL}),
    "rate_768_1e-4": (STUDY, {"learning_rate": 1e-4, **STILL}),
    "rate_768_2e-4": (STUDY, {"learning_rate": 2e-4, **STILL}),
    "rate_768_5e-5_longer": (STUDY, {"learning_rate": 5e-5, "max_steps": 500, **STILL}),
    "rate_1536_1e-4": (STUDY, {"learning_rate": 1e-4, **WIDE}),
    "rate_1536_1.5e-4": (STUDY, {"learning_rate": 1.5e-4, **WIDE}),
    "rate_1536_2e-4": (STUDY, {"learning_rate": 2e-4, **WIDE}),
    "rate_48x32_1e-4": (STUDY, {"learning_rate": 1e-4, "num_generations": 32, **WIDE}),
    "rate_1536_1e-4_k3_0.01": (STUDY, {"learning_rate": 1e-4, "beta": 0.01, **WIDE}),
    "rate_1536_1e-4_k3_0.05": (STUDY, {"learning_rate": 1e-4, "beta": 0.05, **WIDE}),
    "rate_1536_1e-4_k3_0.2": (STUDY, {"learning_rate": 1e-4, "beta": 0.2, **WIDE}),
    "rate_1536_1e-4_k1_0.1": (STUDY, {"learning_rate": 1e-4, "beta": 0.1, "anchor_estimator": "k1-reward", **WIDE}),
    "rate_768_1e-4_k3_0.01": (STUDY, {"learning_rate": 1e-4, "beta": 0.01, **STILL}),
    "rate_768_1e-4_k3_0.05": (STUDY, {"learning_rate": 1e-4, "beta": 0.05, **STILL}),
    "rate_768_1e-4_k3_0.2": (STUDY, {"learning_rate": 1e-4, "beta": 0.2, **STILL}),
    "rate_768_1e-4_k1_0.1": (STUDY, {"learning_rate": 1e-4, "beta": 0.1, "anchor_estimator": "k1-reward", **STILL}),
}


def make_base(study: Study, name: str, folder: Path, quick: bool) -> dict[str, Any]:
    spec = BASES[name]
    base = deepcopy(study.base)
    base["scratch"].pop("dropout", None)
    for part in ("scratch", "demonstrations", "sft"):
        base[part] |= spec[part]
    base["sft"] |= {"save_steps": 5000} | ({"max_steps": 2} if quick else {})
    if spec["odd"]:
        odd_model(folder / "scratch", base["scratch"], **spec["odd"])
    began = time.monotonic()
    model = job.build_base(base, folder)
    return {"sft_s": round(time.monotonic() - began), **measured(study, model, folder)}


def odd_model(
    folder: Path, scratch: dict[str, Any], architecture: str = "qwen2", init: str = "", config: dict | None = None
) -> None:
    """A start that the study then finds in place of its own."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    plain = scratch_model(folder.parent / "plain", **scratch)
    tokenizer, settings = AutoTokenizer.from_pretrained(plain), Qwen2Config.from_pretrained(plain)
    settings.update((config or {}) | ({"tie_word_embeddings": False} if init else {}))
    torch.manual_seed(0)
    if architecture == "gpt2":
        size = {"n_embd": scratch["width"], "n_layer": scratch["layers"], "n_head": scratch["heads"], "n_positions": 64}
        ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), scratch.get("dropout", 0.0))
        model: Any = GPT2LMHeadModel(
            GPT2Config(vocab_size=len(tokenizer), tie_word_embeddings=not init, **size, **ends, **drops)
        )
    else:
        model = Qwen2ForCausalLM(settings)
    for part in model.modules() if init else ():
        if isinstance(part, torch.nn.Embedding):
            torch.nn.init.normal_(part.weight)
        elif type(part).__name__ in ("Linear", "Conv1D"):
            wide = part.weight.shape[1 if isinstance(part, torch.nn.Linear) else 0] ** -0.5
            torch.nn.init.uniform_(part.weight, -wide, wide)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_run(study: Study, name: str, folder: Path, quick: bool) -> dict[str, Any]:
    base, changed = RUNS[name]
    model = job.start_model(folder.parent / STUDY) if base == STUDY else str(folder.parent / base / "sft" / "model")
    started = {"model_name_or_path": model, "output_dir": str(folder / "train")}
    small = {"max_steps": 2, "save_steps": 1, "logging_steps": 1, "per_device_train_batch_size": 32, "use_cpu": True}
    settings = study.train | {"beta": 0.0, "disable_dropout": False} | changed | started | (small if quick else {})
    recipe = folder / "recipe.json"  # which is YAML too
    recipe.write_text(json.dumps(settings))
    began = time.monotonic()
    model = str(import_module("sage_rlvr.launch.run").train(["--config", str(recipe)]))
    states = [json.loads(path.read_text())["log_history"] for path in (folder / "train").rglob("trainer_state.json")]
    rewards = [round(step["reward"], 3) for step in max(states, key=len) if "reward" in step]
    return {"train_s": round(time.monotonic() - began), "rewards": rewards, **measured(study, model, folder)}


def measured(study: Study, model: str, folder: Path) -> dict[str, Any]:
    from sage_rlvr.evaluate.results import results

    job._evaluate(study, model, folder / "eval", folder.name)
    task = results(folder / "eval").tasks[TASK]
    found = {f"pass@{k}": round(v.value, 3) for k, v in task.pass_at.items() if k in (1, 4, 16, 256)}
    return found | ({"distinct": round(task.distinct_solutions.value, 2)} if task.distinct_solutions else {})


def side_by_side(
    make: Callable, study: Study, names: list[str], out: Path, jobs: int, quick: bool
) -> list[dict[str, Any]]:
    """Each in a forked process, as the study's runs are; what failed says so in its log and has no row."""
    rows, going, left = [], dict[int, str](), list(names)
    while going or left:
        while left and len(going) < jobs:
            name = left.pop(0)
            folder = out / name
            folder.mkdir(parents=True, exist_ok=True)
            if (pid := os.fork()) == 0:
                warm.become(str(folder / "log"), {})
                torch.set_num_threads(1)  # as many processes as cores
                try:
                    (folder / "row.json").write_text(json.dumps({"name": name, **make(study, name, folder, quick)}))
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
                os._exit(0)
            going[pid] = name
        pid, code = os.wait()
        row = out / going[pid] / "row.json"
        print(row.read_text() if code == 0 else f"{going[pid]} failed: {row.parent / 'log'}", flush=True)
        rows += [json.loads(row.read_text())] if code == 0 else []
        del going[pid]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/bases", help="folder of the models and samples")
    parser.add_argument("--to", required=True, help="JSON file of the rows")
    parser.add_argument("--only", default="*", help="a pattern of bases; their runs go with them")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="two steps, few samples, on a CPU: a smoke test")
    args = parser.parse_args()
    os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **ENVIRONMENT}  # the driver must sleep until after the forks
    few = {"n": 4, "limit": 20} if args.quick else {}
    study = load_study("frontier")
    study = replace(study, evaluate={**study.evaluate, "tasks": [TASK], **few})
    if not args.quick:
        start_mps()
    for name in warm.NEEDED:
        import_module(name)
    names = [name for name in BASES if fnmatch(name, args.only)]
    began = time.monotonic()
    bases = side_by_side(make_base, study, names, Path(args.out), args.jobs, args.quick)
    made = {row["name"] for row in bases}
    if fnmatch(STUDY, args.only):
        unpack([RECORDS], Path(args.out) / STUDY)
        made.add(STUDY)
    from_them = [name for name, (base, _) in RUNS.items() if base in made]
    runs = side_by_side(make_run, study, from_them, Path(args.out), args.jobs, args.quick)
    record = {"bases": [row | {"settings": BASES[row["name"]]} for row in bases],
              "runs": [row | {"base": RUNS[row["name"]][0], "settings": RUNS[row["name"]][1]} for row in runs]}  # fmt: skip
    text = json.dumps({"wall_s": round(time.monotonic() - began), "jobs": args.jobs, **made_with(), **record}, indent=1)
    Path(args.to).write_text(text + "\n")
    return 0 if (len(bases), len(runs)) == (len(names), len(from_them)) else 1


if __name__ == "__main__":
    sys.exit(main())
