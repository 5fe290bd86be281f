"""What else there is to see of a study's samples: patterns, perplexity under the base, and tokens of a few problems.

    python benchmarks/gpu/look.py --out runs/qwen1.5b --records results/gpu/qwen1.5b

Records hold no samples, so this is run where the samples are, beside the study's folder, before that machine is given back.
What it sees goes into RECORDS/look.json and RECORDS/look/RUN.tar.gz, run by run: runs that were looked at before, here or on
another machine, are not looked at again. RECORDS/explorer.html is the page of tokens over all of them. `make results` makes
tables and figures of the first; the site has the last as results/STUDY-explorer.html (docs_tools/pages.py).

Perplexity is read on the first --limit samples of each problem. Tokens are read of --per_problem completions of one problem a
task, chosen at the first look: that on which the finished runs are furthest apart. The page has those problems alone.
"""

import argparse
import json
import shutil
import sys
import tarfile
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sage_rlvr.analysis.patterns import patterns
from sage_rlvr.analysis.perplexity import perplexity
from sage_rlvr.analysis.scoring import source_of
from sage_rlvr.analysis.trace import trace
from sage_rlvr.errors import UserError
from sage_rlvr.models import write_whole
from sage_rlvr.provenance import made_with
from sage_rlvr.report.page import build_report
from sage_rlvr.stats.counts import counts_of
from sage_rlvr.stats.table import common_problems, plain
from sage_rlvr.store import Sample, SampleStore
from sage_rlvr.study.job import start_model
from sage_rlvr.study.run import finished_runs

LOOK, SLICES, EXPLORER = "look.json", "look", "explorer.html"
PAGE_BYTES = 8_000_000
TITLE = "One problem per task: that on which the runs differ most"
TRAINING = ("run.json", "log.jsonl")

Problems = list[list[str]]  # [task, problem]


def furthest_apart(out: Path) -> Problems:
    """One a task: the largest variance of the share of right samples over the finished runs, the first of equals."""
    counts, found = [counts_of(folder) for folder in finished_runs(out).values()], []
    for task in counts[0].tasks:
        own = [c.tasks[task] for c in counts if task in c.tasks]
        common = common_problems(own)
        if common:
            shares = np.stack([t.rights / t.totals for t in (t.only(common) for t in own)])
            found.append([task, common[int(shares.var(0).round(9).argmax())]])
    return found


def frequencies(folder: Path) -> dict[str, Any]:
    """task → its patterns, without the counts of each problem."""
    return {task: {k: v for k, v in plain(t).items() if k not in ("n", "hits")} for task, t in patterns(folder).items()}


def unnamed(x: Any) -> Any:
    """Folders of this machine by their last two parts: where they lay is nobody's business."""
    if isinstance(x, dict):
        return {key: unnamed(value) for key, value in x.items()}
    if isinstance(x, list):
        return [unnamed(value) for value in x]
    return "/".join(Path(x).parts[-2:]) if isinstance(x, str) and Path(x).is_absolute() else x


def cut(folder: Path, to: Path, chosen: Problems) -> None:
    """A store with the chosen problems alone, and its training's log beside it."""
    whole = SampleStore(folder, readonly=True)
    with SampleStore(to, unnamed(whole.settings)) as store:
        for task, asked in whole.problems.items():
            store.ask(task, [p for t, p in chosen if t == task], asked.n, asked.seeds)
        for batch in whole.scan():
            rows = (row for row in batch.to_pylist() if [row["task"], row["problem"]] in chosen)
            store.append([Sample(**row | {name: unnamed(row[name]) for name in ("run", "model")}) for row in rows])
    told = json.loads((folder / "problems.json").read_text(encoding="utf-8"))
    own = {t: {p: known for p, known in by.items() if [t, p] in chosen} for t, by in told.items()}
    write_whole(to / "problems.json", json.dumps(own, ensure_ascii=False) + "\n")
    shutil.copy(folder / "made.json", to)
    for name in TRAINING:
        if (folder.parent / "train" / name).is_file():
            (to.parent / "train").mkdir(exist_ok=True)
            lines = (folder.parent / "train" / name).read_text(encoding="utf-8")
            parts = lines.splitlines() if name.endswith("l") else [lines]
            hidden = [json.dumps(unnamed(json.loads(part)), ensure_ascii=False) for part in parts if part]
            write_whole(to.parent / "train" / name, "\n".join(hidden) + "\n")


