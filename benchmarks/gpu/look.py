"""What else there is to see of a study whose samples are at hand: patterns, perplexity under the base, tokens of a few problems.

    python benchmarks/gpu/look.py --out runs/qwen1.5b --records results/gpu/qwen1.5b

Records hold no samples, so this is run where the study was, beside its folder. It writes RECORDS/look.json and
RECORDS/explorer.html; `make results` makes tables and figures of the first and puts the second beside them. Perplexity is read on
the first --limit samples of each problem, tokens of --per_problem completions of one problem a task: that on which the runs are
furthest apart. The page has those problems alone.
"""

import argparse
import json
import shutil
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sage_rlvr.analysis.page import plain
from sage_rlvr.analysis.patterns import patterns
from sage_rlvr.analysis.perplexity import perplexity
from sage_rlvr.analysis.scoring import source_of
from sage_rlvr.analysis.trace import trace
from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.counts import counts_of
from sage_rlvr.models import write_whole
from sage_rlvr.provenance import made_with
from sage_rlvr.report.page import build_report
from sage_rlvr.store import Sample, SampleStore
from sage_rlvr.study.run import finished_runs
from sage_rlvr.study.table import common_problems

LOOK, EXPLORER = "look.json", "explorer.html"
PAGE_BYTES = 4_000_000
TRAINING = ("run.json", "log.jsonl")


def sampled(out: Path) -> dict[str, Path]:
    """run → folder of its samples; those that came from records have counts alone."""
    found = {run: folder for run, folder in finished_runs(out).items() if (folder / "store.json").is_file()}
    if "base" not in found or len(found) < 2:
        raise UserError(
            f"{out} has samples of {', '.join(found) or 'no run'}: run this where the base and the others were sampled."
        )
    return found


def frequencies(folder: Path) -> dict[str, Any]:
    """task → its patterns, without the counts of each problem."""
    return {task: {k: v for k, v in plain(t).items() if k not in ("n", "hits")} for task, t in patterns(folder).items()}


def perplexities(runs: dict[str, Path], limit: int) -> dict[str, Any]:
    """run → task → problem → values, five digits."""
    base = source_of(runs["base"])
    load = cache(base.load)
    out = {}
    for run, folder in runs.items():
        print(f"perplexity of {run}", flush=True)
        read = perplexity(folder, base, limit=limit, load=load)
        out[run] = {t: {p: [float(f"{x:.5g}") for x in xs] for p, xs in by.items()} for t, by in read.items()}
    return out


def furthest_apart(runs: dict[str, Path]) -> list[tuple[str, str]]:
    """(task, problem), one a task: the largest variance of the share of right samples over the runs, the first of equals."""
    counts, found = [counts_of(folder) for folder in runs.values()], []
    for task in counts[0].tasks:
        own = [c.tasks[task] for c in counts if task in c.tasks]
        common = common_problems(own)
        if common:
            shares = np.stack([(t.rights / t.totals) for t in (t.only(common) for t in own)])
            found.append((task, common[int(shares.var(0).round(9).argmax())]))
    return found


def cut(folder: Path, to: Path, chosen: list[tuple[str, str]]) -> None:
    """A store with the chosen problems alone, and its training's log beside it."""
    whole = SampleStore(folder, readonly=True)
    with SampleStore(to, whole.settings) as store:
        for task, asked in whole.problems.items():
            store.ask(task, [p for t, p in chosen if t == task], asked.n, asked.seeds)
        for batch in whole.scan():
            store.append([Sample(**row) for row in batch.to_pylist() if (row["task"], row["problem"]) in chosen])
    told = json.loads((folder / "problems.json").read_text(encoding="utf-8"))
    own = {t: {p: known for p, known in by.items() if (t, p) in chosen} for t, by in told.items()}
    write_whole(to / "problems.json", json.dumps(own, ensure_ascii=False) + "\n")
    for name in TRAINING:
        if (folder.parent / "train" / name).is_file():
            (to.parent / "train").mkdir(exist_ok=True)
            shutil.copy(folder.parent / "train" / name, to.parent / "train" / name)


def explorer(runs: dict[str, Path], chosen: list[tuple[str, str]], per_problem: int, to: Path) -> None:
    base = source_of(runs["base"]).name
    with TemporaryDirectory() as work:
        for run, folder in runs.items():
            print(f"tokens of {run}", flush=True)
            own, trained = Path(work, run, "eval"), folder.parent / "train"
            cut(folder, own, chosen)
            how: dict[str, Any] = {"per_problem": per_problem, "out": own / "trace", "problems": [p for _, p in chosen]}
            if (trained / "run.json").is_file():
                trace(folder, [trained], **how)
            else:
                trace(folder, reference=base, **how)
        build_report(work, to, base="base/eval", limit=PAGE_BYTES)
    page = to.read_text(encoding="utf-8")
    write_whole(to, page.replace(f"{Path.cwd()}/", ""))  # where it lay is nobody's business


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the study's own folder, with its samples")
    parser.add_argument("--records", required=True, help="folder of its records, written into")
    parser.add_argument("--limit", type=int, default=16, help="perplexity: samples a problem (default: %(default)s)")
    parser.add_argument("--per_problem", type=int, default=4, help="completions read token by token (default: 4)")
    args = parser.parse_args()
    try:
        runs, records = sampled(Path(args.out)), Path(args.records)
        chosen = furthest_apart(runs)
        found = {
            "made_with": made_with(),
            "patterns": {run: frequencies(folder) for run, folder in runs.items()},
            "perplexity": {"limit": args.limit, "values": perplexities(runs, args.limit)},
            "explorer": chosen,
        }
        records.mkdir(parents=True, exist_ok=True)
        write_whole(records / LOOK, json.dumps(found, ensure_ascii=False) + "\n")
        explorer(runs, chosen, args.per_problem, records / EXPLORER)
    except UserError as e:
        parser.exit(2, f"{e}\n")
    print(f"written: {records / LOOK}, {records / EXPLORER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
