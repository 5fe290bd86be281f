"""verl with its own vLLM servers on a GPU: GSM8K, every way SAGE enters, beside verl's own trainer.

    python benchmarks/gpu/verl.py prepare --model MODEL --data_dir DATA --to runs/verl    # in our environment: data, overrides
    python benchmarks/gpu/verl.py run --of runs/verl --model MODEL --steps 30 --json out.json --minutes 20    # in verl's

``plain`` is verl's own trainer; ``none`` is ours with nothing in it: same data, seed and settings. An arm that is killed, or cut
by ``--minutes``, goes on from its checkpoint when it is asked for again; ``--kill branch`` kills that arm after its first.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

TRAIN = {
    "task": "gsm8k", "prompt_format": "boxed", "decontaminate": False, "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 5, "optim": "adamw_torch", "max_steps": 30, "save_steps": 10, "save_total_limit": 1, "num_generations": 8,
    "per_device_train_batch_size": 256, "gradient_accumulation_steps": 1, "max_completion_length": 512, "temperature": 1.0,
    "loss_type": "dr_grpo", "tokens_per_microbatch": 16384, "gradient_checkpointing": False, "use_vllm": True,
    "vllm_mode": "colocate", "vllm_importance_sampling_mode": "token_truncate", "vllm_gpu_memory_utilization": 0.25,
    "report_to": "none", "seed": 0, "guide": "none", "beta": 0.05, "use_cpu": True,  # prepared where there is no GPU
}  # fmt: skip
LORA = {"use_peft": True, "lora_r": 32, "lora_alpha": 64, "lora_dropout": 0.0, "learning_rate": 1e-4,
        "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}  # fmt: skip
FULL = {"use_peft": False, "learning_rate": 2e-6}
EXACT = {"anchor_estimator": "k1-reward", "scale_rewards": "none", "guide_center": "batch"}
ARMS: dict[str, dict[str, Any]] = {
    "plain": LORA,
    "none": LORA,
    "branch": LORA | {"guide": "branch"},
    "tempered": LORA | {"guide": "tempered", "anchor_estimator": "k3+"},
    "branch_exact": LORA | {"guide": "branch", **EXACT},
    "rarity": LORA | {"advantage": "rarity"},
    "maxrl": LORA | {"advantage": "maxrl"},
    "full_plain": FULL,
    "full_branch": FULL | {"guide": "branch"},
}
HERE, START = "/HERE", "/MODEL"  # put in when an arm starts: it may be on another machine


def prepare(args: argparse.Namespace) -> None:
    from sage_rlvr.launch import on_verl
    from sage_rlvr.launch.run import parse

    folder = Path(args.to)
    folder.mkdir(parents=True, exist_ok=True)
    words = {}
    for arm, own in ARMS.items():
        recipe = folder / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(TRAIN | own | {"model_name_or_path": args.model, "data_dir": args.data_dir}))
        asked = parse(["--config", str(recipe), "--output_dir", str(folder)])
        on_verl.check(*asked)
        asked[1].bf16 = True  # there is a GPU where it runs
        if not words:
            longest = on_verl.write_inputs(asked[0], asked[1], args.model, folder)
        words[arm] = on_verl.words(on_verl.overrides(*asked, Path(HERE), START, longest, 1))
    (folder / "overrides.json").write_text(json.dumps(words, indent=1) + "\n")
    print(f"{folder}: {len(words)} arms, prompts of {longest} tokens or fewer")


def command(of: Path, arm: str, model: str, steps: int, python: str) -> list[str]:
    own, spec = of / arm, find_spec("sage_rlvr.integrations.verl.reward")
    assert spec is not None
    out = []
    for word in json.loads((of / "overrides.json").read_text())[arm]:
        name, _, value = word.partition("=")
        value = value.replace(HERE + "/train.parquet", str(of / "train.parquet")).replace(
            HERE + "/tokenizer", str(of / "tokenizer")
        )
        value = value.replace(HERE, str(own)).replace(START, model)
        if arm.endswith("plain") and name.startswith("+sage."):
            continue
        own_value = {
            "reward.custom_reward_function.path": f"'{spec.origin}'",
            "trainer.total_training_steps": str(steps),
        }
        if arm.endswith("plain"):
            own_value["trainer.v1.trainer_mode"] = "sync"
        out.append(f"{name}={own_value.get(name, value)}")
    return [python, "-m", "verl.trainer.main_ppo", *out]


def run(args: argparse.Namespace) -> None:
    of, began, results = Path(args.of).absolute(), time.monotonic(), {}
    for arm in args.arms:
        left = 60 * args.minutes - (time.monotonic() - began)
        if left < 60:
            print(f"no time for {arm}", flush=True)
            continue
        results[arm] = one(of, arm, args, left)
        Path(args.json).write_text(json.dumps({"steps": args.steps, "train": TRAIN, "arms": results}, indent=1) + "\n")
        print(arm, {k: v for k, v in results[arm].items() if k != "log"}, flush=True)


def one(of: Path, arm: str, args: argparse.Namespace, left: float) -> dict[str, Any]:
    own, start, codes, killed = of / arm, time.monotonic(), [], False
    own.mkdir(exist_ok=True)
    while True:
        env = os.environ | {"VERL_FILE_LOGGER_PATH": str(own / f"verl-{len(codes)}.jsonl")}
        with (own / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                command(of, arm, str(Path(args.model).absolute()), args.steps, args.python), env=env, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            while process.poll() is None and time.monotonic() - start < left:
                time.sleep(1)
                if arm == args.kill and not killed and (own / "latest_checkpointed_iteration.txt").exists():
                    killed = True
                    os.killpg(process.pid, signal.SIGKILL)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        codes.append(process.wait())
        if not (killed and len(codes) == 1):
            break
        time.sleep(10)  # Ray notices that its driver is gone
    files = [own / f"verl-{i}.jsonl" for i in range(len(codes))]
    lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    return {
        "codes": codes, "seconds": round(time.monotonic() - start), "logged": len(lines),
        "reward": [round(line["data"].get("critic/score/mean", float("nan")), 4) for line in lines],
        "step_s": [round(line["data"].get("timing_s/step", float("nan")), 3) for line in lines],
        "sage_s": [round(line["data"].get("timing_s/sage", 0.0), 4) for line in lines], "log": lines,
        "tail": "" if codes[-1] == 0 else (own / "log.txt").read_text(errors="replace")[-3000:],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    first = parts.add_parser("prepare")
    first.add_argument("--model", required=True)
    first.add_argument("--data_dir", help="folder of local task files")
    first.add_argument("--to", default="runs/verl")
    then = parts.add_parser("run")
    then.add_argument("--of", default="runs/verl")
    then.add_argument("--model", required=True)
    then.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    then.add_argument("--steps", type=int, default=30)
    then.add_argument("--minutes", type=float, default=20)
    then.add_argument("--kill", choices=list(ARMS), help="kill this arm once, after its first checkpoint")
    then.add_argument("--python", default=sys.executable, help="verl's")
    then.add_argument("--json", required=True)
    args = parser.parse_args()
    prepare(args) if args.part == "prepare" else run(args)


if __name__ == "__main__":
    main()
