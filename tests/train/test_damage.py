"""Every file of a real checkpoint, damaged in every way: the one before is taken, said, and ends where it would have."""

import json
import shutil
from pathlib import Path

import pytest
from peft import LoraConfig
from transformers.trainer_utils import set_seed
from trl import SFTConfig

from sage_rlvr import UserError
from sage_rlvr.launch.sft import SFTRun, StageTrainer, run_sft
from sage_rlvr.runs import manifest
from sage_rlvr.runs.checkpoint import last_complete, refuse_damaged, take_last_complete

from . import tiny

DAMAGES = {
    "halved": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": Path.unlink,
    "flipped": lambda path: path.write_bytes(flipped(path.read_bytes())),
}
SAVING = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": 2,
          "steps_per_generation": 4}  # fmt: skip
KINDS = ("full", "lora", "sft")
EXPECTED = {
    "full": {"model.safetensors", "sage_state_0.pt"},
    "lora": {"adapter_model.safetensors", "sage_state_0.pt"},
    "sft": {"adapter_model.safetensors", "sage_state_0.pt"},
}


def flipped(content):
    """One bit, in the middle."""
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def logged(history):
    clock = {*tiny.TIMES, "train_runtime", "train_samples_per_second", "train_steps_per_second"}
    return [{k: v for k, v in e.items() if k not in clock} for e in history if "loss" in e]


