"""A file that happens to lie in the working directory is not run, whatever its name: only --import reads from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sage_rlvr.cli import VERBS
from tests.study.small import SMALL

# what the libraries below look for when it is there
NAMES = (
    "vllm", "wandb", "flash_attn", "flash_attn_interface", "trackio", "tensorboard", "tensorboardX", "mlflow", "comet_ml",
    "bitsandbytes", "deepspeed", "kernels", "liger_kernel", "reasoning_gym", "gguf", "verl", "ray", "apex", "xformers",
    "optimum", "tiktoken", "sentencepiece", "IPython", "clearml", "swanlab", "mergekit", "unsloth", "torch_xla",
    "sitecustomize_of_mine", "jmespath", "codecarbon", "neptune", "dvclive", "aim", "ftfy", "spqr_quant",
)  # fmt: skip
GUARD_S = 1200


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A working directory full of such files, and a study run there: its jobs, its verifier."""
    folder = tmp_path_factory.mktemp("planted")
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"import os\nos.mkdir({str(folder / f'ran-{name}')!r})\nraise ImportError({name!r})\n"
        )
    study = SMALL | {"variants": {"grpo": {}}, "train": SMALL["train"] | {"max_steps": 1}}
    study["base"] = SMALL["base"] | {"sft": SMALL["base"]["sft"] | {"max_steps": 1}}
    (folder / "small.yaml").write_text(yaml.safe_dump(study))
    done = shell(
        folder, [sys.executable, "-m", "sage_rlvr.cli", "study", "run", "small.yaml", "--out", "out", "--jobs", "1"]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def shell(folder, command, **environment):
    own = {k: v for k, v in os.environ.items() if k != "SAGE_RLVR_IMPORT"}
    paths = [p for p in own.get("PYTHONPATH", "").split(os.pathsep) if p]  # what the tests' own user gave stays
    own |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **environment}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=GUARD_S)


def ran(folder):
    return sorted(p.name for p in Path(folder).glob("ran-*"))


COMMANDS = """
demo --help | doctor | doctor --config small-recipe.yaml | plan --config small-recipe.yaml | lab --out lab
tasks | tasks show countdown-ltr 1 | train --config small-recipe.yaml --output_dir again --use_cpu true --max_steps 1
eval --model out/base/sft/model --tasks countdown-ltr --n 1 --seeds 1 --limit 2 --max_tokens 4 --prompt_format symbols --out one
results one | compare one out/base/eval | analyze patterns one | analyze perplexity one --base out/base/eval --limit 1
trace one --guide branch --reference out/base/sft/model --checkpoints out/base/sft/model --limit 1 --per_problem 1
tables table1 one | report one --out page.html | explore --help | study table out | study report out | recipes branch
train --config ranks.yaml --accelerate_config cpu --num_processes 2
export out/base/sft/model --out exported | merge out/base/sft/model --out merged
blend out/grpo-s0/train --weight 0.5 --base out/base/sft/model --out blended
"""
# as the console script has it: one process, nothing put on the path. The lab takes two steps: what it imports is there by then
DRIVER = """
import sys
from sage_rlvr.cli import main
from sage_rlvr.show import console_lab
console_lab.STEPS = 2
for line in sys.stdin:
    try:
        main(line.split())
    except SystemExit:
        pass
"""


@pytest.mark.slow
def test_no_verb_runs_what_lies_in_the_working_directory(planted):
    assert ran(planted) == [], "the study's own processes"
    recipe = {"model_name_or_path": "out/base/sft/model", **SMALL["train"], "output_dir": "again"}
    (planted / "small-recipe.yaml").write_text(yaml.safe_dump(recipe))
    of_two = recipe | {"output_dir": "ranks", "max_steps": 1, "per_device_train_batch_size": 8}
    (planted / "ranks.yaml").write_text(yaml.safe_dump(of_two))
    commands = [c.strip() for line in COMMANDS.strip().splitlines() for c in line.split("|")]
    assert {c.split()[0] for c in commands} == set(VERBS)
    driver = [sys.executable, "-P", "-c", DRIVER]
    own = {k: v for k, v in os.environ.items() if k != "SAGE_RLVR_IMPORT"} | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(driver, cwd=planted, env=own, input="\n".join(commands), capture_output=True, text=True,
                          check=False, timeout=GUARD_S)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for made in (
        "lab",
        "again/run.json",
        "one/results.json",
        "one/trace",
        "page.html",
        "exported/config.json",
        "blended/blend.json",
    ):
        assert (planted / made).exists(), f"{made}: the verb did not come as far as its work\n{done.stderr[-3000:]}"
    assert done.stdout.count("trained: ranks") == 1, (
        "of two processes, python -m sage_rlvr.cli each, one does the talking"
    )
    assert json.loads((planted / "ranks" / "run.json").read_text())["finished"] is True
    assert ran(planted) == []


@pytest.mark.slow  # a faster one: tests/test_cli.py
def test_import_reads_from_there_and_pythonpath_stays(tmp_path):
    (tmp_path / "mine.py").write_text("import os, sys\nprint('mine was read, from place', sys.path.index(os.getcwd()))")
    here = [sys.executable, "-m", "sage_rlvr.cli"]
    for flag in (["--import", "mine"], ["--import=mine"]):
        said = shell(tmp_path, [*here, *flag, "recipes"]).stdout
        assert "mine was read" in said
        assert "from place 0" not in said, "behind all that is installed"
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    find = "from sage_rlvr.anchor import make_guide\nmake_guide('mine:Guide')"
    assert "mine was read" in shell(tmp_path, [sys.executable, "-P", "-c", find], PYTHONPATH=paths).stdout
    said = shell(tmp_path, [sys.executable, "-P", "-c", find]).stderr
    assert "sage-rlvr --import MODULE" in said
    shown = shell(tmp_path, [*here, "--import", "mine", "recipes"], PYTHONPATH=paths)
    assert "mine was read, from place 0" in shown.stdout, (
        "PYTHONPATH holds the working directory: it is the user's word"
    )
