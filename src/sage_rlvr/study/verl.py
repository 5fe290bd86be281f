"""A study's trainings on verl: ``sage-rlvr study run FILE --engine verl``. Only the training is verl's: it runs in verl's own
Python, which pins other libraries and has our plug-in (docs/howto/verl.md). Base, data and evaluation are those of any study."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from sage_rlvr.errors import Failed, UserError
from sage_rlvr.files import read_json, read_lines
from sage_rlvr.launch import on_verl
from sage_rlvr.launch.run import RECORD, parse, read_record, settings_of
from sage_rlvr.models import is_adapter, write_whole
from sage_rlvr.models.folders import whole_folder
from sage_rlvr.processes import end_with_parent
from sage_rlvr.provenance import made_with
from sage_rlvr.runs import writer
from sage_rlvr.study.plan import Study
from sage_rlvr.tasks import get_task

PYTHON = "SAGE_VERL_PYTHON"  # the Python that has verl; else the one that runs the study
LOOK_S = 2.0
# what verl logs → what a training's log.jsonl calls it
NAMES = {
    "critic/score/mean": "reward", "actor/pg_loss": "loss", "actor/kl_loss": "kl", "actor/entropy": "entropy",
    "actor/grad_norm": "grad_norm", "actor/lr": "learning_rate", "response_length/mean": "completions/mean_length",
    "response_length/clip_ratio": "completions/clipped_ratio", "timing_s/step": "step_time",
}  # fmt: skip


def python() -> str:
    return os.environ.get(PYTHON, sys.executable)


def check(study: Study) -> None:
    """Refuses, by name, the variants that verl cannot run as they are; then asks verl's Python for what the runs need."""
    reasons: dict[str, list[str]] = {}
    kinds = set()
    with TemporaryDirectory() as folder:
        for variant in study.variants:
            settings = study.settings_of(f"{variant}-s{study.seeds_of(variant)[0]}") | {"model_name_or_path": "base"}
            settings.pop("sft", None)
            recipe = Path(folder, "recipe.yaml")
            recipe.write_text(yaml.safe_dump(settings), encoding="utf-8")
            try:
                asked = parse(["--config", str(recipe), "--output_dir", folder])
                on_verl.check(*asked)
                kinds.add(get_task(asked[0].task).scorer)
            except UserError as e:
                reasons.setdefault(str(e), []).append(variant)
    if reasons:
        named = "; ".join(f"{', '.join(variants)}: {why.rstrip('.')}" for why, variants in reasons.items())
        raise UserError(f"study {study.name} does not run on verl. {named}. Change these, or leave --engine out.")
    _ask("-m", "sage_rlvr.doctor.verl")
    if "math" in kinds:
        _ask("-c", "import math_verify")  # its rewards are judged there


def _ask(*words: str) -> None:
    """verl's Python, called with these words, ends without an error."""
    try:
        found = subprocess.run([python(), *words], capture_output=True, text=True)
    except OSError as e:
        raise UserError(f"{PYTHON}={python()} cannot be started ({e.strerror}): name the Python that has verl.") from e
    if found.returncode:
        wrong = [line.removeprefix("FAIL").strip() for line in found.stdout.splitlines() if line.startswith("FAIL")]
        said = (wrong or found.stderr.strip().splitlines() or ["it said nothing"])[0 if wrong else -1]
        raise UserError(
            f"verl is not ready in {python()} ({said}): install it as docs/howto/verl.md says, and name its Python, "
            f"{PYTHON}=…/bin/python."
        )


def train(recipe: Path, earlier: Sequence[int], go_on: str) -> Path:
    """Trains as the recipe says, from its newest checkpoint where there is one; answers the folder of the weights. ``earlier``:
    steps whose weights are wanted too."""
    run, args, model_args = parse(["--config", str(recipe)])
    on_verl.check(run, args, model_args)
    folder, start = Path(args.output_dir).absolute(), str(model_args.model_name_or_path)
    if is_adapter(start):
        raise UserError(
            f"verl starts from whole weights, and {start} is an adapter: set keep: merged in the SFT stage."
        )
    settings = settings_of(run, args, model_args, "verl")
    if not read_record(folder, settings):
        with writer.only_writer(folder):
            record = {"settings": settings, **made_with()}
            write_whole(folder / RECORD, json.dumps({**record, "finished": False}, indent=1) + "\n")
            longest = on_verl.write_inputs(run, args, start, folder)
            if args.max_steps not in _steps(folder):
                asked = on_verl.overrides(run, args, model_args, folder, start, longest, _gpus())
                _run(on_verl.words(asked), folder, go_on)
            if args.max_steps not in _steps(folder):
                raise Failed(f"verl ended before step {args.max_steps}, and without an error; see its log.")
            for step in (*earlier, args.max_steps):
                _weights(folder, step, start)
            write_whole(folder / RECORD, json.dumps({**record, "finished": True}, indent=1) + "\n")
    return folder / f"checkpoint-{args.max_steps}"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() or 1


