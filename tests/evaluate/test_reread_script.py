"""benchmarks/reread.py on samples of a base and of an adapter: what was stored is what the model says, and another's is not."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from sage_rlvr.evaluate.run import EvalArguments, evaluate

from ..models import tiny

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "reread.py"
BASE = str(tiny.LTR_BASE)
HOW = {"tasks": ["countdown-ltr"], "limit": 3, "n": 4, "seeds": 1, "prompt_format": "symbols", "max_tokens": 12}
HOW |= {"temperature": 0.8, "top_p": 0.9, "backend": "transformers", "model": BASE}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    return [str(tiny.save_adapter(tmp_path_factory.mktemp("adapter") / str(seed), BASE, seed=seed)) for seed in (0, 1)]


@pytest.fixture
def reread(tmp_path, monkeypatch):
    def run(folder, *flags):
        to = tmp_path / "reread.json"
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(folder), "--to", str(to), *flags])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return json.loads(to.read_text())

    return run


def test_the_samples_of_an_adapter_are_its_own_and_not_the_bases_or_anothers(adapters, reread, tmp_path):
    folder = evaluate(EvalArguments(**HOW, adapter=adapters[0], out=str(tmp_path / "eval")))
    found = reread(folder, "--limit", "9")
    assert (found["samples"], found["backend"]) == (9, "transformers")
    assert found["sampled with"].keys() == {"machine", "release", "commit", "libraries"}
    assert found["gap a token"]["model"]["largest"] < 1e-4
    assert found["gap a token"]["without its adapter"]["mean"] < -0.05
    other = reread(folder, "--adapter", adapters[1])["gap a token"]["model"]
    assert other["mean"] < -0.05
    coarse = reread(folder, "--dtype", "bfloat16")
    assert coarse["read in"] == "bfloat16, cpu"
    assert 1e-4 < coarse["gap a token"]["model"]["largest"] < 0.05


def test_a_model_that_gives_what_is_not_a_number_is_far_off(reread, tmp_path):
    broken = tiny.save_broken(tmp_path / "broken")
    folder = evaluate(
        EvalArguments(**HOW | {"model": str(tiny.save_base(tmp_path / "base"))}, out=str(tmp_path / "eval"))
    )
    assert reread(folder, "--model", str(broken))["gap a token"]["model"]["mean"] < -20


@pytest.mark.parametrize("temperature", [0.8, 0.0])
def test_a_base_stands_alone_and_what_cannot_be_read_is_said(reread, tmp_path, capsys, temperature):
    folder = evaluate(EvalArguments(**HOW | {"temperature": temperature}, out=str(tmp_path / "eval")))
    found = reread(folder)["gap a token"]
    assert list(found) == ["model"]
    assert found["model"]["largest"] < 1e-4
    for asked, said in (((folder, "--longest", "0"), "no sample of at most 0 tokens"), ((tmp_path,), "store.json")):
        with pytest.raises(SystemExit) as ended:
            reread(*asked)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
