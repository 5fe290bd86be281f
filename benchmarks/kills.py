"""Trainings, SFT stages, evaluations and studies killed with SIGKILL at random moments and run again until they end; and two
writers at the same instant (docs/reliability.md).

    python benchmarks/kills.py --kills 20 --rounds 300 --to results/cpu/kills.json

The libraries are imported once, every attempt is forked. An attempt is killed when it has written to its folder a random number
of times, and a random moment later, half of the times with all its processes, as by a machine that goes down; what it leaves is
gone on from by the next. Each run is compared, once it has ended, with
one that nobody killed: training and SFT by every logged number and all weights, evaluation and studies by every sample. A process
that outlives a killed attempt by 60 s counts as leaked (the runs of a killed study write a checkpoint first).
"""

import argparse
import ctypes
import hashlib
import json
import logging
import mmap
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import psutil
import pyarrow.parquet as pq
import yaml
from peft import LoraConfig
from rich.console import Console
from trl import SFTConfig

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.run import evaluate
from sage_rlvr.launch.sft import SFTRun, run_sft
from sage_rlvr.processes import alive
from sage_rlvr.provenance import made_with
from sage_rlvr.runs import writer
from sage_rlvr.runs.manifest import fault
from sage_rlvr.store.samples import SampleStore
from sage_rlvr.study import run as study_run
from sage_rlvr.train import SAGEConfig, SAGETrainer
from tests.evaluate import run_eval_tiny
from tests.study import forking
from tests.study.small import SMALL
from tests.train import tiny

TIMES = {*tiny.TIMES, "train_runtime", "train_samples_per_second", "train_steps_per_second"}
STEPS = 12
PATIENCE_S = 60.0  # for what a killed attempt leaves, before it counts as leaked
GUARD_S = 600.0  # for an attempt that nobody kills


# ---- what is killed ------------------------------------------------------------------------------------------------


def training(model: str, out: Path, case: int) -> None:
    """RL: full and LoRA, at the edge of a rollout batch and inside one, with DAPO's new prompts."""
    options = [
        {"guide": "token"},
        {"guide": "random", "lora": True, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2},
        {"guide": "branch", "dynamic_sampling": 2, "anchor_estimator": "k1-reward"},
    ][case % 3]  # fmt: skip
    peft = LoraConfig(r=4, target_modules=["q_proj", "up_proj"]) if options.pop("lora", False) else None
    saving = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    args = tiny.config(SAGEConfig, out / "run", **saving, **options)
    trainer = SAGETrainer(model, tiny.hash_reward, args, tiny.dataset(12), peft_config=peft)
    trainer.train(resume_from_checkpoint=True)
    write(out, trainer.state.log_history, digest(trainer.model.state_dict()))


def stage(model: str, out: Path, case: int) -> None:
    """SFT: LoRA with dropout, and full."""
    config = SFTConfig(
        output_dir=str(out / "run"), max_steps=STEPS, save_steps=1, save_total_limit=2, logging_steps=1, learning_rate=1e-2,
        per_device_train_batch_size=4, max_length=64, bf16=False, use_cpu=True, report_to="none", disable_tqdm=True,
        gradient_checkpointing=False,
    )  # fmt: skip
    run = SFTRun(
        model=model, keep="merged", use_peft=case % 2 == 0, lora_r=4, lora_dropout=0.1 if case % 2 == 0 else 0.0
    )
    rows = [{"prompt": f"{i}+{i % 7}=", "completion": str(i + i % 7)} for i in range(40)]
    result = run_sft(run, config, rows)
    history = json.loads((out / "run" / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())["log_history"]
    write(out, history, hashlib.sha256((result / "model.safetensors").read_bytes()).hexdigest())


def evaluation(model: str, out: Path, case: int) -> None:
    evaluate(run_eval_tiny.arguments(model, out / "run", seeds=[2 * case, 2 * case + 1]), Console(quiet=True))


def study(model: str, out: Path, case: int) -> None:
    """The base with its SFT, two variants, their evaluations; runs are forked, without their imports."""

    forking.fork_runs()
    file = out / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL | {"seeds": [case]}))
    _, failed = study_run.run_study(file, out / "run", jobs=2)
    if failed:
        raise RuntimeError(f"{failed} failed")
    for run in ("grpo", "branch"):
        log = (out / "run" / f"{run}-s{case}" / "train" / "log.jsonl").read_text().splitlines()
        write(out, [json.loads(line) for line in log], run, f"{run}.json")


