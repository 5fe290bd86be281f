"""plan against what runs really take: tiny ones here, and one that was measured on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import GPT2Config, MambaConfig, Qwen3NextConfig

from sage_rlvr.doctor import console
from sage_rlvr.doctor import plan as planning
from sage_rlvr.doctor.activations import _Live, weigh
from sage_rlvr.doctor.architectures import KNOWN, architecture
from sage_rlvr.doctor.memory import CUDA_CONTEXT, RESIDENT, head_bytes
from sage_rlvr.doctor.plan import make_plan
from sage_rlvr.errors import UserError
from sage_rlvr.head import functions, tiles
from sage_rlvr.launch.run import parse
from sage_rlvr.models import scratch_model
from sage_rlvr.study.plan import load_study
from tests.paths import python_path
from tests.slow import but_few

ROOT = Path(__file__).parents[2]
SETTINGS = [
    "--task", "countdown-ltr", "--rows", "16", "--prompt_format", "symbols", "--decontaminate", "false", "--max_steps", "2",
    "--num_generations", "4", "--max_completion_length", "24", "--generation_kwargs", '{"min_new_tokens": 24}',
    "--guide", "none", "--report_to", "none", "--save_strategy", "no", "--use_cpu", "true", "--bf16", "false",
    "--optim", "adamw_torch", "--disable_tqdm", "true", "--gradient_checkpointing", "false",
]  # fmt: skip
WIDE = ["--model_name_or_path", "wide", "--per_device_train_batch_size", "8"]
LORA = ["--use_peft", "true", "--lora_r", "8", "--lora_target_modules", "q_proj", "v_proj", "up_proj", "down_proj"]
RUNS = {
    "small": ["--model_name_or_path", "small", "--per_device_train_batch_size", "8"],
    "every weight": WIDE,
    "LoRA": [*WIDE[:2], "--per_device_train_batch_size", "16", *LORA, "--max_steps", "1"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    scratch_model(folder / "small", "0123456789+-*=: ", width=64, layers=2, length=128)
    scratch_model(folder / "wide", "0123456789+-*=: ", width=640, layers=6, length=128)
    return folder


@pytest.fixture(scope="module")
def measured(place):
    """Peak bytes of each run, each in its own process."""
    env = os.environ | {"PYTHONPATH": python_path(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    runs = {name: [*SETTINGS, *flags, "--output_dir", f"run-{name}"] for name, flags in RUNS.items()}
    (place / "runs.json").write_text(json.dumps(runs))
    command = [sys.executable, "-m", "tests.doctor.run_measured", "runs.json"]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_peak_of_a_real_run_within_a_quarter(name, place, measured, monkeypatch):
    monkeypatch.chdir(place)
    peak = make_plan([*SETTINGS, *RUNS[name]]).memory.peak
    print(f"{name}: planned {peak / 1e6:.0f} MB, measured {measured[name] / 1e6:.0f} MB")
    assert peak == pytest.approx(measured[name], rel=0.25)
    if name != "small":  # not by the constant alone: what this model adds to the small one's run
        more = measured[name] - measured["small"]
        assert more > 300e6
        assert peak - RESIDENT == pytest.approx(more, rel=0.35)


RECORDED = ROOT / "results" / "gpu" / "trainer_vllm.json"
CASES = {"branch k3, transformers.generate": [], "branch k3": ["--use_vllm", "true", "--vllm_mode", "colocate"]}


@pytest.mark.skipif(not RECORDED.is_file(), reason="the recorded GPU measurement is not shipped with the package")
@pytest.mark.parametrize("case", CASES)
def test_peak_recorded_on_one_gpu_within_a_quarter(case, monkeypatch, tmp_path):
    """benchmarks/gpu/trainer_vllm.py on one H200: SmolLM2-135M in float32 (TRL's default), LoRA, bf16 autocast. Its peak is
    of PyTorch's allocator, so without the CUDA context. Prompts have about 43 tokens (num_tokens in its log)."""
    monkeypatch.chdir(tmp_path)
    recorded = json.loads(RECORDED.read_text())["cases"][case]["peak_gib"] * 2**30
    flags = [
        "--model_name_or_path", "HuggingFaceTB/SmolLM2-135M-Instruct", "--use_peft", "true", "--lora_r", "8",
        "--lora_target_modules", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
        "--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "4", "--num_generations", "8",
        "--max_completion_length", "96", "--vllm_gpu_memory_utilization", "0.3", "--max_steps", "6", "--fused_head", "false",
        *CASES[case],
    ]  # fmt: skip
    peak = make_plan(flags, gpu="h200", prompt_tokens=43).memory.peak - CUDA_CONTEXT
    print(f"{case}: planned {peak / 2**30:.2f} GiB, measured {recorded / 2**30:.2f} GiB")
    assert peak == pytest.approx(recorded, rel=0.25)


STEP = ROOT / "results" / "gpu" / "step.json"


@pytest.mark.skipif(not STEP.is_file(), reason="the recorded GPU measurement is not shipped with the package")
@pytest.mark.parametrize("budget", but_few([8192, 16_384, 32_768], {1}))
def test_peak_of_updates_on_one_gpu_that_plan_never_saw(budget, monkeypatch, tmp_path):
    """benchmarks/gpu/step.py, part b, on one H200: 64 rollouts, prompts to 212 tokens, Qwen2.5-1.5B's size, LoRA, bf16."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    recorded = json.loads(STEP.read_text())["b"][f"ours, {budget} tokens"]["peak_gib"]
    flags = [
        "--model_name_or_path", "Qwen/Qwen2.5-Coder-1.5B-Instruct", "--use_peft", "true", "--lora_r", "8", "--lora_dropout", "0",
        "--lora_target_modules", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
        "--dtype", "bfloat16", "--bf16", "true", "--num_generations", "8", "--max_completion_length", "1024", "--max_steps", "1",
        "--per_device_train_batch_size", "64", "--gradient_checkpointing", "false", "--tokens_per_microbatch", str(budget),
        "--task", "gsm8k",
    ]  # fmt: skip
    plan = make_plan(flags, gpu="h200", prompt_tokens=212)
    phases = {name: sum(p.bytes for p in parts) for name, parts in plan.memory.phases.items() if name != "generation"}
    peak = (max(phases.values()) - CUDA_CONTEXT) / 2**30  # rollouts were given, not generated
    print(f"planned {peak:.1f} GiB, measured {recorded:.1f} GiB")
    assert peak == pytest.approx(recorded, rel=0.25)


def test_a_cache_of_a_given_size_is_planned_for(monkeypatch, tmp_path):
    """Three of the real study's arms side by side: vLLM's part is its weights and the cache, not a share of the card."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = load_study("qwen1.5b").settings_of("grpo-s0") | {
        "model_name_or_path": "Qwen/Qwen2.5-Coder-1.5B-Instruct"
    }
    recipe = tmp_path / "arm.yaml"
    recipe.write_text(yaml.safe_dump({k: v for k, v in settings.items() if k != "sft"}))
    plan = make_plan(["--config", str(recipe), "--bf16", "true"], gpu="h200", prompt_tokens=212)
    parts = {part.name: part for part in plan.memory.phases["generation"]}
    weights = 1_543_714_304 + 9_232_384  # Qwen2.5-1.5B's parameters and the adapter's
    assert parts["vLLM"].bytes == 2 * weights + 3 * 2**30
    assert 3 * plan.memory.peak < 139 * 2**30


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen/Qwen2.5-Math-7B", 7_615_616_512),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen/Qwen2.5-Math-1.5B-Instruct", 1_543_714_304),
        ("HuggingFaceTB/SmolLM2-135M", 134_515_008),
    ],
)
def test_known_architectures_have_the_published_number_of_parameters(name, published, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert weigh(architecture(name), torch.bfloat16).count == published


def test_every_packaged_recipe_names_a_model_that_is_known_offline():
    from sage_rlvr.launch.recipes import list_recipes, load_recipe

    names = {load_recipe(name).get("model_name_or_path") for name in list_recipes()} - {None}
    assert names <= set(KNOWN)


def test_what_each_setting_costs(place, monkeypatch):
    monkeypatch.chdir(place)
    full = [*SETTINGS, *WIDE, "--bf16", "true"]
    plain = make_plan(full, gpu="h100")
    parts = {p.name: p.bytes for p in plain.memory.phases["optimizer step"]}
    params = weigh(plain.demand.config, torch.float32).count
    assert parts["weights"] == parts["reference model"] == parts["gradients"] == 4 * params
    assert parts["optimizer"] == 8 * params
    eight = {
        p.name: p.bytes for p in make_plan([*full, "--optim", "adamw_8bit"], gpu="h100").memory.phases["optimizer step"]
    }
    assert eight["optimizer"] == 2 * params
    no_kl = make_plan([*full, "--beta", "0"], gpu="h100").memory.phases["optimizer step"]
    assert "reference model" not in {p.name for p in no_kl}
    lora = {p.name: p.bytes for p in make_plan([*full, *LORA], gpu="h100").memory.phases["optimizer step"]}
    rank_sum = 8 * 6 * (2 * (640 + 640) + 2 * (640 + 4 * 640))  # r · layers · (in + out) of q, v and of up, down
    assert lora["LoRA adapter"] == 4 * rank_sum
    assert "reference model" not in lora
    cache = {p.name: p.bytes for p in plain.memory.phases["generation"]}["KV cache"]
    assert (
        cache == 8 * plain.demand.length * 2 * 640 * 6 * 4
    )  # rows · tokens · (k, v) · width · layers · float32, as weights


@pytest.mark.parametrize(
    ("asked", "on"),
    [
        (["--bf16=false"], False),
        (["--bf16", "false"], False),
        (["--bf16=true"], True),
        (["--bf16", "true"], True),
        ([], True),
    ],
)
def test_bf16_is_planned_as_asked_in_every_spelling(asked, on, place, monkeypatch):
    """On a card that is not here: the last word counts, and with none it is on."""
    monkeypatch.chdir(place)
    at = SETTINGS.index("--bf16")
    earlier = ["--bf16", "false" if on else "true"] if asked else []
    flags = [*SETTINGS[:at], *SETTINGS[at + 2 :], *RUNS["small"], *earlier, *asked]
    assert make_plan(flags, gpu="h100").demand.autocast is on


def test_tokens_steps_and_disk(place, monkeypatch):
    monkeypatch.chdir(place)
    plan = make_plan([*SETTINGS, *WIDE, "--gradient_accumulation_steps", "2", "--save_strategy", "steps", "--save_steps", "1",
                      "--save_total_limit", "1"], gpu="a100-80g")  # fmt: skip
    assert plan.tokens == 2 * 16 * 24  # steps · rows · tokens
    assert plan.demand.rollouts == 2
    weights = plan.memory.weights.trainable
    assert {p.name: p.bytes for p in plan.disk} == {"checkpoints": 2 * 3 * weights, "trained weights": weights}
    assert plan.fits
    assert not plan.fixes


@pytest.mark.slow
def test_what_does_not_fit_comes_with_what_helps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    flags = ["--config", "full_3b", "--gradient_checkpointing", "false", "--per_device_train_batch_size", "16"]
    plan = make_plan(flags, gpu="a100-80g")
    assert not plan.fits
    helps = dict(plan.fixes)
    assert "--gradient_checkpointing true" in helps
    assert any("--use_peft true" in fix for fix in helps)
    assert all(peak < plan.memory.peak for peak in helps.values())
    fix, peak = next(fix for fix in plan.fixes if "lora" in fix[0])  # the promise holds
    assert make_plan([*flags, *fix.split()], gpu="a100-80g").memory.peak == peak


def only(monkeypatch, *words):
    """Of the changes that may help those with one of these words: each costs a pass of a model."""
    changes = planning._changes

    def some(*args):
        return [ways for ways in changes(*args) if any(word in ways[0] for word in words)]

    monkeypatch.setattr(planning, "_changes", some)


@pytest.mark.parametrize(
    ("rows", "more", "halved"),
    [
        (16, "", "--per_device_train_batch_size 8 --gradient_accumulation_steps 16"),
        pytest.param(16, "--generation_batch_size 256", "--per_device_train_batch_size 8 --gradient_accumulation_steps 16",
                     marks=pytest.mark.slow),
        pytest.param(16, "--steps_per_generation 8",
                     "--per_device_train_batch_size 8 --gradient_accumulation_steps 16 --steps_per_generation 16",
                     marks=pytest.mark.slow),
        (16, "--steps-per-generation=1 --num_generations 16",
         "--per_device_train_batch_size 8 --gradient_accumulation_steps 16 --steps_per_generation 2"),
        pytest.param(15, "", None, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_batch_is_halved_where_that_leaves_as_many_rows(rows, more, halved, tmp_path, monkeypatch):
    """Of an update and of a rollout. An odd one would lose a row, and with it the experiment its batch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    only(monkeypatch, "batch_size", "checkpointing")
    flags = ["--config", "full_3b", "--gradient_checkpointing", "false", "--per_device_train_batch_size", str(rows),
             "--gradient_accumulation_steps", "8", *more.split()]  # fmt: skip
    plan = make_plan(flags, gpu="a100-80g")
    assert "--gradient_checkpointing true" in dict(plan.fixes)
    batches = [fix for fix, _ in plan.fixes if "batch_size" in fix]
    assert batches == ([halved] if halved else [])
    for fix in batches:
        one, other = (parse([*flags, *given, "--bf16", "false"])[1] for given in ([], fix.split()))
        assert one.generation_batch_size == other.generation_batch_size
        updates = [a.steps_per_generation / a.gradient_accumulation_steps for a in (one, other)]
        assert updates[0] == updates[1]


def test_a_mend_that_the_model_has_no_modules_for_is_not_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=64).save_pretrained("gpt2")
    flags = [
        "--model_name_or_path",
        "gpt2",
        "--per_device_train_batch_size",
        "8192",
        "--gradient_checkpointing",
        "false",
    ]
    only(monkeypatch, "lora", "checkpointing")
    plan = make_plan(flags, gpu="a100-80g", prompt_tokens=300)
    assert not plan.fits
    assert "--gradient_checkpointing true" in dict(plan.fixes)
    assert not any("lora" in fix for fix, _ in plan.fixes)  # GPT-2 has c_attn where ours have q_proj


def test_a_token_budget_is_what_a_pass_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    only(monkeypatch, "tokens_per_microbatch")
    flags = ["--config", "full_3b", "--gradient_checkpointing", "false", "--per_device_train_batch_size", "16"]
    whole = make_plan(flags, gpu="a100-80g")
    length = whole.demand.length
    budgeted = make_plan([*flags, "--tokens_per_microbatch", str(3 * length + 1)], gpu="a100-80g")
    assert (whole.demand.micro_batch, budgeted.demand.micro_batch) == (16, 3)
    assert budgeted.demand.accumulation == 6 * whole.demand.accumulation  # 3 + 3 + 3 + 3 + 3 + 1 rows
    assert budgeted.memory.peak < whole.memory.peak
    assert f"--tokens_per_microbatch {length}" in dict(budgeted.fixes)


@pytest.mark.parametrize("case", ["LoRA", "learns", "learns, no room", "no gradient"])
def test_what_our_head_holds(case, monkeypatch):
    """Against the storages its passes really make, on fake tensors; kernels and products write in place and make none."""
    n, vocab, width = 4000, 50_000, 512
    nothing = lambda *args, **kwargs: None  # noqa: E731
    monkeypatch.setattr(functions, "product", nothing)
    monkeypatch.setattr(functions, "_check", nothing)
    kernels = SimpleNamespace(fold=nothing, rescale=nothing, directions=nothing, logit_gradients=nothing)
    monkeypatch.setattr(functions, "tile_functions", lambda *_: kernels)
    if case == "learns, no room":
        monkeypatch.setattr(tiles, "KEPT", 0)
    gradient, lora = case != "no gradient", object() if case in ("LoRA", "no gradient") else None
    with FakeTensorMode():
        hidden = torch.empty(n, width, dtype=torch.bfloat16, requires_grad=gradient)
        weight = torch.empty(vocab, width, dtype=torch.bfloat16, requires_grad=lora is None)
        targets, pull = torch.empty(n, dtype=torch.long), torch.empty(n)
        with _Live() as live:
            for given in (hidden, weight, targets, pull):
                live.see(given)
            live.now = live.peak = 0
            logps, _ = functions.logps_and_entropies(hidden, weight, targets)
            if gradient:
                torch.autograd.grad(logps, [hidden] if lora else [hidden, weight], pull)
    text = SimpleNamespace(vocab_size=vocab, hidden_size=width)
    demand = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text), micro_batch=4, completion=1000, length=1300,
                             autocast=True, fused_head=None, lora=lora, dtype=torch.bfloat16)  # fmt: skip
    planned = head_bytes(demand, cuda=True, backward=gradient)
    print(f"{case}: planned {planned / 2**20:.0f} MiB, allocated {live.peak / 2**20:.0f} MiB")
    assert planned == pytest.approx(live.peak, rel=0.25)


def test_layers_whose_kernels_are_not_here_are_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {"hidden_size": 32, "vocab_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
             "linear_num_key_heads": 2, "linear_num_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}  # fmt: skip
    kinds = ["linear_attention", "full_attention"]
    Qwen3NextConfig(num_hidden_layers=2, layer_types=kinds, **small).save_pretrained("hybrid")
    flags = ["--model_name_or_path", "hybrid", "--max_completion_length", "16", "--max_steps", "1"]
    assert "without kernels" in " ".join(make_plan(flags, gpu="h200", prompt_tokens=8).notes)
    assert "without kernels" not in " ".join(make_plan(["--config", "branch"], gpu="h200").notes)


def test_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert console.show_plan(["--config", "recipes/branch.yaml", "--gpu", "h200"])
    said = capsys.readouterr().out
    assert "KV cache" in said
    assert "131.1M tokens" in said  # 1,000 steps × 64 completions × 2,048
    assert console.show_plan(["--config", "branch", "--gpu", "h200", "--json", "--max_steps", "10"])
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_generated"] == 10 * 64 * 2048
    assert found["peak_bytes"] == pytest.approx(sum(p["bytes"] for p in found["phases"][found["peak_phase"]]))
    assert 15e9 < found["peak_bytes"] < 60e9


SHORT = ["--prompt_tokens", "8", "--max_completion_length", "8"]  # what goes token by token is quick


@pytest.mark.parametrize(
    ("argv", "way_out"),
    [
        ([], "--config recipes/branch.yaml"),
        (["--config", "branch", "--gpu", "rtx"], "rtx3090 or rtx4090"),
        (["--config", "nothing"], "'sage-rlvr recipes' lists them"),
        (["--config", "branch", "--gpu", "h200", "--betta", "1"], "beta"),
        (["--config", "branch", "--gpu", "h200", "--prompt_tokens", "0"], "1 or more"),
        (["--config", "branch", "--gpu", "h200", "--per_device_train_batch_size", "0"], "1 or more"),
        (["--config", "branch", "--gpu", "h200", "--gradient_accumulation_steps", "0"], "1 or more"),
        (["--config", "branch", "--gpu", "h200", "--lora_target_modules", "nope"], "modules they have"),
        (["--model_name_or_path", "mamba", "--gpu", "h200", *SHORT], "decoder-only"),
        (["--max_steps", "1"], "give --model a Hub id"),
        (["--model_name_or_path", "./nowhere"], "check the path"),
        (["--model_name_or_path", "someone/unknown-7b"], "go online"),
    ],
)
def test_wrong_use_is_one_sentence_with_the_way_out(argv, way_out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MambaConfig(num_hidden_layers=2, hidden_size=32, vocab_size=64).save_pretrained("mamba")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError) as e:
        console.show_plan(argv)
    assert way_out in str(e.value)
    assert "\n" not in str(e.value)
