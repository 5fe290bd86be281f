"""``sage-rlvr trace``: stored completions read again through checkpoints, token by token, for the explorer.

FOLDER/trace/_trace.json    guide, reference, checkpoints, and what q is
FOLDER/trace/*.parquet     one row per sample and checkpoint: token texts, log π, log π_ref, entropy, q, penalty
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor

from sage_rlvr.analysis.pieces import token_pieces
from sage_rlvr.analysis.records import checkpoints as checkpoints_in
from sage_rlvr.analysis.records import read_record, trainer_state, training_of
from sage_rlvr.analysis.scoring import ModelSource, Prompts, Reading, Text, read_texts, source_of
from sage_rlvr.analysis.shaped import Anchor, anchor_of, log_q
from sage_rlvr.analysis.shards import KEY_FIELDS, Key, digest, key_of, read_shards, sweep, write_shard
from sage_rlvr.analysis.verdicts import judged_rows
from sage_rlvr.anchor import anchor_penalty, tellable
from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.models import write_whole
from sage_rlvr.models.loading import is_adapter
from sage_rlvr.store import SampleStore
from sage_rlvr.store.samples import KEYS
from sage_rlvr.store.settings import differences

_FLOATS = pa.list_(pa.float32())
SCHEMA = pa.schema(
    [
        *KEY_FIELDS,
        ("checkpoint", pa.string()),
        ("step", pa.int64()),  # null: not known
        ("right", pa.bool_()),
        ("digest", pa.int64()),
        ("tokens", pa.list_(pa.string())),  # pieces; together they are the completion
        ("logps", _FLOATS),
        ("ref_logps", _FLOATS),
        ("entropies", _FLOATS),
        ("q", _FLOATS),  # null, like the penalty: training's cannot be told
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
    problems: Sequence[str] | None = None,
    limit: int = 20,
    per_problem: int = 8,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    batch_tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Traced:
    """Reads ``per_problem`` completions of each of the first ``limit`` problems of a task through every checkpoint.

    A training folder as checkpoint stands for its checkpoint-N folders and its final weights; none: the sampled model.
    Guide, reference, temperature and seed are the training run's unless said. Where q depends on the other completions of a
    rollout batch, all that are traced make one; with fewer than training had, q and penalty are left empty, and that is said.
    """
    store = SampleStore(run, readonly=True)
    sampled = store.settings.get("adapter") or store.settings.get("model")
    if not checkpoints and not sampled:
        raise UserError(f"{store.folder} does not say which model was sampled; name a checkpoint to read it through.")
    points, notes = expand(checkpoints or [str(sampled)])
    records = [r for c in checkpoints or [run] for r in [_record_near(c)] if r]
    anchor = anchor_of(records, guide, guide_args, temperature, seed, reference is not None)
    origin = source_of(reference) if reference else _reference(points, records[0] if records else None)
    target = Path(out) if out else Path(run, "trace")
    chosen = select(store, problems, limit, per_problem)
    anchor = anchor.of(len(chosen))
    settings = _settings(anchor, origin, chosen)
    _write_settings(target, settings, points)
    todo = _todo(target, chosen, points)
    to_read = {label: chosen if rows and anchor.together else rows for label, rows in todo.items()}
    samples = {key_of(r): r for rows in to_read.values() for r in rows}
    tokenizer = source_of(run).tokenizer() if store.settings.get("model") else points[0].source.tokenizer()
    prompts = Prompts(store, tokenizer, data_dir)
    texts = {k: Text(prompts(r["task"], r["problem"]), tuple(r["token_ids"])) for k, r in samples.items()}

    def read(source: ModelSource, keys: Sequence[Key]) -> Iterator[tuple[Key, Reading]]:
        for batch in read_texts(source.load(), [texts[k] for k in keys], batch_tokens, anchor.temperature):
            yield from ((keys[i], reading) for i, reading in batch)

    ref = dict(read(origin, list(texts))) if samples else {}
    written, total = 0, sum(map(len, todo.values()))
    for point in (p for p in points if todo[p.label]):
        here, why = _at(anchor, point)
        notes += [why] if why else []
        new = {key_of(r) for r in todo[point.label]}
        readings = read(point.source, [key_of(r) for r in to_read[point.label]])
        shaped = _shaped(here, point, samples, readings, ref)
        rows = (_row(samples[k], point, own, ref[k], shape, tokenizer) for k, own, shape in shaped if k in new)
        while shard := list(islice(rows, SHARD)):
            write_shard(target, shard, SCHEMA)
            written += len(shard)
            if progress:
                progress(written, total)
    return Traced(target, len(chosen), [c.label for c in points], written, settings, notes)


def _settings(anchor: Anchor, origin: ModelSource, chosen: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the rows of a folder share: the noise's seed where there is noise, the completions where q depends on all of them."""
    shared = {
        "guide": anchor.name, "guide_args": anchor.guide.settings() if anchor.guide else {}, "q": anchor.words(len(chosen)),
        "reference": asdict(origin), "temperature": anchor.temperature, "centred": anchor.centred, "estimator": "k3",
    }  # fmt: skip
    if anchor.guide is not None and anchor.guide.stochastic:
        shared["seed"] = anchor.seed
    if anchor.together:
        which = blake2b(repr([key_of(r) for r in chosen]).encode(), digest_size=4).hexdigest()
        shared["batch"] = f"{len(chosen)} completions ({which})"
    return shared