# ---- what is compared ----------------------------------------------------------------------------------------------


def write(out: Path, history: list[dict[str, Any]], weights: str, name: str = "result.json") -> None:
    logged = [{k: v for k, v in entry.items() if k not in TIMES} for entry in history if "loss" in entry]
    (out / name).write_text(json.dumps({"logged": logged, "weights": weights}))


def digest(tensors: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def numbers(out: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]


def samples(out: Path) -> Counter[tuple[Any, ...]]:
    """Each stored sample, under the evaluation it belongs to, and how often it is there."""
    kept = ["problem", "seed", "index", "completion", "verdict"]
    found: Counter[tuple[Any, ...]] = Counter()
    for folder in sorted(out.rglob("samples")):
        for shard in folder.glob("*.parquet"):
            for row in pq.read_table(shard, columns=kept).to_pylist():
                found[(str(folder.relative_to(out)), *(row[name] for name in kept))] += 1
    return found


KINDS: dict[
    str, tuple[Callable[[str, Path, int], None], int, float]
] = {  # writes before a kill, seconds after them, at most
    "training": (training, 40, 0.1),
    "sft": (stage, 40, 0.1),
    "evaluation": (evaluation, 12, 0.05),
    "studies": (study, 60, 0.3),
}


# ---- killing -------------------------------------------------------------------------------------------------------


def attempt(target: Callable[[str, Path, int], None], model: str, out: Path, case: int) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            log = os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.setsid()
            target(model, out, case)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return pid


def newest(out: Path) -> int:
    times = [0]
    for folder, _, files in os.walk(out):
        for name in (".", *files):
            try:
                times.append(os.stat(os.path.join(folder, name)).st_mtime_ns)
            except FileNotFoundError:
                continue
    return max(times)


def killed(pid: int, out: Path, writes: int, delay: float, tree: bool) -> bool:
    """SIGKILL after so many writes and so long, of its children too if ``tree``; False if it had ended by then."""
    last, end = newest(out), time.monotonic() + GUARD_S
    while writes > 0 and time.monotonic() < end:
        if not alive(pid):
            break
        time.sleep(0.003)
        if (now := newest(out)) != last:
            last, writes = now, writes - 1
    time.sleep(delay)
    below = psutil.Process(pid).children(recursive=True) if tree else []
    os.kill(pid, signal.SIGKILL)  # a zombie does not mind
    for process in below:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"an attempt failed by itself:\n{out.with_suffix('.log').read_text()[-3000:]}")
    return os.WIFSIGNALED(status)


def leaked() -> int:
    """Descendants that outlive an attempt; they are ours, since we adopt orphans."""
    end = time.monotonic() + PATIENCE_S
    while left := [p for p in psutil.Process().children(recursive=True) if alive(p.pid)]:
        reap()
        if time.monotonic() > end:
            for process in left:
                process.kill()
            return len(left)
        time.sleep(0.05)
    reap()
    return 0


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def kill_and_compare(kind: str, kills: int, seed: int, models: dict[str, str], place: Path) -> dict[str, Any]:
    target, writes, delay = KINDS[kind]
    rng, model, began = random.Random(f"{kind} {seed}"), models[kind], time.monotonic()
    found: Counter[str] = Counter(
        dict.fromkeys(("kills", "runs", "identical", "leaked", "cut_short", "lost", "doubled"), 0)
    )
    while found["kills"] < kills:
        case = found["runs"]
        outs = [place / f"{kind}-{case}-{how}" for how in ("whole", "killed")]
        for out in outs:
            out.mkdir(parents=True)
        pid = attempt(target, model, outs[0], case)
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError(f"the run nobody killed failed:\n{outs[0].with_suffix('.log').read_text()[-3000:]}")
        found["leaked"] += leaked()
        in_a_row = 0
        while in_a_row < 10 and found["kills"] < kills:
            how = rng.randint(1, writes), rng.uniform(0, delay), rng.random() < 0.5
            if not killed(attempt(target, model, outs[1], case), outs[1], *how):
                break  # it has come to its end
            in_a_row += 1
            found["kills"] += 1
            found["leaked"] += leaked()
            found["cut_short"] += sum(fault(p) is not None for p in outs[1].rglob("checkpoint-*") if p.is_dir())
        pid = attempt(target, model, outs[1], case)
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError(f"the last attempt failed:\n{outs[1].with_suffix('.log').read_text()[-3000:]}")
        found["leaked"] += leaked()
        expected, there = (samples(out) for out in outs)
        found["samples"] += expected.total()
        found["lost"] += (expected - there).total()
        found["doubled"] += sum(count - 1 for count in there.values())
        found["runs"] += 1
        found["identical"] += expected == there and numbers(outs[0]) == numbers(outs[1])
        print(kind, dict(found), f"{time.monotonic() - began:.0f} s", flush=True)
    return {**found, "seconds": round(time.monotonic() - began)}


