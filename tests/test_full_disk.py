"""A disk that is really full: a file system of some kilobytes, in a namespace of the test's own."""

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from sage_rlvr.cli import main
from sage_rlvr.models import scratch_model
from tests import forked
from tests.study.small import SMALL

ENTER = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
GUARD_S = 1200
OWN_USERS, OWN_MOUNTS = 0x10000000, 0x00020000  # CLONE_NEWUSER, CLONE_NEWNS


def enter():
    """This process alone goes where it may mount, as ENTER's would: root there is who we are."""
    who, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(OWN_USERS | OWN_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {who} 1"), ("gid_map", f"0 {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def on_a_small_disk(disk, model, recipe):
    """The folder is the disk; it is made larger, and the same command goes on."""
    enter()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60k", "none", disk], check=True)

    def remount(size):
        subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)

    train = ["train", "--config", recipe, "--output_dir", f"{disk}/run"]
    sample = ["eval", "--model", model, "--tasks", "countdown-ltr", "--n", "64", "--seeds", "1", "--limit", "8",
              "--max_tokens", "10", "--temperature", "1", "--prompt_format", "symbols", "--out", f"{disk}/eval",
              "--save_every_s", "0"]  # fmt: skip
    told = [main(sample)]
    remount("400k")
    told.append(main(train))
    remount("40m")
    told += [main(sample), main(train)]
    log = [json.loads(line)["step"] for line in Path(disk, "run", "log.jsonl").read_text().splitlines()]
    tables = [pq.read_table(p, columns=["problem", "index"]) for p in Path(disk, "eval", "samples").glob("*.parquet")]
    rows = [(r["problem"], r["index"]) for t in tables for r in t.to_pylist()]
    print("FOUND", json.dumps([told, log, len(rows), len({*rows})]))


@pytest.mark.slow
def test_training_and_evaluation_say_so_and_go_on(tmp_path):
    if shutil.which("unshare") is None or subprocess.run([*ENTER, "mount -t tmpfs none /mnt"], check=False).returncode:
        pytest.skip("this system lets us mount nothing")
    model = scratch_model(tmp_path / "model", **SMALL["base"]["scratch"])
    recipe = {"model_name_or_path": str(model), **SMALL["train"], "save_total_limit": None, "max_steps": 8}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    disk = tmp_path / "disk"
    disk.mkdir()
    done = forked.run(on_a_small_disk, str(disk), str(model), str(tmp_path / "recipe.yaml"), timeout=GUARD_S)
    line = next((x for x in done.stdout.splitlines() if x.startswith("FOUND ")), None)
    assert line, done.stdout[-1000:] + done.stderr[-3000:]
    steps = "[1, 2, 3, 4, 5, 6, 7, 8, 8]"  # each once; the last line is the run's summary
    assert line == f"FOUND [[1, 1, 0, 0], {steps}, 512, 512]", done.stderr[-3000:]
    said = [x for x in done.stderr.splitlines() if x.startswith("sage-rlvr")]
    assert len(said) == 2, said
    assert all("the disk is full" in x and "run the same command again" in x for x in said)
    assert "Traceback" not in done.stderr
