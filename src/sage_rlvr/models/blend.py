"""Weights on the way from a base to what was trained from it: base + weight · (trained − base), after arXiv 2504.10478.

One training answers for a whole curve of pass@1 against pass@k: weight 0 is the base, 1 the trained model. A LoRA adapter stays
an adapter (its B times the weight, which is the same line), so that several share one engine in an evaluation.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.models.folders import check_free, whole_folder
from sage_rlvr.models.loading import is_adapter, load_model, load_tokenizer, resolved

ADAPTER = "adapter_model.safetensors"
RECORD = "blend.json"  # in the new folder: what it was made of
BESIDE = (  # of an adapter's folder, with its chat template
    "adapter_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip
PLAIN = (True, "gaussian")  # init_lora_weights under which B begins at 0: the adapter began as its base


def blend(
    trained: str | Path, out: str | Path, weight: float, base: str | Path | None = None, force: bool = False
) -> Path:
    """Writes the blend to ``out``: of an adapter's folder an adapter, of full weights full weights in their dtype.

    ``base``: what full weights were trained from; their run.json says it where it is there. An adapter names its own.
    """
    if not 0 <= weight < float("inf"):
        raise UserError(f"weight {weight:g}: 0 is the base, 1 the trained model; give a number from 0 on, such as 0.6.")
    check_free(out, force)
    source = resolved(trained)
    if is_adapter(source):
        if base is not None:
            raise UserError(f"{trained} is an adapter, which names its base itself: leave --base out.")
        _adapter(Path(source), Path(out), weight, force)
    else:
        _full(source, Path(out), weight, resolved(base or _started_from(source)), force)
    return Path(out)


def _adapter(source: Path, out: Path, weight: float, force: bool) -> None:
    from safetensors.torch import load_file, save_file

    if not (source / ADAPTER).is_file():
        raise UserError(f"{source} has no {ADAPTER}: its save was interrupted, so make it again.")
    if (init := read_json(source / "adapter_config.json").get("init_lora_weights", True)) not in PLAIN:
        raise UserError(f"{source} did not begin as its base (init_lora_weights={init!r}): merge it, then blend that.")
    if (began := _settings(source).get("model_name_or_path")) and is_adapter(began):
        raise UserError(f"{source} was trained from another adapter, {began}: merge both, then blend these.")
    weights = load_file(source / ADAPTER)
    other = [name for name in weights if ".lora_A." not in name and ".lora_B." not in name]
    if other:
        raise UserError(f"{source} holds more than LoRA's A and B ({other[0]}): merge it, then blend that.")
    scaled = {name: w * weight if ".lora_B." in name else w for name, w in weights.items()}
    with whole_folder(out, force) as part:
        for file in source.iterdir():
            if (file.is_file() and file.name in BESIDE) or file.suffix == ".jinja":
                shutil.copy2(file, part / file.name)
        save_file(scaled, part / ADAPTER, metadata={"format": "pt"})
        _record(part, trained=str(source), weight=weight)


def _full(source: str, out: Path, weight: float, base: str, force: bool) -> None:
    model, start = load_model(source), load_model(base, dtype="float32")
    own, theirs = model.state_dict(), start.state_dict()
    if odd := [name for name, w in own.items() if name not in theirs or theirs[name].shape != w.shape]:
        raise UserError(f"{source} was not trained from {base}: {odd[0]} differs in shape; name its --base.")
    for name, w in own.items():
        if w.is_floating_point():
            w.copy_(theirs[name].lerp(w.float(), weight))
    with whole_folder(out, force) as part:
        model.save_pretrained(part)
        load_tokenizer(source).save_pretrained(part)
        _record(part, trained=source, base=base, weight=weight)


def _started_from(source: str) -> str:
    """What the training run in this folder says of its base."""
    if not Path(source).is_dir():
        raise UserError(
            f"there is no folder {source}: name what was trained; of a model on the Hub name the --base, too."
        )
    settings = _settings(Path(source))
    base = settings.get("model_name_or_path")
    if not base or settings.get("sft"):  # what an SFT stage made of it is named nowhere
        raise UserError(
            f"{source} holds full weights and does not say what they were trained from: name it with --base."
        )
    return base


def _settings(folder: Path) -> dict[str, Any]:
    """Of the training run that wrote it; empty where it says nothing."""
    record = folder / "run.json"
    return read_json(record).get("settings", {}) if record.is_file() else {}


def _record(folder: Path, **said: Any) -> None:
    (folder / RECORD).write_text(json.dumps(said) + "\n", encoding="utf-8")