def slice_of(run: str, folder: Path, base: str, chosen: Problems, args: argparse.Namespace, to: Path) -> None:
    """RECORDS/look/RUN.tar.gz: what the page needs of one run."""
    with TemporaryDirectory() as work:
        own = Path(work, run, "eval")
        cut(folder, own, chosen)
        guide = {"guide": "none"} if run == "base" else {}  # else its training's
        trace(
            folder, [folder], reference=base, problems=[p for _, p in chosen], per_problem=args.per_problem,
            out=own / "trace", data_dir=args.data_dir, **guide,
        )  # fmt: skip
        header = own / "trace" / "_trace.json"
        write_whole(header, json.dumps(unnamed(json.loads(header.read_text(encoding="utf-8")))) + "\n")
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_name(f"{to.name}.part")
        with tarfile.open(part, "w:gz") as tar:
            tar.add(Path(work, run), run, filter=_nobodys)
        part.replace(to)


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return None if entry.name.endswith(("writer.lock", "/.part")) else entry


def explorer(slices: Path, to: Path) -> None:
    with TemporaryDirectory() as work:
        for archive in sorted(slices.glob("*.tar.gz")):
            with tarfile.open(archive) as tar:
                tar.extractall(work, filter="data")
        base = "base/eval" if Path(work, "base").is_dir() else None
        build_report(work, to, base=base, limit=PAGE_BYTES, title=TITLE, only_tokens=True)


def look(args: argparse.Namespace) -> None:
    out, records, began = Path(args.out), Path(args.records), time.monotonic()
    here = {run: folder for run, folder in finished_runs(out).items() if (folder / "store.json").is_file()}
    file, base = records / LOOK, args.base or start_model(out)
    found: dict[str, Any] = {"limit": args.limit, "sessions": [], "patterns": {}, "perplexity": {}}
    if file.is_file():
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["limit"] != args.limit:
            raise UserError(f"{file} was made with --limit {found['limit']}: give that, or another folder of records.")
    todo = [run for run in here if run not in found["patterns"]]
    if not todo and not found["patterns"]:
        raise UserError(f"{out} has no run with its samples: run this where they were sampled.")
    if "chosen" not in found:
        found["chosen"] = furthest_apart(out)
    scorer = source_of(base)
    load, session = cache(scorer.load), {**made_with(), "runs": todo, "wall_s": 0.0}
    found["sessions"].append(session)
    for run in todo:
        print(f"{run}: perplexity", flush=True)
        read = perplexity(here[run], scorer, limit=args.limit, load=load, data_dir=args.data_dir)
        print(f"{run}: tokens", flush=True)
        slice_of(run, here[run], base, found["chosen"], args, records / SLICES / f"{run}.tar.gz")
        found["patterns"][run] = frequencies(here[run])
        found["perplexity"][run] = {
            task: {problem: [float(f"{x:.5g}") for x in xs] for problem, xs in by.items()} for task, by in read.items()
        }
        session["wall_s"] = round(time.monotonic() - began, 1)
        write_whole(file, json.dumps(found, ensure_ascii=False) + "\n")
    explorer(records / SLICES, records / EXPLORER)
    print(f"{len(found['patterns'])} runs were looked at; written: {file}, {records / EXPLORER}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the study's own folder, with its samples")
    parser.add_argument("--records", required=True, help="folder of its records, written into")
    parser.add_argument("--base", help="the base model, where it does not lie where the study had it")
    parser.add_argument("--data_dir", help="folder of local task files")
    parser.add_argument("--limit", type=int, default=16, help="perplexity: samples a problem (default: %(default)s)")
    parser.add_argument("--per_problem", type=int, default=2, help="completions read token by token (default: 2)")
    try:
        look(parser.parse_args())
    except UserError as e:
        parser.exit(2, f"{e}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
