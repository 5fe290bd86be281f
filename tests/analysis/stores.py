"""Stores and logs made by hand, small enough to count on one's fingers."""

import json

from sage_rlvr.store import Sample, SampleStore


def make_store(folder, samples, settings=None, n=None, asked=None):
    """``samples``: (task, problem, seed, index, completion, verdict[, token_ids[, finish]])."""
    with SampleStore(folder, settings or {"temperature": 0.3}) as store:
        for task in dict.fromkeys(s[0] for s in samples):
            own = [s for s in samples if s[0] == task]
            problems = (asked or {}).get(task) or list(dict.fromkeys(s[1] for s in own))
            store.ask(task, problems, n or 1 + max(s[3] for s in own), sorted({s[2] for s in own}))
        store.append([_sample(*s) for s in samples])
    return folder


def _sample(task, problem, seed, index, completion, verdict, ids=(3,), finish="stop"):
    return Sample(
        "r", "m", task, problem, seed, index, completion, len(ids), finish, "7", verdict, None, list(ids), -1.0
    )


def words(task, cells):
    """``cells[problem]`` = a word of 0, 1 and ? (unverifiable), one letter a sample."""
    verdict = {"0": 0.0, "1": 1.0, "?": None}
    return [(task, p, 0, i, "text", verdict[c]) for p, word in cells.items() for i, c in enumerate(word)]


def write_log(folder, entries, settings=None, finished=True):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    if settings is not None:
        (folder / "run.json").write_text(json.dumps({"settings": settings, "finished": finished}))
    return folder
