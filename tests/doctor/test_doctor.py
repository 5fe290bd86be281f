"""doctor: each check against a machine or a config made to fail it, and the sentence that fixes it."""

import json
import re
import socket
import threading
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from sage_rlvr.doctor import console, machine, recipe, versions
from sage_rlvr.doctor.machine import Check
from sage_rlvr.errors import UserError
from sage_rlvr.models import scratch_model

ROOT = Path(__file__).parents[2]


def by_name(checks):
    return {check.name: check for check in checks}


# ---- versions ------------------------------------------------------------------------------------------------------


def test_tested_versions_are_those_of_the_constraints():
    pins = {}
    for file in ("cpu.txt", "gpu.txt"):
        for line in (ROOT / "constraints" / file).read_text().splitlines():
            if found := re.fullmatch(r"([\w.-]+)==(\S+)", line):
                pins.setdefault(found[1].lower().replace("_", "-"), []).append(found[2])
    for name, tested in versions.TESTED.items():
        assert list(tested) == list(dict.fromkeys(pins[name])), name
        assert all(versions.declared(name).contains(v) for v in tested), name


def test_a_library_outside_its_range_or_missing(monkeypatch):
    def found(name):
        if name in ("vllm", "peft"):
            raise metadata.PackageNotFoundError(name)
        return {"trl": "1.17.0", "transformers": "5.30.0"}[name]

    monkeypatch.setattr(versions, "version", found)
    trl = versions.library_check("trl")
    assert trl.ok is False
    assert "1.17.0" in trl.found
    assert "trl<1.17,>=1.16" in trl.fix
    assert versions.library_check("vllm") == Check(
        "vllm",
        None,
        "not installed; needed only for use_vllm and eval --backend vllm",
        "pip install 'sage-rlvr[vllm]'.",
    )
    assert versions.library_check("peft").ok is False
    newer = versions.library_check("transformers")
    assert newer.ok
    assert "tested with 5.22.2 and 5.17.0" in newer.found


# ---- the machine ---------------------------------------------------------------------------------------------------


def test_hub_never_hangs(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    answers = threading.Event()
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: answers.wait() and socket.socket())
    check = machine.hub_check(seconds=0.2)  # would wait for ever
    answers.set()
    assert check.ok is None
    assert "HF_HUB_OFFLINE=1" in check.fix


def test_hub_answers_or_is_off(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert machine.hub_check().ok
    assert machine.hub_check(0.5).ok is None
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in machine.hub_check().found


def test_disk_too_small_or_not_a_folder(tmp_path):
    assert machine.disk_checks(str(tmp_path / "deep" / "runs"), needed=1)[0].ok
    short = machine.disk_checks(str(tmp_path), needed=1e18)[0]
    assert short.ok is False
    assert "output_dir" in short.fix
    (tmp_path / "file").write_text("")
    assert machine.disk_checks(str(tmp_path / "file" / "runs"))[0].ok is False


def test_page_without_a_config(monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    well = console.show_doctor()
    said = capsys.readouterr().out
    assert "torch" in said
    assert "✓" in said
    assert console.show_doctor(as_json=True) is well
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is well
    assert {"Python", "trl", "vllm", "Hub"} <= {check["name"] for check in found["checks"]}


def test_one_failed_check_fails_the_whole_with_its_mend(monkeypatch, capsys):
    monkeypatch.setattr(
        console, "all_checks", lambda *a: [Check("a", True, "fine"), Check("b", False, "bad", "use x[y].")]
    )
    assert console.show_doctor() is False
    said = capsys.readouterr().out
    assert "→ use x[y]." in said
    assert "1 to fix: b" in said


# ---- a config ------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A recipe that can run here; each test breaks one thing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    scratch_model(tmp_path / "base", "0123456789+-*=: ", width=32, layers=2)
    settings = {
        "model_name_or_path": "base", "task": "countdown-ltr", "prompt_format": "symbols", "decontaminate": False,
        "max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8, "use_cpu": True,
        "bf16": False, "guide": "none", "optim": "adamw_torch", "gradient_checkpointing": False, "report_to": "none",
    }  # fmt: skip

    def checks(**changed):
        Path("my.yaml").write_text(yaml.safe_dump(settings | changed))
        return by_name(recipe.config_checks("my.yaml"))

    return checks


def test_a_config_that_can_run(place):
    found = place()
    assert [name for name, check in found.items() if check.ok is not True] == []
    assert {"settings", "model", "data of countdown-ltr", "memory", "disk for runs", "output_dir"} <= set(found)


@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        ({"num_generations": 3}, "settings", "does not divide"),
        ({"guide": "branch", "beta": 0.0}, "settings", "beta above 0"),
        ({"betta": 1}, "settings", "did you mean"),
        ({"bf16": True, "use_cpu": False}, "settings", "bf16"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, "accelerator", "--use_vllm false"),
        ({"optim": "adamw_8bit"}, "accelerator", "adamw_torch"),
        ({"model_name_or_path": "./gone"}, "model", "check the path"),
        ({"model_name_or_path": "empty"}, "model", "config.json"),
        ({"model_name_or_path": "bare"}, "model", "no weights"),
        ({"model_name_or_path": "someone/other"}, "model", "go online"),
        ({"model_name_or_path": "misfit"}, "model", "base model it was trained on"),
        ({"task": "no-such-task"}, "data of no-such-task", "no task"),
        ({"sft": "broken.yaml"}, "SFT stage", "neither SFTRun"),
        ({"per_device_train_batch_size": 4_000_000}, "memory", "--per_device_train_batch_size 2000000"),
    ],
)
def test_what_cannot_run_is_named_with_its_mend(place, change, name, says):
    import torch

    if torch.cuda.is_available() and name in ("settings", "accelerator") and "bf16" in change:
        pytest.skip("this machine has a GPU")
    Path("empty").mkdir()
    Path("bare").mkdir()
    Path("bare", "config.json").write_text(Path("base", "config.json").read_text())
    Path("broken.yaml").write_text("modle: x\n")
    if change.get("model_name_or_path") == "misfit":
        adapter_for_another_base()
    check = place(**change)[name]
    assert check.ok is False
    assert says in f"{check.found}: {check.fix}"
    assert check.fix
    assert "\n" not in check.found + check.fix


def adapter_for_another_base():
    from peft import LoraConfig, get_peft_model

    from sage_rlvr.models import load_model

    scratch_model("wider", "0123456789+-*=: ", width=64, layers=2)
    get_peft_model(load_model("wider"), LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained("misfit")
    config = json.loads(Path("misfit", "adapter_config.json").read_text())
    Path("misfit", "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "base"}))


def test_data_that_only_the_hub_has(place):
    check = place(task="dapo-math-17k", prompt_format="paper")["data of dapo-math-17k"]
    assert check.ok is None
    assert "dapo_math_17k_en.jsonl" in check.fix
    Path("data").mkdir()
    Path("data", "dapo_math_17k_en.jsonl").write_text(json.dumps({"prompt": "1+1=", "solution": "2"}) + "\n")
    assert place(task="dapo-math-17k")["data of dapo-math-17k"].ok


def test_a_folder_of_another_run(place):
    Path("runs/my").mkdir(parents=True)
    Path("runs/my/run.json").write_text(json.dumps({"settings": {"learning_rate": 0.5}, "finished": False}))
    check = place()["output_dir"]
    assert check.ok is False
    assert "learning_rate" in check.found
    assert "another --out" in check.fix


def test_no_such_recipe_is_wrong_use():
    with pytest.raises(UserError, match="no recipe 'nothing'"):
        console.show_doctor("nothing")