# ---- racing --------------------------------------------------------------------------------------------------------


def open_store(folder: Path) -> Callable[[], None]:
    return SampleStore(folder, {"a": 1}).close


def begin_training(folder: Path) -> Callable[[], None]:
    holding = writer.only_writer(folder)
    holding.__enter__()
    return lambda: holding.__exit__(None, None, None)


def begin_study(folder: Path) -> Callable[[], None]:
    holding = study_run.lock.held(folder / study_run.LOCK)
    holding.__enter__()
    return lambda: holding.__exit__(None, None, None)


def race(begin: Callable[[Path], Callable[[], None]], folder: Path, racers: int, dies: bool) -> int:
    """How many of the racers got in, all started at the same instant; each who does stays until all have tried. ``dies``: they
    are killed then, so that the next round takes over a dead one's lock."""
    outcome = mmap.mmap(-1, racers)  # of each: 1 refused, 2 in
    gate, gun = os.pipe()
    pids = []
    for me in range(racers):
        pid = os.fork()
        if pid == 0:
            try:
                logging.disable()
                os.close(gun)
                os.read(gate, 1)  # nothing ever comes: all wake when the other end is closed
                try:
                    end = begin(folder)
                except UserError:
                    outcome[me] = 1
                    os._exit(0)
                outcome[me] = 2
                while 0 in outcome[:]:
                    time.sleep(0.001)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                end()
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(gate)
    os.close(gun)
    for pid in pids:
        os.waitpid(pid, 0)
    if 0 in outcome[:]:
        raise RuntimeError("a racer ended without a word")
    return outcome[:].count(2)


def races(rounds: int, racers: int, seed: int, place: Path) -> dict[str, Any]:
    """Rounds on one folder each, in a random half of which the winner is killed and its lock left to the next round."""
    rng, out = random.Random(f"races {seed}"), {}
    for name, begin in (("store", open_store), ("training", begin_training), ("study", begin_study)):
        folder = place / f"race-{name}"
        won = [race(begin, folder, racers, rng.random() < 0.5) for _ in range(rounds)]
        out[name] = {
            "rounds": rounds,
            "racers": racers,
            "won_by_one": won.count(1),
            "second_writers_accepted": sum(max(0, n - 1) for n in won),
        }
        print(f"races: {name}", out[name], flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, "races"], choices=[*KINDS, "races"])
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--rounds", type=int, default=300, help="of races, for each kind of folder")
    parser.add_argument("--racers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, help="JSON file; kinds that are not asked for are kept")
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans of a killed attempt become ours, and are seen
    found = json.loads(args.to.read_text()) if args.to and args.to.is_file() else {}
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        models = dict.fromkeys(KINDS, tiny.folder(Path(place, "model")))
        for kind in args.kinds:
            if kind == "races":
                found[kind] = races(args.rounds, args.racers, args.seed, Path(place))
            else:
                found[kind] = kill_and_compare(kind, args.kills, args.seed, models, Path(place))
            found |= {
                "command": f"python benchmarks/kills.py --kills {args.kills} --rounds {args.rounds} --seed {args.seed}",
                **made_with(),
            }
            if args.to:
                args.to.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
