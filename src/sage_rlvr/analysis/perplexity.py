"""Perplexity of a run's samples under the base (METHOD section 8, Eq. 39): exp(−(1/|y|)·Σ_t log π_base(y_t|…)).

Heavier right tails mean that the model still writes what the base finds unlikely. Results stay beside the store, in
FOLDER/perplexity/*.parquet, one row per sample and scoring model (known by its files, not by its path), and are computed once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sage_rlvr.analysis.scoring import ModelSource, Prompts, Text, read_texts
from sage_rlvr.analysis.shards import KEY_FIELDS, digest, key_of, read_shards, sweep, write_shard
from sage_rlvr.errors import UserError
from sage_rlvr.models.fingerprints import digest as digest_of
from sage_rlvr.models.fingerprints import of_model, of_words
from sage_rlvr.store import SampleStore
from sage_rlvr.store.samples import KEYS
from sage_rlvr.tasks import get_format

SCHEMA = pa.schema(
    [
        *KEY_FIELDS,
        ("scorer", pa.string()),  # the model that read it: its name and, behind " #", what it was
        ("digest", pa.int64()),  # of the completion's tokens
        ("tokens", pa.int32()),
        ("logprob", pa.float64()),  # summed, at temperature 1 and without truncation
        ("perplexity", pa.float64()),
    ]
)
BLOCK = 2048  # samples sorted by length together
QUANTILES = (0.5, 0.9, 0.95, 0.99)


def perplexity(
    folder: str | Path,
    scorer: ModelSource,
    problems: Sequence[str] | None = None,
    limit: int | None = None,
    data_dir: str | Path | None = None,
    batch_tokens: int | None = None,
    load: Callable[[], Any] | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """task → problem → (m,) perplexities, by seed and index; what is not there yet is computed and written.

    ``problems``: only these. ``limit``: only samples of an index below it. ``load`` gives the scoring model, so that several
    runs can share it.
    """
    store = SampleStore(folder, readonly=True)
    out = Path(folder, "perplexity")
    sweep(out)
    mark = _mark(store, scorer)
    have = {key_of(row): row for row in read_shards(out, SCHEMA) if row["scorer"].endswith(mark)}
    load = cache(load or scorer.load)
    prompts = cache(lambda: Prompts(store, _words(store, scorer).tokenizer(), data_dir))
    values: list[tuple[Any, ...]] = []  # (*key, perplexity)
    for block in _blocks(store, problems, limit):
        todo = []
        for row in block:
            old = have.get(key_of(row))
            if old and old["digest"] == row["digest"]:
                values.append((*key_of(row), old["perplexity"]))
            elif row["token_ids"]:  # an empty completion has no perplexity
                todo.append(row)
        if todo:
            values += _score(load(), prompts(), todo, f"{scorer.name}{mark}", out, batch_tokens)
    if not values:
        raise UserError(f"{folder} has no sample of those tasks and problems; check their names.")
    lists: dict[str, dict[str, list[float]]] = {}
    for task, problem, _, _, value in sorted(values, key=lambda r: r[:4]):
        lists.setdefault(task, {}).setdefault(problem, []).append(value)
    return {task: {p: np.array(x) for p, x in by.items()} for task, by in lists.items()}


def _mark(store: SampleStore, scorer: ModelSource) -> str:
    """Behind the scoring model's name: a digest of its files, of the prompts' tokenizer and format, and of the dtype. A model
    that was trained on under the same path is another; one that was moved is not."""
    asked = asdict(get_format(store.settings.get("prompt_format", "paper")))
    words = of_words(_words(store, scorer).words)
    return f" #{digest_of([of_model(scorer.model), scorer.adapter and of_model(scorer.adapter), words, asked, 'auto'])}"


def _blocks(store: SampleStore, problems: Sequence[str] | None, limit: int | None) -> Iterator[list[dict[str, Any]]]:
    rows = (
        row | {"digest": digest(row["token_ids"])}
        for batch in store.scan([*KEYS, "token_ids"])
        for row in batch.to_pylist()
        if (problems is None or row["problem"] in problems) and (limit is None or row["index"] < limit)
    )
    while block := list(islice(rows, BLOCK)):
        yield block


def _score(
    model: Any, prompts: Prompts, todo: list[dict[str, Any]], name: str, out: Path, batch_tokens: int | None
) -> list[tuple[Any, ...]]:
    """Reads a block and writes it as one shard, also when it is interrupted half way."""
    texts = [Text(prompts(r["task"], r["problem"]), tuple(r["token_ids"])) for r in todo]
    rows = []
    try:
        for batch in read_texts(model, texts, batch_tokens):
            for i, reading in batch:
                total = float(reading.logps.double().sum())
                own = {k: todo[i][k] for k in (*KEYS, "digest")} | {"scorer": name, "logprob": total}
                tokens = len(texts[i].completion)
                rows.append(own | {"tokens": tokens, "perplexity": float(np.exp(min(-total / tokens, 700.0)))})
    finally:
        if rows:
            write_shard(out, rows, SCHEMA)
    return [(*key_of(r), r["perplexity"]) for r in rows]


def _words(store: SampleStore, scorer: ModelSource) -> ModelSource:
    """Whose tokenizer: the sampled model's, whose chat template made the prompts; the scorer's where the store names none."""
    own = store.settings
    return ModelSource(own["model"], own.get("adapter")) if own.get("model") else scorer


# ---- tails -------------------------------------------------------------------------------------------------------


def thresholds(
    base: np.ndarray | None, values: Sequence[float] = (), quantiles: Sequence[float] = QUANTILES
) -> dict[str, float]:
    """Name → perplexity: quantiles of the base's own samples, and any given outright."""
    own = {f"base q{q:g}": float(np.quantile(base, q)) for q in quantiles} if base is not None and base.size else {}
    return own | {f"{v:g}": float(v) for v in values}


def tails(values: np.ndarray, marks: dict[str, float]) -> dict[str, Any]:
    """One run's distribution, and its share above each threshold."""
    quantiles = {q: float(np.quantile(values, q)) for q in QUANTILES}
    above = {name: float((values > mark).mean()) for name, mark in marks.items()}
    return {"samples": values.size, "mean": float(values.mean()), "quantiles": quantiles, "above": above}