# ---- verl's process ------------------------------------------------------------------------------------------------


def _run(words: Sequence[str], folder: Path, go_on: str) -> None:
    """To its end, its numbers copied to log.jsonl on the way. It ends with this process, whatever ends that."""
    log = folder / f"verl-{len(list(folder.glob('verl-*.jsonl')))}.jsonl"  # verl empties the file it is given
    env = os.environ | {"VERL_FILE_LOGGER_PATH": str(log)}
    command = [python(), "-m", "verl.trainer.main_ppo", *words]
    process = subprocess.Popen(command, env=env, preexec_fn=end_with_parent)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what follows is done
    seen = -1
    try:
        while process.poll() is None:
            size = log.stat().st_size if log.exists() else -1
            if size != seen:
                seen = size
                _copy_log(folder)
            time.sleep(LOOK_S)
    finally:
        process.terminate()
        process.wait()
        signal.signal(signal.SIGTERM, before)
        _copy_log(folder)
    if process.returncode:
        raise Failed(
            f"verl ended with code {process.returncode}; its own message stands in this run's log. Its checkpoints are kept: "
            f"{go_on}, and it goes on from step {max(_steps(folder), default=0)}."
        )


def _copy_log(folder: Path) -> None:
    """A step that was taken again after a kill counts as it was taken last."""
    steps: dict[int, dict[str, Any]] = {}
    for file in sorted(folder.glob("verl-*.jsonl"), key=lambda file: int(file.stem.partition("-")[2])):
        for entry in read_lines(file):
            steps = {step: known for step, known in steps.items() if step < entry["step"]}
            steps[entry["step"]] = _entry(entry)
    write_whole(folder / "log.jsonl", "".join(json.dumps(steps[step]) + "\n" for step in sorted(steps)))


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    logged = entry["data"]
    ours = {NAMES.get(name, name.removeprefix("actor/")): value for name, value in logged.items()
            if name in NAMES or "sage/" in name}  # fmt: skip
    return {**ours, "step": entry["step"]}


# ---- its weights ---------------------------------------------------------------------------------------------------


def _steps(folder: Path) -> list[int]:
    """Those of whole checkpoints: verl names the newest in a file that it writes last."""
    tracker = folder / "latest_checkpointed_iteration.txt"
    newest = int(tracker.read_text()) if tracker.is_file() else 0
    found = [int(path.name.rpartition("_")[2]) for path in folder.glob("global_step_*")]
    return sorted(step for step in found if step <= newest)


def _weights(folder: Path, step: int, start: str) -> None:
    """verl's shards as checkpoint-STEP, which transformers, PEFT and vLLM read: its own merger, in its own Python."""
    out = folder / f"checkpoint-{step}"
    if out.is_dir():
        return
    shards = folder / f"global_step_{step}" / "actor"
    with whole_folder(out) as part:
        merger = ["-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(shards)]
        done = subprocess.run([python(), *merger, "--target_dir", str(part)], capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Failed(f"verl's merger could not read {shards} ({last}); the checkpoint is kept.")
        _only_adapter(part, start)


def _only_adapter(part: Path, start: str) -> None:
    """Of a LoRA run the merger writes the frozen weights beside the adapter; these are the start model's."""
    adapter = part / "lora_adapter"
    if not adapter.is_dir():
        return
    for file in part.glob("model*.safetensors*"):
        file.unlink()
    (part / "config.json").unlink(missing_ok=True)
    for file in adapter.iterdir():
        file.rename(part / file.name)
    adapter.rmdir()
    config = read_json(part / "adapter_config.json")
    write_whole(part / "adapter_config.json", json.dumps(config | {"base_model_name_or_path": start}, indent=1) + "\n")
