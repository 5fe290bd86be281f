"""A disk that is really full: a file system of some kilobytes, in a namespace of the test's own."""

import shutil
import subprocess
import sys
import textwrap

import pytest
import yaml

from sage_rlvr.models import scratch_model
from tests.study.small import SMALL

ENTER = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
GUARD_S = 1200
# the folder is the disk; it is made larger, and the same command goes on
SCRIPT = """
import json, subprocess, sys
from pathlib import Path
from sage_rlvr.cli import main

disk, model, recipe = sys.argv[1:]
remount = lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)
train = ["train", "--config", recipe, "--output_dir", f"{disk}/run"]
sample = ["eval", "--model", model, "--tasks", "countdown-ltr", "--n", "64", "--seeds", "1", "--limit", "8", "--max_tokens", "10",
          "--temperature", "1", "--prompt_format", "symbols", "--out", f"{disk}/eval", "--save_every_s", "0"]
told = [main(sample)]
remount("400k")
told.append(main(train))
remount("40m")
told += [main(sample), main(train)]
log = [json.loads(line)["step"] for line in open(f"{disk}/run/log.jsonl")]
import pyarrow.parquet as pq
tables = [pq.read_table(p, columns=["problem", "index"]) for p in Path(disk, "eval", "samples").glob("*.parquet")]
rows = [(r["problem"], r["index"]) for t in tables for r in t.to_pylist()]
print("FOUND", json.dumps([told, log, len(rows), len({*rows})]))
"""


@pytest.mark.slow
def test_training_and_evaluation_say_so_and_go_on(tmp_path):
    if shutil.which("unshare") is None or subprocess.run([*ENTER, "mount -t tmpfs none /mnt"], check=False).returncode:
        pytest.skip("this system lets us mount nothing")
    model = scratch_model(tmp_path / "model", **SMALL["base"]["scratch"])
    recipe = {"model_name_or_path": str(model), **SMALL["train"], "save_total_limit": None, "max_steps": 8}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    disk = tmp_path / "disk"
    disk.mkdir()
    command = f"exec {sys.executable} {tmp_path}/script.py {disk} {model} {tmp_path}/recipe.yaml"
    inside = f"mount -t tmpfs -o size=60k none {disk} && {command}"
    done = subprocess.run([*ENTER, inside], capture_output=True, text=True, check=False, timeout=GUARD_S)
    line = next((x for x in done.stdout.splitlines() if x.startswith("FOUND ")), None)
    assert line, done.stdout[-1000:] + done.stderr[-3000:]
    steps = "[1, 2, 3, 4, 5, 6, 7, 8, 8]"  # each once; the last line is the run's summary
    assert line == f"FOUND [[1, 1, 0, 0], {steps}, 512, 512]", done.stderr[-3000:]
    said = [x for x in done.stderr.splitlines() if x.startswith("sage-rlvr")]
    assert len(said) == 2, said
    assert all("the disk is full" in x and "run the same command again" in x for x in said)
    assert "Traceback" not in done.stderr
