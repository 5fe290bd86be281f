"""A study without its samples and weights, in two small files, from which another machine goes on and tables are made again.

FOLDER/runs.jsonl.xz       a line for the study, then one per finished run: counts (of its path too), log, cost, versions
FOLDER/base.tar.gz         the model every variant starts from, where the study made it: trained again it would be another one
FOLDER/trained/RUN.tar.gz  on request: what was trained and is still to be evaluated, elsewhere (with the checkpoints of its path)

``unpack`` puts finished runs into a study's folder as done, so that ``study run`` leaves them alone and ``study table`` and
``study frontier`` count them; several folders of records may be laid into one study.
"""

import gzip
import json
import lzma
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.models import write_whole
from sage_rlvr.models.folders import whole_folder
from sage_rlvr.stats.counts import COUNTS, compact, from_compact
from sage_rlvr.study.job import PROBE, START, STATUS, at_step, start_model
from sage_rlvr.study.plan import RECORD, Study, open_folder, read_folder, recorded, refuse_other
from sage_rlvr.study.read import Finished
from sage_rlvr.study.run import finished_runs, status_of

RUNS, BASE, TRAINED, ONE = "runs.jsonl.xz", "base.tar.gz", "trained", "record.json"
RECIPE, ADAPTER = "run.json", "adapter_config.json"  # of a trained model's folder: what it was made with, and from
# of a model's folder: no optimizer, no checkpoints
WEIGHTS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "log.jsonl")
KEPT = ("model", "started", "updated")  # of a run's status


def pack(out: str | Path, to: str | Path, trained: bool = False) -> int:
    """Writes the records of what is finished in the study's folder ``out``; answers how many runs that is. ``trained``: the
    weights of runs that lack their evaluation alone, too."""
    out, to = Path(out), Path(to)
    to.mkdir(parents=True, exist_ok=True)
    study, done = read_json(out / RECORD), finished_runs(out)
    lines = [{"study": study}, *(keep(out, run) for run in done)]
    part = to / f"{RUNS}.part"
    with lzma.open(part, "wb") as f:  # a third of gzip: runs of a study differ little; the same runs, the same bytes
        for line in lines:
            f.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    part.replace(to / RUNS)
    if "base" in done and not (to / BASE).is_file():
        model = Path(start_model(out))
        if model.resolve().is_relative_to(out.resolve()):  # else it was there before, and is wherever the user has it
            _pack_model(model, to / BASE)
    steps = path_steps(out)
    for run in read_folder(out).runs()[1:] if trained else ():
        archive = to / TRAINED / f"{run}.tar.gz"
        if run in done:
            archive.unlink(missing_ok=True)
        elif _is_trained(out / run / "train") and not archive.is_file():
            archive.parent.mkdir(exist_ok=True)
            _pack_model(out / run / "train", archive, [f"checkpoint-{step}" for step in steps])
    return len(done)


def path_steps(out: Path) -> list[int]:
    """The steps whose checkpoints are evaluated beside a run's last weights."""
    return read_folder(out).evaluate.get("path", {}).get("steps", [])


def _is_trained(folder: Path) -> bool:
    return (folder / RECIPE).is_file() and json.loads((folder / RECIPE).read_text(encoding="utf-8"))["finished"]


def keep(out: str | Path, run: str) -> dict[str, Any]:
    """The record of a finished run, made once and kept beside it: reading 100,000 samples takes a second or two."""
    path, status = Path(out, run, ONE), Path(out, run, STATUS)
    if path.is_file() and path.stat().st_mtime >= status.stat().st_mtime:
        return json.loads(path.read_text(encoding="utf-8"))
    record = _record(Path(out), run)
    write_whole(path, json.dumps(record, ensure_ascii=False) + "\n")
    return record