class Seen:
    """StageTrainer, remembering the last one made."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr("sage_rlvr.launch.sft.StageTrainer", self)
        self.trainer = None

    def __call__(self, *args, **kwargs):
        self.trainer = StageTrainer(*args, **kwargs)
        return self.trainer


def trained(kind, model, out, monkeypatch):
    """Runs the training in ``out``, from its newest whole checkpoint; what it logged."""
    if kind == "sft":
        seen = Seen(monkeypatch)
        config = SFTConfig(
            output_dir=str(out), max_steps=4, save_steps=1, logging_steps=1, learning_rate=1e-2, max_length=64,
            per_device_train_batch_size=4, bf16=False, use_cpu=True, report_to="none", disable_tqdm=True,
            gradient_checkpointing=False,
        )  # fmt: skip
        rows = [{"prompt": f"{i}+{i}=", "completion": str(2 * i)} for i in range(24)]
        run_sft(SFTRun(model=model, keep="adapter", lora_r=4, lora_dropout=0.1), config, rows)
        return logged(seen.trainer.state.log_history)
    set_seed(7)
    args = tiny.config(tiny.SAGEConfig, out, guide="random", **SAVING)
    peft = LoraConfig(r=4, target_modules=["q_proj", "up_proj"]) if kind == "lora" else None
    trainer = tiny.SAGETrainer(model, tiny.hash_reward, args, tiny.dataset(12), peft_config=peft)
    trainer.train(resume_from_checkpoint=True)
    return logged(trainer.state.log_history)


@pytest.fixture(scope="module", params=KINDS)
def whole(request, folder, tmp_path_factory):
    """A finished run, and what it logged."""
    out = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        return request.param, out, trained(request.param, folder, out, patch)


def copied(whole, to):
    """As the run was at its third step: two checkpoints before the newest."""
    shutil.copytree(whole, to, ignore=shutil.ignore_patterns("checkpoint-4", "adapter", "sft.json"))
    if (whole / "sft.json").is_file():
        settings = json.loads((whole / "sft.json").read_text())["settings"]
        (to / "sft.json").write_text(json.dumps({"settings": settings}))
    return to


def files(checkpoint):
    return sorted(p for p in checkpoint.rglob("*") if p.is_file())


def damaged(path, damage):
    before = path.read_bytes() if path.is_file() else None
    DAMAGES[damage](path)
    return before is not None and (not path.exists() or path.read_bytes() != before)


def test_any_damage_to_any_file_is_seen_and_named(whole, tmp_path, capsys):
    kind, out, _ = whole
    checkpoint = out / "checkpoint-3"
    names = {str(p.relative_to(checkpoint)) for p in files(checkpoint)}
    common = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin", manifest.NAME}
    assert names >= EXPECTED[kind] | common
    for i, name in enumerate(sorted(names)):
        for damage in DAMAGES:
            run = tmp_path / f"{i}-{damage}"
            shutil.copytree(checkpoint, run / "checkpoint-3")
            (run / "checkpoint-2").symlink_to(out / "checkpoint-2")
            assert damaged(run / "checkpoint-3" / name, damage)
            harmless = name == "README.md"
            taken = take_last_complete(run)
            assert Path(taken).name == ("checkpoint-3" if harmless else "checkpoint-2"), (name, damage)
            said = capsys.readouterr().out
            if not harmless:
                assert "checkpoint-3 is damaged: " in said
                assert name == manifest.NAME or name in said
                assert said.rstrip().endswith("going on from checkpoint-2")
                assert files(run / "damaged" / "checkpoint-3"), "nothing is thrown away"
                with pytest.raises(UserError, match=r"is damaged: .* takes the newest whole one"):
                    refuse_damaged(run / "damaged" / "checkpoint-3")


SPOILT = {
    "full": [("model.safetensors", "halved"), ("optimizer.pt", "emptied"), ("sage_state_0.pt", "halved")],
    "lora": [("adapter_model.safetensors", "flipped"), ("scheduler.pt", "deleted"), ("rng_state.pth", "halved")],
    "sft": [("adapter_model.safetensors", "halved"), ("optimizer.pt", "deleted"), ("sage_state_0.pt", "emptied")],
}


def test_the_run_goes_on_from_the_one_before_as_if_it_were_the_newest(whole, folder, tmp_path, monkeypatch):
    """The same numbers as of the run that nothing happened to."""
    kind, out, expected = whole
    assert len(expected) == 4
    for i, (name, damage) in enumerate(SPOILT[kind]):
        run = copied(out, tmp_path / str(i))
        assert damaged(run / "checkpoint-3" / name, damage)
        assert trained(kind, folder, run, monkeypatch) == expected
        assert last_complete(run).endswith("checkpoint-4")
        assert (run / "damaged" / "checkpoint-3").is_dir()
        assert manifest.fault(run / "checkpoint-3") is None, "written again"


def test_with_two_damaged_the_third_is_taken_and_with_all_damaged_the_run_starts(
    whole, folder, tmp_path, monkeypatch, capsys
):
    kind, out, expected = whole
    run = copied(out, tmp_path / "run")
    for step in (3, 2):
        damaged(run / f"checkpoint-{step}" / "optimizer.pt", "halved")
    assert last_complete(run).endswith("checkpoint-1")
    damaged(run / "checkpoint-1" / "scheduler.pt", "emptied")
    assert last_complete(run) is None
    if kind == "lora":
        return  # its adapter is drawn anew by whoever starts it
    assert trained(kind, folder, run, monkeypatch) == expected
    said = capsys.readouterr().out
    assert said.count("there is no other, the run starts from its beginning") == 3


def test_one_cut_short_is_removed_where_there_is_a_whole_one_and_kept_where_there_is_none(whole, tmp_path, capsys):
    _, out, _ = whole
    shutil.copytree(out / "checkpoint-3", tmp_path / "checkpoint-3")
    manifest.begin(tmp_path / "checkpoint-3")  # as a save does first
    assert take_last_complete(tmp_path) is None
    assert "was cut short while it was written; it is kept as" in capsys.readouterr().out
    assert (tmp_path / "damaged" / "checkpoint-3" / "optimizer.pt").is_file()
    shutil.copytree(out / "checkpoint-2", tmp_path / "checkpoint-2")
    shutil.copytree(out / "checkpoint-3", tmp_path / "checkpoint-3")
    manifest.begin(tmp_path / "checkpoint-3")
    assert take_last_complete(tmp_path) == str(tmp_path / "checkpoint-2")
    assert not (tmp_path / "checkpoint-3").exists()


def test_a_list_covers_files_of_any_size_and_depth(tmp_path, monkeypatch):
    """Sums over chunks: exactly one, one and a byte, many; a bit anywhere is seen."""
    monkeypatch.setattr(manifest, "CHUNK", 64)
    checkpoint = tmp_path / "checkpoint-1"
    manifest.begin(checkpoint)
    assert manifest.fault(checkpoint) == manifest.CUT_SHORT
    (checkpoint / "global_step1").mkdir()
    sizes = {"empty": 0, "one": 64, "more": 65, "global_step1/many": 1000}
    for name, size in sizes.items():
        (checkpoint / name).write_bytes(bytes(i % 251 for i in range(size)))
    manifest.finish(checkpoint)
    assert manifest.fault(checkpoint) is None
    for name, size in sizes.items():
        content = (checkpoint / name).read_bytes()
        for at in range(0, size, 7):
            (checkpoint / name).write_bytes(content[:at] + bytes([content[at] ^ 128]) + content[at + 1 :])
            assert manifest.fault(checkpoint) == f"is damaged: {name} is not what was written"
        if size >= 192:  # two chunks changed places
            (checkpoint / name).write_bytes(content[64:128] + content[:64] + content[128:])
            assert manifest.fault(checkpoint) == f"is damaged: {name} is not what was written"
        (checkpoint / name).write_bytes(content)
    assert manifest.fault(checkpoint) is None
    for text in ("[]", "{}", '{"files": {"one": 3}}', "[" * 100_000, '{"files": [1]}'):
        (checkpoint / manifest.NAME).write_text(text)
        assert "is damaged" in manifest.fault(checkpoint)


def test_older_checkpoints_are_deleted_only_when_the_new_one_is_whole(folder, tmp_path, monkeypatch):
    """With one kept: at the moment of the list the one before is still there."""
    there = []
    real = manifest.finish
    monkeypatch.setattr(
        "sage_rlvr.runs.checkpoint.finish",
        lambda checkpoint: (there.append(sorted(p.name for p in tmp_path.glob("checkpoint-*"))), real(checkpoint)),
    )
    trainer = tiny.build(folder, tmp_path, **(SAVING | {"save_total_limit": 1, "max_steps": 3}))
    trainer.train()
    assert there == [["checkpoint-1"], ["checkpoint-1", "checkpoint-2"], ["checkpoint-2", "checkpoint-3"]]
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
