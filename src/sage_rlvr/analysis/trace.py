"""``sage-rlvr trace``: stored completions read again through checkpoints, token by token, for the explorer.

FOLDER/trace/_trace.json    guide, reference, checkpoints
FOLDER/trace/*.parquet     one row a sample and checkpoint: token texts, log π, log π_ref, entropy, q, penalty
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from sage_rlvr.analysis.pieces import token_pieces
from sage_rlvr.analysis.records import checkpoints as checkpoints_in
from sage_rlvr.analysis.records import read_record, training_of
from sage_rlvr.analysis.scoring import ModelSource, Prompts, Reading, Text, read_texts, source_of
from sage_rlvr.analysis.shards import digest, read_shards, sweep, write_shard
from sage_rlvr.analysis.verdicts import rows as judged_rows
from sage_rlvr.anchor import Guide, Signals, anchor_penalty, make_guide, tellable
from sage_rlvr.errors import UserError
from sage_rlvr.models import write_whole
from sage_rlvr.models.loading import is_adapter
from sage_rlvr.store import SampleStore
from sage_rlvr.store.settings import differences

_FLOATS = pa.list_(pa.float32())
SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("problem", pa.string()),
        ("seed", pa.int64()),
        ("index", pa.int32()),
        ("checkpoint", pa.string()),
        ("step", pa.int64()),  # null: not known
        ("right", pa.bool_()),
        ("digest", pa.int64()),
        ("tokens", pa.list_(pa.string())),  # pieces; together they are the completion
        ("logps", _FLOATS),
        ("ref_logps", _FLOATS),
        ("entropies", _FLOATS),
        ("q", _FLOATS),
        ("penalty", _FLOATS),  # k3 toward q·π_ref
    ]
)
SHARD = 64  # rows that a kill may cost


@dataclass(frozen=True)
class Checkpoint:
    label: str
    source: ModelSource
    step: int | None
    max_steps: int | None


@dataclass
class Traced:
    folder: Path
    samples: int
    checkpoints: list[str]
    written: int  # rows that were not there before
    settings: dict[str, Any]
    notes: list[str]


def trace(
    run: str | Path,
    checkpoints: Sequence[str | Path] | None = None,
    reference: str | Path | None = None,
    guide: str | None = None,
    guide_args: dict[str, Any] | None = None,
    tasks: Sequence[str] | None = None,
    problems: Sequence[str] | None = None,
    limit: int = 20,
    per_problem: int = 8,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    batch_tokens: int | None = None,
    temperature: float = 1.0,
    dtype: str = "auto",
    device: str | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Traced:
    """Reads ``per_problem`` completions of each of the first ``limit`` problems a task through every checkpoint.

    A training folder as checkpoint stands for its checkpoint-N folders and its final weights; none: the sampled model.
    Guide and reference are the training run's unless said. ``temperature`` is that of training.
    """
    store = SampleStore(run, readonly=True)
    points, notes = expand(checkpoints or [source_or_fail(store)])
    record = next((r for c in checkpoints or [run] for r in [_record_near(c)] if r), None)
    anchor, name, args = _guide(guide, guide_args, record)
    origin = source_of(reference) if reference else _reference(points, record)
    target = Path(out) if out else Path(run, "trace")
    settings = {
        "guide": name, "guide_args": anchor.settings() if anchor else args, "reference": asdict(origin),
        "temperature": temperature, "estimator": "k3", "seed": seed,
    }  # fmt: skip
    _keep_settings(target, settings, points)
    chosen = select(store, tasks, problems, limit, per_problem)
    todo = _todo(target, chosen, points)
    needed = {_key(r): r for rows in todo.values() for r in rows}
    tokenizer = source_of(run).tokenizer() if store.settings.get("model") else points[0].source.tokenizer()
    prompts = Prompts(store, tokenizer, data_dir)
    texts = {k: Text(prompts(r["task"], r["problem"]), tuple(r["token_ids"])) for k, r in needed.items()}
    read = partial(_read_all, batch_tokens=batch_tokens, temperature=temperature)
    ref = dict(read(origin.load(dtype, device), texts)) if needed else {}
    written, total = 0, sum(map(len, todo.values()))
    for point in points:
        if not todo[point.label]:
            continue
        rows = {_key(r): r for r in todo[point.label]}
        waiting = []
        for key, own in read(point.source.load(dtype, device), {k: texts[k] for k in rows}):
            waiting.append(_row(rows[key], point, own, ref[key], anchor, tokenizer, seed))
            written += 1
            if len(waiting) == SHARD or written == total:
                write_shard(target, waiting, SCHEMA)
                waiting = []
                if progress:
                    progress(written, total)
        if waiting:
            write_shard(target, waiting, SCHEMA)
    return Traced(target, len(chosen), [c.label for c in points], written, settings, notes)


def _todo(target: Path, chosen: list[dict[str, Any]], points: Sequence[Checkpoint]) -> dict[str, list[dict[str, Any]]]:
    """Checkpoint → samples that were not read through it yet."""
    rows = read_shards(target, SCHEMA, [*_KEY, "checkpoint", "digest"])
    done = {(*_key(r), r["checkpoint"]): r["digest"] for r in rows}
    for r in chosen:
        if any(done.get((*_key(r), c.label), r["digest"]) != r["digest"] for c in points):
            raise UserError(
                f"{target} traces other samples than the store now has; remove that folder and trace again."
            )
    return {c.label: [r for r in chosen if (*_key(r), c.label) not in done] for c in points}


_KEY = ("task", "problem", "seed", "index")


def _key(row: dict[str, Any]) -> tuple[str, str, int, int]:
    return row["task"], row["problem"], row["seed"], row["index"]


def _read_all(
    model: Any, texts: dict[tuple[str, str, int, int], Text], batch_tokens: int | None, temperature: float
) -> Iterator[tuple[tuple[str, str, int, int], Reading]]:
    keys = list(texts)
    for batch in read_texts(model, list(texts.values()), batch_tokens, temperature):
        for i, reading in batch:
            yield keys[i], reading


def _row(
    sample: dict[str, Any],
    point: Checkpoint,
    own: Reading,
    ref: Reading,
    guide: Guide | None,
    tokenizer: Any,
    seed: int,
) -> dict[str, Any]:
    """All tensors (1, T): a guide may normalise within a completion, and padding would be in its way."""
    signals = Signals(
        logps=own.logps[None],
        ref_logps=ref.logps[None],
        mask=torch.ones(1, len(own.logps)),
        entropies=own.entropies[None],
        ref_entropies=ref.entropies[None],
        step=point.step or 0,
        max_steps=point.max_steps or max(point.step or 1, 1),
        generator=torch.Generator().manual_seed(seed),
        rows=torch.tensor([_address(sample)]),
        rewards=torch.tensor([float(sample["right"])]),
    )
    log_q = guide(signals) if guide else torch.zeros_like(signals.logps)
    penalty = anchor_penalty(signals.logps, signals.ref_logps, tellable(log_q), "k3")
    return {k: sample[k] for k in (*_KEY, "right", "digest")} | {
        "checkpoint": point.label,
        "step": point.step,
        "tokens": token_pieces(tokenizer, sample["token_ids"], sample["completion"]),
        "logps": own.logps.tolist(),
        "ref_logps": ref.logps.tolist(),
        "entropies": own.entropies.tolist(),
        "q": tellable(log_q[0]).exp().tolist(),
        "penalty": penalty[0].tolist(),
    }


def _address(sample: dict[str, Any]) -> int:
    """A stochastic guide's noise is the sample's own, whoever else is traced."""
    return int.from_bytes(blake2b(repr(_key(sample)).encode(), digest_size=7).digest(), "big")


def select(
    store: SampleStore, tasks: Sequence[str] | None, problems: Sequence[str] | None, limit: int, per_problem: int
) -> list[dict[str, Any]]:
    """The first ``limit`` problems of each task; of each, as many right as wrong completions while there are both."""
    kept: dict[tuple[str, str], list[list[dict[str, Any]]]] = {}
    for row in judged_rows(store, ["token_ids", "completion"]):
        place = (row["task"], row["problem"])
        if (
            (tasks and row["task"] not in tasks)
            or (problems and row["problem"] not in problems)
            or not row["token_ids"]
        ):
            continue
        group = kept.setdefault(place, [[], []])[not row["right"]]
        group.append(row | {"digest": digest(row["token_ids"])})
        group.sort(key=lambda r: (r["seed"], r["index"]))
        del group[per_problem:]  # memory does not grow with n
    ranks = {(t, p): i for t, asked in store.problems.items() for i, p in enumerate(asked.problems)}
    chosen: list[dict[str, Any]] = []
    for task in dict.fromkeys(t for t, _ in kept):
        for place in sorted((x for x in kept if x[0] == task), key=lambda x: (ranks.get(x, 1 << 30), x[1]))[:limit]:
            right, wrong = kept[place]
            take = min(len(right), max(per_problem - per_problem // 2, per_problem - len(wrong)))
            chosen += [*right[:take], *wrong[: per_problem - take]]
    if not chosen:
        raise UserError(f"{store.folder} has no completion of those tasks and problems; check their names.")
    return chosen


# ---- which models, which guide -------------------------------------------------------------------------------------


def source_or_fail(store: SampleStore) -> str:
    found = store.settings.get("adapter") or store.settings.get("model")
    if not found:
        raise UserError(f"{store.folder} does not say which model was sampled; name a checkpoint to read it through.")
    return found


def expand(given: Sequence[str | Path]) -> tuple[list[Checkpoint], list[str]]:
    """Checkpoints in order of their steps; one without weights is named in the notes and the rest is read."""
    found: list[Checkpoint] = []
    notes: list[str] = []
    for where in given:
        record = _record_near(where)
        planned = record["settings"].get("max_steps") if record else None
        for label, folder, step in _candidates(Path(where), planned if record and record.get("finished") else None):
            if folder.is_dir() and not _has_weights(folder):
                notes.append(f"{folder} holds no weights (its save was interrupted, or it was pruned): left out")
                continue
            taken = {c.label for c in found}
            named = source_of(folder if folder.exists() else str(where))
            found.append(Checkpoint(str(where) if label in taken else label, named, step, planned))
    if not found:
        raise UserError(f"trace: no checkpoint to read through ({'; '.join(notes) or 'none was named'}).")
    return found, notes


def _candidates(path: Path, last_step: int | None) -> list[tuple[str, Path, int | None]]:
    """(label, folder, step): a training folder's checkpoints and final weights, or the one checkpoint this is."""
    if inside := checkpoints_in(path):
        out: list[tuple[str, Path, int | None]] = []
        for c in inside:
            out.append((f"{path.name}/{c.name}", c, int(c.name.rpartition("-")[2])))
        return [*out, (path.name, path, last_step)] if _has_weights(path) else out
    said = re.fullmatch(r"checkpoint-(\d+)", path.name)
    label = f"{path.resolve().parent.name}/{path.name}" if said else (path.name or str(path))
    return [(label, path, int(said[1]) if said else None)]