def _at(anchor: Anchor, point: Checkpoint) -> tuple[Anchor, str | None]:
    """The anchor at a checkpoint; without q, and why, where its schedule cannot be placed."""
    if anchor.unknown or not anchor.scheduled or (point.step is not None and point.max_steps):
        return anchor, None
    why = f"guide {anchor.name!r} follows a schedule, and no run.json says which step of it this is"
    return replace(anchor, unknown=why), f"q at {point.label}: {why}"


def _shaped(
    anchor: Anchor, point: Checkpoint, samples: dict[Key, dict[str, Any]], readings: Iterator[tuple[Key, Reading]],
    ref: dict[Key, Reading],
) -> Iterator[tuple[Key, Reading, Tensor | None]]:  # fmt: skip
    """With log q of each, None where it is not shown; one by one, or all at once where each depends on the others."""
    for group in [list(readings)] if anchor.together else ([one] for one in readings):
        keys, own = zip(*group)
        shapes: Sequence[Tensor | None] = [None] * len(keys)
        if not anchor.unknown:
            rows, refs = [samples[k] for k in keys], [ref[k] for k in keys]
            shapes = log_q(anchor, rows, own, refs, point.step or 0, point.max_steps or 1)
        yield from zip(keys, own, shapes)


def _todo(target: Path, chosen: list[dict[str, Any]], points: Sequence[Checkpoint]) -> dict[str, list[dict[str, Any]]]:
    """Checkpoint → samples that were not read through it yet."""
    rows = read_shards(target, SCHEMA, [*KEYS, "checkpoint", "digest"])
    done = {(*key_of(r), r["checkpoint"]): r["digest"] for r in rows}
    for r in chosen:
        if any(done.get((*key_of(r), c.label), r["digest"]) != r["digest"] for c in points):
            raise UserError(f"{target} traces other samples than the store now has; remove it and trace again.")
    return {c.label: [r for r in chosen if (*key_of(r), c.label) not in done] for c in points}


def _row(
    sample: dict[str, Any], point: Checkpoint, own: Reading, ref: Reading, shape: Tensor | None, tokenizer: Any
) -> dict[str, Any]:
    q = penalty = None
    if shape is not None:
        q = tellable(shape).exp().tolist()
        penalty = anchor_penalty(own.logps, ref.logps, tellable(shape), "k3").tolist()
    return {k: sample[k] for k in (*KEYS, "right", "digest")} | {
        "checkpoint": point.label,
        "step": point.step,
        "tokens": token_pieces(tokenizer, sample["token_ids"], sample["completion"]),
        "logps": own.logps.tolist(),
        "ref_logps": ref.logps.tolist(),
        "entropies": own.entropies.tolist(),
        "q": q,
        "penalty": penalty,
    }