def _record(out: Path, run: str) -> dict[str, Any]:
    status = status_of(out, run)
    record: dict[str, Any] = {
        "name": run,
        "status": {k: status[k] for k in KEPT if k in status},
        "counts": compact(out / run / "eval"),
    }
    if run != "base" and not read_folder(out).blend_of(run) and (steps := path_steps(out)):
        record["path"] = {str(step): compact(at_step(out / run / "eval", step)) for step in steps}
    if run == "base" and (out / run / PROBE).is_dir():
        record["probe"] = compact(out / run / PROBE)
    made = out / run / "eval" / "made.json"
    if made.is_file():
        record["made"] = json.loads(made.read_text(encoding="utf-8"))
    log = out / run / "train" / "log.jsonl"
    if log.is_file():
        record["log"] = [_short(json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines() if line]
    base = start_model(out)
    return _without({f"{out.resolve()}/": "", str(Path(base).resolve()): base}, record)


def _without(places: dict[str, str], record: Any) -> Any:
    """Paths inside the study's folder, from there on, and the base by the name that the study has for it: where they lay is
    nobody's business and differs from machine to machine."""
    if isinstance(record, dict):
        return {key: _without(places, value) for key, value in record.items()}
    if isinstance(record, list):
        return [_without(places, value) for value in record]
    for place, name in places.items():
        if isinstance(record, str) and record.startswith(place):
            return name + record.removeprefix(place)
    return record


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    """Six digits of each number: the others are most of the bytes."""
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in entry.items()}


def _pack_model(model: Path, to: Path, checkpoints: Sequence[str] = ()) -> None:
    """The model's files and its checkpoints' weights. The same files, the same bytes: whose they were and when is left out."""
    folders = [model, *(model / name for name in checkpoints)]
    files = sorted({f for folder in folders for pattern in WEIGHTS for f in folder.glob(pattern)})
    part = to.with_name(f"{to.name}.part")
    with (
        part.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as f,
        tarfile.open(fileobj=f, mode="w") as tar,
    ):
        for file in files:
            entry = tarfile.TarInfo(str(file.relative_to(model)))
            entry.size = file.stat().st_size
            with file.open("rb") as content:
                tar.addfile(entry, content)
    part.replace(to)


# ---- and back ------------------------------------------------------------------------------------------------------


def read_records(source: Path) -> Finished:
    """What ``study.read.finished`` says of the folder that they are unpacked into, without it."""
    lines = _lines(source / RUNS)
    study, tasks, logs, probe = recorded(next(lines)["study"]), {}, {}, {}
    for record in lines:
        tasks[record["name"]] = from_compact(record["counts"], source).tasks
        logs[record["name"]] = record.get("log", [])
        if "probe" in record:
            probe = from_compact(record["probe"], source).tasks
    return Finished(source, study, {run: tasks[run] for run in study.runs() if run in tasks}, logs.__getitem__, probe)


def unpack(sources: Sequence[str | Path], out: str | Path) -> list[str]:
    """Lays records into the study's folder; answers the runs that were not there before. Runs done here are left as they are."""
    out, new = Path(out), []
    for source in map(Path, sources):
        if not (source / RUNS).is_file():
            raise UserError(
                f"{source} holds no records of a study (there is no {RUNS}): name a folder that pack wrote."
            )
        lines = _lines(source / RUNS)
        study = recorded(next(lines)["study"])
        _join(study, out)
        here = read_folder(out)
        known = set(here.runs())
        for record in lines:
            run = record["name"]
            if run in known and run != "base" and here.settings_of(run) != study.settings_of(run):
                raise UserError(f"{source}: the run {run} was made with other settings than {out} has for it.")
            if run in known and status_of(out, run)["state"] not in ("done", "running"):
                _lay(record, out / run)
                new.append(run)
        start = out / "base" / START
        if (source / BASE).is_file() and not start.is_file():
            _unpack_base(source / BASE, out / "base")
        elif "base" in new and "model_name_or_path" in study.base and not start.is_file():
            write_whole(start, json.dumps({"model": study.base["model_name_or_path"]}) + "\n")
        for archive in sorted((source / TRAINED).glob("*.tar.gz")):
            run = archive.name.removesuffix(".tar.gz")
            if run in known and not (out / run / "train").exists():
                _unpack_trained(archive, out / run / "train", start_model(out))
    return new


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as f:
        yield from map(json.loads, f)


