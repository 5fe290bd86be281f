"""A study on one GPU, several runs side by side, in pieces as long as a machine can be had (docs/evidence/notebook.md).

    python benchmarks/gpu/study.py run --study frontier --records results/gpu/frontier --jobs 16 --minutes 9
    python benchmarks/gpu/study.py run ... --only '*-s0'            # a piece of it

``run`` lays the records it finds into the study's folder, runs what is missing (seed by seed) and can end within its minutes, and
writes the records again: what was finished and the base, in two small files that another machine goes on from, and
sessions.json, what each piece cost. Runs that were cut short go on in the same --out, and begin anew elsewhere.
``make results`` makes pages of the records.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from records import BASE, RUNS, borrow_base, keep, pack, unpack

from sage_rlvr.errors import UserError
from sage_rlvr.provenance import made_with
from sage_rlvr.study.job import START
from sage_rlvr.study.plan import Study, load_study, read_folder
from sage_rlvr.study.run import finished_runs, run_study, status_of
from sage_rlvr.study.stacked import run_stacked

SESSIONS = "sessions.json"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "PYTHONUNBUFFERED": "1",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",  # float32 products on tensor cores: small models are trained in float32
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # the allocator's gaps, times the runs that share the card
}


class TimeUp(Exception):
    """The minutes are over: what runs is told to write a checkpoint and end."""


def time_up(number: int, frame: Any) -> None:
    """SIGTERM: what is done is packed before the end."""
    raise TimeUp


def run(args: argparse.Namespace) -> int:
    os.environ |= {k: v for k, v in ENVIRONMENT.items() if k not in os.environ}
    out, began = Path(args.out or f"runs/{load_study(args.study).name}"), time.monotonic()
    to = Path(args.to or args.records)
    known = unpack([args.records], out) if Path(args.records, RUNS).is_file() else []
    print(f"{len(known)} finished runs taken from {args.records}", flush=True)
    if args.base and not (out / "base" / START).is_file():
        borrow_base(load_study(args.study), Path(args.base), out)
    if status_of(out, "base")["state"] == "done" and not (out / "base" / START).is_file():
        raise UserError(
            f"{args.records} has the base's samples and not its weights ({BASE}): put that file beside them."
        )
    before_us = signal.signal(signal.SIGTERM, time_up)
    mps = start_mps() if args.mps else False
    before = set(finished_runs(out)) if (out / "study.json").is_file() else set()
    failed: list[str] = []
    clock = Watch(began + 60 * args.minutes, args.jobs)
    try:
        if args.engine == "stacked":
            run_stacked(args.study, out, args.jobs, clock, args.only, args.minutes - (time.monotonic() - began) / 60)
        else:
            _, failed = run_study(args.study, out, args.jobs, clock, args.only, clock.admit)
    except TimeUp:
        print(f"{args.minutes} minutes are over, or this was ended; the same command goes on", flush=True)
    finally:
        signal.signal(signal.SIGTERM, before_us)
        clock.keeper.shutdown()
        done = pack(out, to, args.trained)
        session = {
            "wall_s": round(time.monotonic() - began, 1),
            "jobs": args.jobs,
            "engine": args.engine,
            "mps": mps,
            "only": args.only,
            "finished": sorted(set(finished_runs(out)) - before),
            "failed": {name: status_of(out, name).get("error", "no message") for name in failed},
            **made_with(),
        }
        write_session(Path(args.records), to, session)
        print(f"{done} of {len(read_folder(out).runs())} runs are done; records in {to}", flush=True)
    return 1 if failed else 0


class Watch:
    """Says what changes, keeps the record of each run as it ends (beside: the next run need not wait), lets no run start that
    would not end in time, and calls time."""

    def __init__(self, end: float, jobs: int):
        self.end, self.jobs, self.said, self.began = end, jobs, dict[str, str](), time.monotonic()
        self.started, self.took = dict[str, float](), list[float]()
        self.keeper = ThreadPoolExecutor(1)

    def admit(self, running: int) -> bool:
        """Half as many side by side take half as long, fewer no less than that. With nothing left that runs, time is up."""
        if not self.took:
            return True
        needs = median(self.took) * max((running + 1) / self.jobs, 0.5)
        if time.monotonic() + needs <= self.end:
            return True
        if not running:
            raise TimeUp
        return False

    def __call__(self, study: Study, out: Path) -> None:
        for name in study.runs():
            status = status_of(out, name)
            now = f"{status['state']} {status['stage']}".strip()
            if status["state"] == "waiting" or self.said.get(name) == now:
                continue
            self.said[name] = now
            print(f"{time.monotonic() - self.began:7.1f} s  {name}: {now}", flush=True)
            if status["state"] == "running":
                self.started.setdefault(name, time.monotonic())
            if status["state"] == "done":
                if name in self.started and name != "base":  # which is another kind of work
                    self.took.append(time.monotonic() - self.started[name])
                self.keeper.submit(keep, out, name)
        if time.monotonic() > self.end:
            raise TimeUp


def start_mps() -> bool:
    """NVIDIA's service that lets several processes' kernels run at the same time; without it they take turns. Where it starts
    but serves nobody, every run would fail: it is tried, and stopped again. One that runs already is shared, never stopped."""
    found = shutil.which("nvidia-cuda-mps-control")
    if found is None:
        print("no nvidia-cuda-mps-control here: the runs take turns on the card", flush=True)
        return False
    asked = subprocess.run([found], input=b"get_server_list\n", capture_output=True, check=False)
    there = asked.returncode == 0  # an earlier piece's, or of a study beside this one; 1: no service runs
    if not there and subprocess.run([found, "-d"], check=False).returncode != 0:
        return False
    tried = "import torch; torch.ones(1, device='cuda').item()"
    with suppress(subprocess.SubprocessError):
        subprocess.run([sys.executable, "-c", tried], check=True, timeout=60)
        return True
    if there:
        raise UserError(
            "the nvidia-cuda-mps-control that runs here serves nobody, so every run would fail: end it "
            "(echo quit | nvidia-cuda-mps-control) and run this again."
        )
    print("nvidia-cuda-mps-control serves nobody here: stopped, the runs take turns on the card", flush=True)
    subprocess.run([found], input=b"quit\n", check=False)
    return False


def write_session(records: Path, to: Path, session: dict) -> None:
    earlier = json.loads((records / SESSIONS).read_text()) if (records / SESSIONS).is_file() else []
    (to / SESSIONS).write_text(json.dumps([*earlier, session], indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run"])
    parser.add_argument("--study", default="frontier", help="a study file or a packaged name")
    parser.add_argument(
        "--records", required=True, help="folder of the records: read, and written unless --to is given"
    )
    parser.add_argument("--base", help="records of another study, whose base this one starts from")
    parser.add_argument("--to", help="folder the records are written to")
    parser.add_argument("--out", help="the study's own folder (default: runs/NAME)")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--engine", choices=["trl", "stacked"], default="trl", help="stacked: --jobs runs per stack")
    parser.add_argument("--minutes", type=float, default=9.0, help="when to stop; packing takes some seconds more")
    parser.add_argument("--only", default="*", help="a pattern of runs, as in '*-s0'")
    parser.add_argument("--mps", action="store_true", help="start NVIDIA's multi-process service first")
    parser.add_argument(
        "--trained", action="store_true", help="keep the weights of what is trained and still to be evaluated"
    )
    args = parser.parse_args()
    try:
        return run(args)
    except UserError as e:
        parser.exit(2, f"{e}\n")


if __name__ == "__main__":
    sys.exit(main())