def _has_weights(folder: Path) -> bool:
    """Or stands for some: an evaluation names the model it sampled."""
    return is_adapter(folder) or any((folder / f).is_file() for f in ("config.json", "store.json"))


def _record_near(where: str | Path) -> dict[str, Any] | None:
    """run.json of a training folder, of the one a checkpoint lies in, or of the one behind an evaluation."""
    home = training_of(where) if Path(where).is_dir() else None
    record = read_record(home) if home else None
    return record | {"folder": str(home)} if record else None


def _guide(
    name: str | None, args: dict[str, Any] | None, record: dict[str, Any] | None
) -> tuple[Guide | None, str, dict[str, Any]]:
    own = (record or {}).get("settings", {})
    if name is None:
        name = own.get("guide") or "branch"
        args = {**(own.get("guide_args") or {}), **(args or {})}
    return (None if name == "none" else make_guide(name, **(args or {}))), name, args or {}


def _reference(points: Sequence[Checkpoint], record: dict[str, Any] | None) -> ModelSource:
    """What training was leashed to: the model after SFT where there was an SFT stage, else the one RL began with."""
    if record:
        own = record["settings"]
        sft = Path(own["sft_dir"]) if own.get("sft_dir") else Path(record["folder"]).resolve().parent / "sft"
        if own.get("sft") and not sft.exists():
            raise UserError(
                f"the SFT stage that {record['folder']} began with is not at {sft}; name it with reference."
            )
        if own.get("sft"):
            return source_of(sft)
        if own.get("model_name_or_path"):
            return source_of(own["model_name_or_path"])
    adapted = next((c.source for c in points if c.source.adapter), None)
    if adapted:
        return ModelSource(adapted.model)
    raise UserError("trace needs the reference model that training was leashed to: name it with reference.")


def _keep_settings(target: Path, settings: dict[str, Any], points: Sequence[Checkpoint]) -> None:
    """Rows made with another guide or reference never share a folder."""
    path = target / "_trace.json"
    settings = json.loads(json.dumps(settings, default=str))
    old: dict[str, Any] = {}
    if path.is_file():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
            differs = differences(old["settings"], settings)
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise UserError(f"{path} cannot be read ({e}); remove {target} and trace again.") from e
        if differs:
            field, (was, now) = next(iter(differs.items()))
            raise UserError(
                f"{target} was traced with {field}={was!r} and this call has {now!r}; give --out another folder, or set it back."
            )
    known = {c["label"]: c for c in old.get("checkpoints", [])}
    known |= {c.label: {"label": c.label, "step": c.step, "source": c.source.name} for c in points}
    ordered = sorted(known.values(), key=lambda c: (c["step"] is None, c["step"] or 0))
    try:
        target.mkdir(parents=True, exist_ok=True)
        sweep(target)
        write_whole(
            path, json.dumps({"settings": settings, "checkpoints": ordered}, indent=1, ensure_ascii=False) + "\n"
        )
    except OSError as e:
        raise UserError(f"{target} cannot be written ({e.strerror}); name one you can write to with --out.") from e