def _join(study: Study, out: Path) -> None:
    """A folder that holds the study already may have more seeds and variants than the records, and the other way round. What
    they say of the rest is the folder's; a run that was made otherwise is refused by itself."""
    if (out / RECORD).is_file():
        here = read_folder(out)
        refuse_other(here, study, out)
        seeds = list(dict.fromkeys([*here.seeds, *study.seeds]))
        variants = study.variants | here.variants
        for name in here.variants.keys() & study.variants.keys():
            if "seeds" in here.variants[name] or "seeds" in study.variants[name]:  # as many as either has
                both = dict.fromkeys([*here.seeds_of(name), *study.seeds_of(name)])
                variants[name] = here.variants[name] | {"seeds": list(both)}
        study = replace(here, seeds=seeds, variants=variants)
    open_folder(study, out)


def _lay(record: dict[str, Any], folder: Path) -> None:
    shutil.rmtree(folder / "eval", ignore_errors=True)  # a run cut short here, and finished elsewhere
    (folder / "eval").mkdir(parents=True)
    (folder / "train").mkdir(exist_ok=True)
    write_whole(folder / "eval" / COUNTS, json.dumps(record["counts"]) + "\n")
    if "probe" in record:
        (folder / PROBE).mkdir(exist_ok=True)
        write_whole(folder / PROBE / COUNTS, json.dumps(record["probe"]) + "\n")
    for step, counts in record.get("path", {}).items():
        at = at_step(folder / "eval", step)
        shutil.rmtree(at, ignore_errors=True)
        at.mkdir()
        write_whole(at / COUNTS, json.dumps(counts) + "\n")
    if "made" in record:
        write_whole(folder / "eval" / "made.json", json.dumps(record["made"]) + "\n")
    if "log" in record:
        write_whole(folder / "train" / "log.jsonl", "".join(json.dumps(entry) + "\n" for entry in record["log"]))
    status = {"state": "done", "stage": "eval", "pid": 0, **record["status"]}
    write_whole(folder / STATUS, json.dumps(status) + "\n")


def borrow_base(study: Study, source: Path, out: Path) -> None:
    """The study starts from the base of another one's records. It lies beside ``out``, so that ``pack`` leaves it with them."""
    theirs = recorded(next(_lines(source / RUNS))["study"])
    if theirs.base != study.base:
        raise UserError(f"--base {source}: its study made its base with other settings than {study.name} asks for.")
    _unpack_base(source / BASE, out / "base", out.with_name(f"{out.name}-base"))


def _unpack_base(archive: Path, folder: Path, model: Path | None = None) -> None:
    model = model or folder / "model"
    with whole_folder(model) as part, tarfile.open(archive) as tar:
        tar.extractall(part, filter="data")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / START, json.dumps({"model": str(model)}) + "\n")


def _unpack_trained(archive: Path, folder: Path, base: str) -> None:
    """The study's base may lie in another place here than where this was trained from it."""
    with whole_folder(folder) as part:
        with tarfile.open(archive) as tar:
            tar.extractall(part, filter="data")
        recipe = json.loads((part / RECIPE).read_text(encoding="utf-8"))
        recipe["settings"]["model_name_or_path"] = base
        (part / RECIPE).write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
        for config in (part / ADAPTER, *part.glob(f"*/{ADAPTER}")):
            if config.is_file():
                adapter = json.loads(config.read_text(encoding="utf-8"))
                adapter["base_model_name_or_path"] = base
                config.write_text(json.dumps(adapter, indent=2) + "\n", encoding="utf-8")
