"""Runs made by hand: stores, training logs and traces such as eval, train and trace would write."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sage_rlvr.store import Sample, SampleStore

SENTENCES = (
    "Let x be the first number , then we try the product . Since 7 × 8 = 56 the rest must be 13 , so we add 9 and 4 . "
    "Assume for contradiction that both are odd ; the sum is even , which leads to a contradiction . Hence the answer follows"
)
VOCABULARY = SENTENCES.split()
SETTINGS = {"model": "toy/base", "adapter": None, "backend": "transformers", "temperature": 1.0, "min_p": 0.01}


def text_of(rng: random.Random, right: bool, words: int = 40) -> tuple[str, str]:
    answer = "42" if right else str(rng.randint(43, 99))
    middle = rng.choices(VOCABULARY, k=words)
    for i in range(rng.randint(5, 15), words, rng.randint(12, 30)):
        middle[i] += "\n"
    return f"{' '.join(middle)}\n<SOLUTION>{answer}</SOLUTION>", answer


def chances(problems: int, seed: int, lift: float, reach: float) -> list[float]:
    """Chance of a right sample, problem by problem: harder ones fall away, and below ``reach`` to nothing."""
    rng = random.Random(seed)
    hard = [rng.betavariate(0.6, 2.2) for _ in range(problems)]
    return [min(0.97, h * (1 + lift)) if h > reach else 0.0 for h in hard]


def write_store(
    folder: Path,
    rights: dict[str, list[float]],
    n: int = 16,
    seeds: int = 1,
    model: str = "toy/base",
    texts: dict[tuple[str, str, int, int], str] | None = None,
    stop_after: int | None = None,
    words: int = 40,
    **settings: Any,
) -> Path:
    """``rights``: task → chance of a right sample for each problem. ``texts`` puts its own completions in."""
    rng = random.Random(sum(map(ord, folder.name)))
    made: list[Sample] = []
    with SampleStore(folder, SETTINGS | {"model": model} | settings) as store:
        for task, chance in rights.items():
            store.ask(task, [f"{task}-{p:03d}" for p in range(len(chance))], n, range(seeds))
        for task, chance in rights.items():
            for p, c in enumerate(chance):
                name = (folder.name, model, task, f"{task}-{p:03d}")
                made += [_sample(*name, s, i, c, rng, texts or {}, words) for s in range(seeds) for i in range(n)]
        store.append(made[:stop_after])
    return folder


def _sample(
    run: str,
    model: str,
    task: str,
    problem: str,
    seed: int,
    index: int,
    chance: float,
    rng: Any,
    texts: Any,
    words: int,
) -> Sample:
    right = rng.random() < chance
    text, answer = text_of(rng, right, words)
    text = texts.get((task, problem, seed, index), text)
    return Sample(
        run=run, model=model, task=task, problem=problem, seed=seed, index=index, completion=text, tokens=max(1, len(text) // 4),
        finish="stop", answer=answer, verdict=float(right), reason="right" if right else "wrong", token_ids=[1, 2],
        logprob=-rng.uniform(5, 60),
    )  # fmt: skip


def write_log(folder: Path, steps: int = 100, lift: float = 1.0, finished: bool = True, **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(sum(map(ord, folder.name)))
    made = {"model_name_or_path": "toy/base", "max_steps": 100, "beta": 0.05, "guide": "branch"} | settings
    (folder / "run.json").write_text(json.dumps({"settings": made, "finished": finished}))
    with (folder / "log.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            u = 1 - math.exp(-step / 35)
            entry = {"step": step, "reward": 0.15 + 0.3 * lift * u + rng.gauss(0, 0.03), "loss": rng.gauss(0, 0.01)}
            entry |= {
                "kl": 0.02 * step**0.6 * lift,
                "kl_ref": 0.016 * step**0.6 * lift,
                "entropy": 1.4 - 0.6 * lift * u,
            }
            entry |= {"grad_norm": 0.05 + abs(rng.gauss(0, 0.02)), "sage/q_mean": 1 + 0.08 * (1 - u)}
            file.write(json.dumps(entry) + "\n")
            if step % 20 == 0:
                held = {"step": step, "held_out/aime/pass@1": 0.1 + 0.1 * u, "held_out/aime/pass@8": 0.4 + 0.05 * u}
                file.write(json.dumps(held) + "\n")
    return folder


def pieces(text: str) -> list[str]:
    """Tokens such as a byte-pair vocabulary has: words with the space before them, cut after six letters."""
    out: list[str] = []
    for word in text.replace(" ", "\0 ").replace("\n", "\0\n").split("\0"):
        out += [word[i : i + 6] for i in range(0, len(word), 6)]
    return out


def write_trace(
    folder: Path,
    keys: list[tuple[str, str, int, int]],
    checkpoints: list[str],
    name: str = "000.parquet",
    q: bool = True,
) -> None:
    """Per-token numbers for some of a store's samples; without ``q`` as where training's is not known."""
    stored = {
        (r["task"], r["problem"], r["seed"], r["index"]): r["completion"]
        for batch in SampleStore(folder, readonly=True).scan(["task", "problem", "seed", "index", "completion"])
        for r in batch.to_pylist()
    }
    rows = [_trace(key, c, i, pieces(stored[key])) for key in keys for i, c in enumerate(checkpoints)]
    rows = rows if q else [row | {"q": None, "penalty": None} for row in rows]
    (folder / "trace").mkdir(exist_ok=True)
    numbers = {c: pa.list_(pa.float32()) for c in ("logps", "ref_logps", "entropies", "q", "penalty")}
    schema = pa.schema(
        {"task": pa.string(), "problem": pa.string(), "seed": pa.int64(), "index": pa.int32()}
        | {"checkpoint": pa.string(), "tokens": pa.list_(pa.string())}
        | numbers
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "trace" / name)


def _trace(key: tuple[str, str, int, int], checkpoint: str, step: int, tokens: list[str]) -> dict[str, Any]:
    rng = random.Random(" ".join(map(str, key)))
    entropies = [
        max(0.0, rng.gauss(0.3, 0.3) if rng.random() < 0.75 else rng.uniform(1, 3)) * 0.85**step for _ in tokens
    ]
    logps = [-max(0.0, h * rng.expovariate(1.0)) for h in entropies]
    q = [min(1.4, 1 + 0.3 * max(0.0, h - 1.2)) if rng.random() < 0.97 else 0.8 for h in entropies]
    ref = [x - rng.gauss(0, 0.05) * step for x in logps]
    ratio = [math.log(a) + r - p for a, r, p in zip(q, ref, logps)]
    return {
        "task": key[0], "problem": key[1], "seed": key[2], "index": key[3], "checkpoint": checkpoint, "tokens": tokens,
        "logps": logps, "ref_logps": ref, "entropies": entropies, "q": q, "penalty": [math.exp(x) - x - 1 for x in ratio],
    }  # fmt: skip


def write_everything(root: Path, problems: int = 40, n: int = 32) -> Path:
    """Four evaluations on two tasks, three trainings, traces; one run half finished, one of another version, one broken."""
    arms = {"base": (0.0, 0.0), "grpo": (0.6, 0.08), "grpo_nokl": (1.1, 0.2), "branch": (0.55, 0.05)}
    for arm, (lift, reach) in arms.items():
        rights = {"aime": chances(problems, 1, lift, reach), "amc23": chances(problems // 2, 2, lift + 0.3, reach / 2)}
        write_store(root / arm / "eval", rights, n=n, model=f"toy/{arm}")
        if arm != "base":
            write_log(root / arm, lift=1 + lift / 2, guide="branch" if arm == "branch" else "none")
    keys = [("aime", f"aime-{p:03d}", 0, i) for p in range(3) for i in range(2)]
    write_trace(root / "branch" / "eval", keys, ["base", "checkpoint-100", "checkpoint-20", "checkpoint-60"])
    write_store(root / "half" / "eval", {"aime": chances(problems, 1, 0.5, 0.1)}, n=n, stop_after=10 * n)
    write_log(root / "half", steps=30, finished=False)
    other = write_store(root / "other" / "eval", {"aime": [0.5]}, n=2)
    header = json.loads((other / "store.json").read_text()) | {"version": 99}
    (other / "store.json").write_text(json.dumps(header))
    (root / "broken" / "eval").mkdir(parents=True)
    (root / "broken" / "eval" / "store.json").write_text("{ not json")
    return root