def select(store: SampleStore, problems: Sequence[str] | None, limit: int, per_problem: int) -> list[dict[str, Any]]:
    """The first ``limit`` problems of each task; of each, as many right as wrong completions while there are both."""
    groups: dict[tuple[str, str], list[list[dict[str, Any]]]] = {}  # (task, problem) → right ones, wrong ones
    for row in judged_rows(store, ["token_ids", "completion"]):
        if (problems and row["problem"] not in problems) or not row["token_ids"]:
            continue
        group = groups.setdefault((row["task"], row["problem"]), [[], []])[not row["right"]]
        group.append(row | {"digest": digest(row["token_ids"])})
        group.sort(key=lambda r: (r["seed"], r["index"]))
        del group[per_problem:]  # memory does not grow with n
    ranks = {(t, p): i for t, asked in store.problems.items() for i, p in enumerate(asked.problems)}
    chosen: list[dict[str, Any]] = []
    for task in dict.fromkeys(t for t, _ in groups):
        for place in sorted((x for x in groups if x[0] == task), key=lambda x: (ranks.get(x, 1 << 30), x[1]))[:limit]:
            right, wrong = groups[place]
            half = min(len(right), max(per_problem - per_problem // 2, per_problem - len(wrong)))
            chosen += [*right[:half], *wrong[: per_problem - half]]
    if not chosen:
        raise UserError(f"{store.folder} has no completion of those tasks and problems; check their names.")
    return chosen


# ---- which models --------------------------------------------------------------------------------------------------


def expand(given: Sequence[str | Path]) -> tuple[list[Checkpoint], list[str]]:
    """Checkpoints in order of their steps; one without weights is named in the notes and the rest is read."""
    points: list[Checkpoint] = []
    notes: list[str] = []
    for where in given:
        record = _record_near(where)
        planned = _planned(record) if record else None
        for label, folder, step in _candidates(Path(where), planned if record and record.get("finished") else None):
            if folder.is_dir() and not _has_weights(folder):
                notes.append(f"{folder} holds no weights (its save was interrupted, or it was pruned): left out")
                continue
            label = str(where) if any(label == c.label for c in points) else label
            points.append(Checkpoint(label, source_of(folder if folder.exists() else str(where)), step, planned))
    if not points:
        raise UserError(f"trace: no checkpoint to read through ({'; '.join(notes)}).")
    return points, notes


def _candidates(path: Path, last_step: int | None) -> list[tuple[str, Path, int | None]]:
    """(label, folder, step): a training folder's checkpoints and final weights, or the one checkpoint this is."""
    if inside := checkpoints_in(path):
        out: list[tuple[str, Path, int | None]] = [(f"{path.name}/{c.name}", c, int(c.name[11:])) for c in inside]
        return [*out, (path.name, path, last_step)] if _has_weights(path) else out
    if match := re.fullmatch(r"checkpoint-(\d+)", path.name):
        return [(f"{path.resolve().parent.name}/{path.name}", path, int(match[1]))]
    return [(path.name or str(path), path, None)]


def _has_weights(folder: Path) -> bool:
    """Or stands for some: an evaluation names the model it sampled."""
    return is_adapter(folder) or any((folder / f).is_file() for f in ("config.json", "store.json"))


def _record_near(where: str | Path) -> dict[str, Any] | None:
    """run.json of a training folder, of the one a checkpoint lies in, or of the one behind an evaluation."""
    home = training_of(where) if Path(where).is_dir() else None
    record = read_record(home) if home else None
    return record | {"folder": str(home)} if record else None


def _planned(record: dict[str, Any]) -> int | None:
    """Optimizer steps of the whole run; trainer_state.json knows where the run was told epochs."""
    steps = record["settings"].get("max_steps")
    if isinstance(steps, int) and steps > 0:
        return steps
    try:
        return trainer_state(record["folder"]).get("max_steps")
    except UserError:
        return None


def _reference(points: Sequence[Checkpoint], record: dict[str, Any] | None) -> ModelSource:
    """What training was leashed to: the model after SFT where there was an SFT stage, else the one RL began with."""
    own = record["settings"] if record else {}
    if record and own.get("sft"):
        sft = Path(own.get("sft_dir") or Path(record["folder"]).resolve().parent / "sft")
        if not sft.exists():
            began = record["folder"]
            raise UserError(f"the SFT stage that {began} began with is not at {sft}; name it with reference.")
        return source_of(sft)
    if own.get("model_name_or_path"):
        return source_of(own["model_name_or_path"])
    adapted = next((c.source for c in points if c.source.adapter), None)
    if adapted:
        return ModelSource(adapted.model)
    raise UserError("trace needs the reference model of the training run: name it with reference.")


def _write_settings(target: Path, settings: dict[str, Any], points: Sequence[Checkpoint]) -> None:
    """Rows made with another guide or reference never share a folder."""
    path = target / "_trace.json"
    settings = json.loads(json.dumps(settings, default=str))
    old: dict[str, Any] = {"settings": settings, "checkpoints": []}
    if path.is_file():
        old = read_json(path, f"remove {target} and trace again", settings=dict, checkpoints=list)
    for field, (was, now) in differences(old["settings"], settings).items():
        raise UserError(
            f"{target} was traced with {field}={was!r} and this call has {now!r}; give --out another folder, remove "
            "this one, or set it back."
        )
    known = {c["label"]: c for c in old["checkpoints"]}
    known |= {c.label: {"label": c.label, "step": c.step, "source": c.source.name} for c in points}
    ordered = sorted(known.values(), key=lambda c: (c["step"] is None, c["step"] or 0))
    try:
        target.mkdir(parents=True, exist_ok=True)
        sweep(target)
        header = {"settings": settings, "checkpoints": ordered}
        write_whole(path, json.dumps(header, indent=1, ensure_ascii=False) + "\n")
    except OSError as e:
        raise UserError(f"{target} cannot be written ({e.strerror}); name one you can write to with --out.") from e
