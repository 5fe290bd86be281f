"""The recipes for one GPU: accepted, within the card by plan, and what their heads say is what plan and the log say."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from trl import ModelConfig

from sage_rlvr.doctor.plan import make_plan
from sage_rlvr.launch.recipes import load_recipe, recipes_by_kind
from sage_rlvr.launch.run import RunArguments
from sage_rlvr.study.plan import load_study
from sage_rlvr.train.config import SAGEConfig
from tests.slow import but_few

ROOT = Path(__file__).parents[2]
NAMES = recipes_by_kind()["run"]
LOG = ROOT / "results" / "gpu" / "gsm8k_gate" / "stopped.json"
VLLM_EXTRA = 3e9  # CUDA graphs and activations of vLLM, which plan does not count: left free on every card


def head(name):
    return "".join(x for x in (ROOT / "recipes" / f"{name}.yaml").read_text().splitlines(True) if x.startswith("#"))


def test_two_tasks_two_models_two_cards():
    assert [f"{t}_{m}_{g}gb" for t in ("gsm8k", "math") for m in ("0.5b", "1.5b") for g in (24, 80)] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_are_those_that_were_measured_and_all_are_read(name, tmp_path):
    recipe = load_recipe(name)
    config, model, run = ({f.name for f in fields(c)} for c in (SAGEConfig, ModelConfig, RunArguments))
    assert set(recipe) <= config | model | run
    args = SAGEConfig(output_dir=str(tmp_path), use_cpu=True, **{k: v for k, v in recipe.items() if k in config})
    assert args.generation_batch_size == 32 * args.num_generations == 256
    assert (args.learning_rate, args.get_warmup_steps(150), args.lr_scheduler_type) == (1e-4, 5, "constant_with_warmup")
    assert (args.loss_type, args.temperature, args.min_p, args.guide) == ("dr_grpo", 1.0, None, "none")
    assert (args.anchor_estimator, args.beta) == ("k3", 0.05)
    assert (recipe["lora_r"], recipe["lora_alpha"], len(recipe["lora_target_modules"])) == (32, 64, 7)
    task, size, _ = name.split("_")
    assert (recipe["task"], recipe["prompt_format"]) == (task, "boxed")
    assert args.max_completion_length == {"gsm8k": 512, "math": 768}[task]
    assert recipe["model_name_or_path"] == f"Qwen/Qwen2.5-Coder-{size.upper()}-Instruct"
    SAGEConfig(
        output_dir=str(tmp_path), use_cpu=True, **{k: v for k, v in recipe.items() if k in config} | {"guide": "branch"}
    )


@pytest.mark.parametrize("name", but_few(NAMES, fast=[0]))
def test_it_fits_its_card_and_its_head_says_plans_number(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    peak = make_plan(["--config", name], gpu="a100-80g").memory.peak  # the same on every card: the cache has a size
    assert f"Memory by plan: {peak / 1e9:.1f} GB." in head(name)
    assert peak + VLLM_EXTRA < {"24gb": 23e9, "80gb": 80e9}[name.split("_")[2]]


@pytest.mark.skipif(not LOG.is_file(), reason="the records are not shipped with the package")
def test_the_expected_output_is_that_of_the_committed_log():
    log = json.loads(LOG.read_text())[1]["runs"]["grpo_no_kl+learning_rate0.0001-s0"]
    mean = lambda key, rows: sum(row[key] for row in rows) / len(rows)  # noqa: E731
    first, last = (f"{mean('reward', rows):.3f}".removeprefix("0") for rows in (log[:10], log[-10:]))
    said = f"training reward {first} in steps 1–10, {last} in steps 141–150; {mean('step_time', log):.1f} s per step"
    for name in NAMES:
        assert (said in head(name)) == name.startswith("gsm8k_0.5b"), name
        assert re.search(r"[Nn]ot run by us", head(name)), name


def test_what_differs_from_the_run_that_was_logged():
    own, logged = (
        load_recipe("gsm8k_0.5b_24gb"),
        load_study("gsm8k_gate").settings_of("grpo_no_kl+learning_rate0.0001-s0"),
    )
    ways = {
        "gradient_checkpointing",
        "tokens_per_microbatch",
        "skip_zero_advantage",
        "bf16",
    }  # the same gradient, to rounding
    place = {"model_name_or_path", "vllm_gpu_memory_utilization", "save_total_limit", "report_to"}
    differ = {key for key in own.keys() | logged.keys() if own.get(key) != logged.get(key)}
    assert differ - ways - place == {"beta", "anchor_estimator"}  # k3 is the default of a run without KL too
    assert load_study("gsm8k_gate").base == {"model_name_or_path": own["model_name_or_path"]}
