"""FSDP2 for real: Accelerate's own fully_shard path in two gloo processes, with the settings of the packaged fsdp2.yaml, against
one process with the whole model. Every case must be sharded: on CPU Accelerate would train unsharded without a word."""

import json
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

from sage_rlvr.launch.recipes import shelf
from sage_rlvr.runs import manifest

from . import keeping, tiny
from .test_distributed import ROW_METRICS, STEPS, TOKEN_METRICS, flat, launch, near, one_reset, same_metrics

RESET = STEPS | {"guide": "branch", "anchor_reset": 2}
RANDOM = STEPS | {"guide": "random", "guide_args": {"epsilon": 1.0}}
SAME = {
    "full, branch k3": STEPS | {"guide": "branch"},
    "full, random k3": RANDOM,
    "full, reference entropies": STEPS | {"guide": "branch", "guide_args": {"source": "reference"}},
    "full, exact credit, groups across ranks": STEPS | {
        "guide": "branch", "anchor_estimator": "k1-reward", "loss_type": "dr_grpo", "scale_rewards": "none", "global_rows": 4,
    },
    "full, value": STEPS | {"guide": "value", "guide_args": {"rate": 0.1, "kappa": 20.0}},
    "full, kept answers": STEPS | {
        "guide": "none", "keep_from": "kept", "keep_batch": 3, "keep_coef": 5.0, "keep_divergence": "js",
        "tokens_per_microbatch": 20,
    },
    "lora, branch k3": STEPS | {"guide": "branch", "lora": True},
    "lora, tempered to_go": STEPS | {
        "guide": "tempered", "anchor_estimator": "k1-reward", "anchor_credit": "to_go", "lora": True,
    },
    "full, reset": RESET,
    "lora, reset": RESET | {"lora": True},
}  # fmt: skip
SAVES = {"save_strategy": "steps", "save_steps": 1, "folder": "saved"}
SHARDED_ONLY = {
    "interrupted": RANDOM | SAVES | {"max_steps": 2},
    "resumed": RANDOM | SAVES | {"resume": True},
    "rank 1's state damaged": RANDOM | SAVES | {"resume": True, "damaged": "checkpoint-3/sage_state_1.pt"},
    "the optimizer damaged": RANDOM | SAVES | {"resume": True, "damaged": "checkpoint-3/optimizer.bin"},
    "sampled": STEPS | {"sampled": True, "stop_strings": ["a", "b"]},
}
for name in ("full, reset", "lora, reset"):
    place = SAVES | {"folder": name}
    SHARDED_ONLY |= {
        f"{name}, cut": SAME[name] | place | {"max_steps": 2},
        f"{name}, on": SAME[name] | place | {"resume": True},
    }


def settings():
    """The environment that ``accelerate launch`` makes of the packaged file; on CPU without bf16."""
    words = ["--config_file", str(shelf("launchers")["fsdp2"]), "--num_processes", "2", "-m", "x"]
    env = prepare_multi_gpu_env(_validate_launch_command(launch_command_parser().parse_args(words))[0])
    wanted = {k: v for k, v in env.items() if k.startswith("FSDP_") or k == "ACCELERATE_USE_FSDP"}
    assert (wanted["ACCELERATE_USE_FSDP"], wanted["FSDP_VERSION"]) == ("true", "2")
    return wanted


QUICK = {"full, branch k3", "lora, branch k3"}


