"""TensorBoard, trackio and wandb (offline) get every number of log.jsonl: its name after "train/", its value, its step. Read
back from the files that each of them writes."""

import json
import struct
import sys

import pytest

from sage_rlvr.train.callbacks import HeldOutPassAtK

from . import tiny


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file)).Reload()
    return {(x.step, name): x.value for name in events.Tags()["scalars"] for x in events.Scalars(name)}


def read_trackio(folder):
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("sage", "branch-s0")
    return {(row.get("train/global_step"), name): value for row in rows for name, value in row.items()}


def read_wandb(folder):
    """Its file is LevelDB's log: blocks of 32 KiB, of records with a checksum, a length and 1 (whole) to 4 (the last part)."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, whole, out = file.read_bytes(), 7, b"", {}
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record, whole = Record.FromString(whole), b""
            row = {"/".join(x.nested_key) or x.key: json.loads(x.value_json) for x in record.history.item}
            out |= {(row.get("train/global_step"), name): value for name, value in row.items()}
    return out


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_has_what_the_log_has(folder, tmp_path, monkeypatch, tracker):
    pytest.importorskip(tracker, reason=f"needs {tracker}: pip install -e '.[track]'")
    monkeypatch.chdir(tmp_path)
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    for name, module in list(sys.modules.items()):  # trackio chooses its folder when it is imported
        if name.startswith("trackio") and hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    trainer = tiny.build(folder, tmp_path, guide="branch", report_to=tracker, project="sage", run_name="branch-s0")
    rows = [{"prompt": "1+1=", "answer": "2"}]
    trainer.add_callback(HeldOutPassAtK(trainer, rows, tiny.hash_reward, every=2, n=2))
    trainer.train()
    if tracker == "wandb":  # transformers ends the others; this one's own process writes the file
        sys.modules["wandb"].teardown()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    logged = {
        (line["step"], f"train/{name}"): value
        for line in lines
        for name, value in line.items()
        if name != "step" and "train_runtime" not in line  # the summary at the end
    }
    stored = globals()[f"read_{tracker}"](tmp_path)
    assert {"train/kl_ref", "train/sage/q_mean", "train/held_out/pass@1"} <= {name for _, name in logged}
    assert {place: stored.get(place) for place in logged} == pytest.approx(logged, rel=1e-6)
