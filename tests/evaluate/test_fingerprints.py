"""What a run's samples were drawn with: whatever decides one is known by its content, and another is refused."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from rich.console import Console

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.backends import fingerprints
from sage_rlvr.evaluate.run import evaluate
from sage_rlvr.models.fingerprints import of_weights
from sage_rlvr.tasks import get_format
from tests.evaluate import run_eval_tiny as world
from tests.train import tiny

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model"), spread=0.5)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    return evaluate(world.arguments(model, tmp_path_factory.mktemp("runs") / "x"), QUIET)


def table(folder):
    keys = ["task", "problem", "seed", "index"]
    return pd.read_parquet(Path(folder, "samples")).sort_values(keys, ignore_index=True)


FORMAT = get_format("paper")


def prints(base, adapter=None, template="t", fmt=FORMAT):
    return fingerprints(str(base), adapter and str(adapter), SimpleNamespace(chat_template=template), fmt)


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("config.json", lambda m: edit(m / "config.json", rope_theta=5.0)),
        ("generation_config.json", lambda m: edit(m / "generation_config.json", eos_token_id=[1, 7])),
        ("tokenizer", lambda m: edit(m / "tokenizer_config.json", eos_token="a")),
        ("chat template", lambda m: (m / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}!")),
    ],
)
def test_whatever_decides_a_sample_is_refused_when_it_changed(model, tmp_path, what, change):
    """pass@1 of .079 and .001 were once reported as .040: half the samples were drawn with another template."""
    own = shutil.copytree(model, tmp_path / "m")
    evaluate(world.arguments(own, tmp_path / "x", n=2, limit=2), QUIET)
    before = table(tmp_path / "x")
    change(own)
    for n in (2, 4):
        with pytest.raises(UserError, match=f"drawn with another .*{re.escape(what)}.* than"):
            evaluate(world.arguments(own, tmp_path / "x", n=n, limit=2), QUIET)
    pd.testing.assert_frame_equal(table(tmp_path / "x"), before)


def test_a_registered_format_whose_text_changed_is_refused(model, tmp_path):
    there = prints(model)["inputs"]
    for more in ({"system": "other"}, {"prefix": "x"}, {"stop": ("y",)}, {"user": "{question}?"}, {"fallback": True}):
        assert prints(model, fmt=replace(FORMAT, **more))["inputs"]["prompt format"] != there["prompt format"]
    assert prints(model, fmt=replace(FORMAT, demonstration="other"))["inputs"] == there, "only SFT reads it"


def test_what_a_save_changes_and_no_token_depends_on_is_no_change(model, tmp_path):
    own = shutil.copytree(model, tmp_path / "m")
    edit(own / "config.json", transformers_version="9.9", _name_or_path="/elsewhere")
    edit(own / "generation_config.json", temperature=0.1, transformers_version="9.9")
    (own / "README.md").write_text("new")
    assert prints(own) == prints(model)


def test_an_adapters_config_and_a_models_code_count(model, tmp_path):
    own = shutil.copytree(model, tmp_path / "m")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text('{"r": 8, "base_model_name_or_path": "x"}')
    first = prints(own, tmp_path / "a")["inputs"]
    edit(tmp_path / "a" / "adapter_config.json", base_model_name_or_path="y")
    assert prints(own, tmp_path / "a")["inputs"] == first
    edit(tmp_path / "a" / "adapter_config.json", lora_alpha=99)
    assert prints(own, tmp_path / "a")["inputs"]["adapter_config.json"] != first["adapter_config.json"]
    edit(own / "config.json", auto_map={"AutoModel": "code.Model"})
    (own / "code.py").write_text("1")
    with_code = prints(own)["inputs"]["code"]
    (own / "code.py").write_text("2")
    assert prints(own)["inputs"]["code"] != with_code


def test_a_model_of_the_hub_is_known_by_what_its_cache_holds(model, tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / "abc"
    shutil.copytree(model, snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert prints("owner/name") == prints(model)
    (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}')
    assert "model_weights" not in prints("owner/name"), "a download under way"


def test_a_fingerprint_of_weights_is_of_their_bytes_alone(tmp_path):
    big = bytes(range(256)) * 40_000  # 10 MB: not all of it is read
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(big)
    os.utime(tmp_path / "b" / "model.safetensors", (1, 1))
    (tmp_path / "b" / "optimizer.pt").write_bytes(b"1")
    first = of_weights(tmp_path / "a")
    assert first == "7a0a6b5fdc25b3ea", "stores of earlier releases hold it"
    assert of_weights(tmp_path / "b") == first
    assert of_weights("owner/name") is None
    for changed in (b"x" + big[1:], big[:-1] + b"x", big + b"x"):
        (tmp_path / "b" / "model.safetensors").write_bytes(changed)
        assert of_weights(tmp_path / "b") != first
    (tmp_path / "a.gguf").write_bytes(big)
    assert of_weights(tmp_path / "a.gguf")