def each(cases):
    """All but the quick ones are slow."""
    return pytest.mark.parametrize(
        "case", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in cases]
    )


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Every case, if one that is slow is asked for in this session."""
    every = any(item.module is request.module and item.get_closest_marker("slow") for item in request.session.items)
    kept = {
        "keep_from": keeping.folder(
            tmp_path_factory.mktemp("of") / "kept", tiny.folder(tmp_path_factory.mktemp("start"))
        )
    }
    same = {name: case | (kept if "keep_from" in case else {}) for name, case in SAME.items() if every or name in QUICK}
    only = SHARDED_ONLY if every else {}
    one = launch(1, tmp_path_factory.mktemp("one"), same)
    full = {name: case for name, case in (same | only).items() if "lora" not in case}
    lora = {name: case for name, case in (same | only).items() if "lora" in case}
    if every:
        lora["lora, sampled"] = SHARDED_ONLY["sampled"] | {"lora": True}
    folder = tmp_path_factory.mktemp("fsdp")
    sharded = launch(2, folder, full | lora, env=settings(), fsdp=True)
    return SimpleNamespace(one=one, sharded=sharded, folder=folder)


def test_every_parameter_is_a_shard(runs):
    for name, case in runs.sharded.items():
        assert len(case["sharded"]) > 20
        assert all(case["sharded"].values()), (
            f"{name}: not DTensors: {[n for n, s in case['sharded'].items() if not s]}"
        )
        assert all(case["ref_sharded"])
        assert bool(case["ref_sharded"]) == ("lora" not in name), "full fine-tuning has a reference of its own"
    assert not any(any(case["sharded"].values()) for case in runs.one.values())


@each(SAME)
def test_shards_give_the_losses_and_gradients_of_one_process(runs, case):
    one, two = runs.one[case], runs.sharded[case]
    assert two["losses"] == near(one["losses"])
    for a, b in zip(one["grads"], two["grads"], strict=True):
        assert a.keys() == b.keys()
        assert float((flat(a) - flat(b)).norm() / flat(a).norm()) < 1e-5
    assert flat(two["weights"]) == pytest.approx(flat(one["weights"]), rel=1e-5, abs=1e-5)
    same_metrics(one, two, ROW_METRICS + TOKEN_METRICS)


@each(name for name, options in SAME.items() if options["guide"] != "none")
def test_the_guide_shapes_the_anchor_of_a_sharded_model(runs, case):
    for log in runs.sharded[case]["log"]["value" in case :]:  # a head begins without an opinion
        assert log["sage/active"] > 0.5
        assert log["sage/q_min"] < log["sage/q_max"]
        assert log["kl"] != pytest.approx(log["kl_ref"], rel=1e-3)


@pytest.mark.slow
def test_a_sharded_run_goes_on_from_its_checkpoint(runs):
    whole = runs.one["full, random k3"]["losses"]
    assert runs.sharded["interrupted"]["losses"] + runs.sharded["resumed"]["losses"] == near(whole)
    assert len(runs.sharded["resumed"]["losses"]) == 1


@each(["full, reset", "lora, reset"])
def test_a_sharded_reference_becomes_the_policy_and_is_saved(runs, case):
    whole, resumed = runs.sharded[case], runs.sharded[f"{case}, on"]
    assert one_reset(whole["log"])
    assert resumed["losses"] == whole["losses"][2:]
    assert torch.equal(flat(resumed["weights"]), flat(whole["weights"]))
    listed = json.loads((runs.folder / "out" / case.replace(" ", "_") / "checkpoint-3" / manifest.NAME).read_text())[
        "files"
    ]
    assert {"sage_reference_0.pt", "sage_reference_1.pt"} <= listed.keys()


@each(["rank 1's state damaged", "the optimizer damaged"])
def test_all_ranks_take_the_checkpoint_before_a_damaged_one(runs, case):
    """The last step is taken again; the list holds what every rank wrote."""
    assert runs.sharded[case]["losses"] == near(runs.sharded["resumed"]["losses"])
    saved = runs.folder / "out" / "saved"
    listed = json.loads((saved / "checkpoint-3" / manifest.NAME).read_text())["files"]
    of_each = {
        f"{name}_{rank}.{kind}" for name, kind in (("sage_state", "pt"), ("rng_state", "pth")) for rank in (0, 1)
    }
    assert listed.keys() >= {"optimizer.bin", "pytorch_model_fsdp.bin", "trainer_state.json"} | of_each
    assert manifest.fault(saved / "checkpoint-3") is None
    assert (saved / "damaged" / "checkpoint-3").is_dir()


@each(["sampled", "lora, sampled"])
def test_a_sharded_model_samples_with_stop_strings(runs, case):
    """Step after step: putting the tokenizer into generate must leave FSDP's own generate in place."""
    log = runs.sharded[case]["log"]
    assert len(log) == STEPS["max_steps"]
    assert any(entry["completions/clipped_ratio"] < 1 for entry in log)
