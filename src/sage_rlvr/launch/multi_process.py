"""``sage-rlvr train … --accelerate_config NAME|FILE``: the same command in several processes, started as Accelerate would.

Accelerate reads the file and torchrun starts the processes; nothing of theirs is replaced. Here: what cannot work is refused
before anything starts, exit codes and signals pass through, and each process checks that it is one of as many as were asked
for (``accelerate launch`` on CPU quietly starts one, and drops FSDP settings).
"""

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate.utils import patch_environment

from sage_rlvr import values
from sage_rlvr.errors import UserError
from sage_rlvr.launch.recipes import shelf
from sage_rlvr.names import near

ASKED = "SAGE_RLVR_PROCESSES"  # in the environment of a process that was started here: how many there should be
GRACE_S = 600  # after SIGTERM or Ctrl-C a rank finishes its step and writes a checkpoint; torchrun alone would kill it after 30 s
SHARDED = ("FSDP", "DEEPSPEED")


class _Flags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(values.sentence(message))


def take_flags(argv: list[str]) -> tuple[list[str], str | None, int | None]:
    """The command without our two flags, and their values."""
    parser = _Flags(add_help=False, allow_abbrev=False)
    parser.add_argument("--accelerate_config")
    parser.add_argument("--num_processes", type=int)
    given, rest = parser.parse_known_args(argv)
    if given.num_processes is not None and given.num_processes < 1:
        raise UserError(f"--num_processes {given.num_processes} is not a number of processes: write 1 or more.")
    if given.num_processes is not None and given.accelerate_config is None:
        choices = ", ".join(shelf("launchers"))
        raise UserError(f"--num_processes needs --accelerate_config: choose one of {choices}, or a file.")
    return rest, given.accelerate_config, given.num_processes


# ---- starting ------------------------------------------------------------------------------------------------------


def launch(argv: list[str], config: str, processes: int | None = None, module: str = "sage_rlvr.cli") -> int:
    """``python -m module argv`` in every process that ``config`` asks for; answers the exit code."""
    if "LOCAL_RANK" in os.environ:
        raise UserError(
            "--accelerate_config starts the processes itself: leave out torchrun or 'accelerate launch', or the flag."
        )
    file = Path(config) if Path(config).is_file() else shelf("launchers").get(config)
    if file is None:
        known = near(config, shelf("launchers"))
        raise UserError(f"there is no accelerate config {config!r}, neither as a file nor with the package: {known}.")
    settings = _read(file)
    count = processes or (settings.num_processes if settings.num_processes > 0 else max(devices(), 1))
    _refuse(config, settings, count)
    if settings.use_cpu and argv[:1] == ["train"]:
        argv = [*argv, "--use_cpu", "true"]  # transformers does not read it from Accelerate
    start = _torchrun if settings.use_cpu else _accelerate
    return _exit_code(lambda: start(file, settings, count, [module, *argv]))


def devices() -> int:
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def _read(file: Path) -> Any:
    from accelerate.commands.config.config_args import load_config_from_file

    try:
        settings = load_config_from_file(str(file))
    except Exception as e:  # a wrong key, type or value: each has its own exception
        raise UserError(f"{file} is not a config of Accelerate ({' '.join(str(e).split())[:200]}): fix it.") from e
    if not hasattr(settings, "num_processes"):
        raise UserError(f"{file} is for a hosted service: write compute_environment: LOCAL_MACHINE.")
    return settings


def _refuse(name: str, settings: Any, count: int) -> None:
    kind = str(getattr(settings.distributed_type, "value", settings.distributed_type))
    cpu, gpus, machines = settings.use_cpu, devices(), settings.num_machines
    cannot_work = {
        "needs DeepSpeed: pip install deepspeed, or take fsdp2": kind == "DEEPSPEED" and find_spec("deepspeed") is None,
        f"has use_cpu with {kind}, which Accelerate drops on CPU: take cpu, or remove use_cpu": cpu and kind in SHARDED,
        "has use_cpu on several machines: use one machine, or GPUs": cpu and machines > 1,
        "is for GPUs and there is none here: take cpu, or leave the flag out": not cpu and not gpus,
        f"has {count} processes and there are {gpus} GPUs on each of {machines} machines: set --num_processes, one per GPU": (
            not cpu and count > gpus * machines
        ),
        f"says distributed_type: NO and {count} processes: take ddp or fsdp2": not cpu and kind == "NO" and count > 1,
    }
    for sentence, so in cannot_work.items():
        if so:
            raise UserError(f"--accelerate_config {name} {sentence}.")


def accelerate_arguments(file: Path, settings: Any, count: int, command: list[str]) -> Any:
    """What ``accelerate launch`` would see on its command line."""
    from accelerate.commands.launch import launch_command_parser

    flags = ["--config_file", str(file), "--num_processes", str(count)]
    if settings.num_machines == 1 and settings.main_process_port is None:
        flags += ["--main_process_port", "0"]  # any free port: two runs on a machine do not meet
    args = launch_command_parser().parse_args([*flags, "-m", *command])
    args.shutdown_timeout = GRACE_S
    return args


def _accelerate(file: Path, settings: Any, count: int, command: list[str]) -> None:
    from accelerate.commands.launch import launch_command

    with patch_environment(**{ASKED: count}):
        launch_command(accelerate_arguments(file, settings, count, command))


def _torchrun(file: Path, settings: Any, count: int, command: list[str]) -> None:
    from torch.distributed import run

    threads = os.environ.get("OMP_NUM_THREADS", max((os.cpu_count() or 1) // count, 1))
    env = {ASKED: count, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": threads}
    args = run.parse_args(["--standalone", "--nproc_per_node", str(count), "-m", *command])
    args.shutdown_timeout = GRACE_S
    with patch_environment(**env, ACCELERATE_MIXED_PRECISION=settings.mixed_precision or "no"):
        run.run(args)


def _exit_code(start: Callable[[], None]) -> int:
    """What the first process to fail answered, or 128 + the signal that ended us, as a single process would."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        with _second_ctrl_c_kills():
            start()
    except ChildFailedError as e:
        code = e.get_first_failure()[1].exitcode
        return code if code >= 0 else 128 - code
    except SignalException as e:
        return 128 + int(e.sigval)
    return 0


@contextmanager
def _second_ctrl_c_kills() -> Iterator[None]:
    """The first Ctrl-C is torchrun's: it tells every process and waits. At the second this ends them all, with exit code 130."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    here, there = socket.socketpair()
    there.setblocking(False)

    def watch() -> None:
        seen = 0
        while number := here.recv(1):
            seen += number[0] == signal.SIGINT
            if seen == 2:
                import psutil

                for process in psutil.Process().children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                os._exit(130)

    before = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)  # whatever handlers torchrun installs
    threading.Thread(target=watch, name="Ctrl-C", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        there.close()


# ---- inside a process ----------------------------------------------------------------------------------------------


def check_joined(world_size: int, device: torch.device) -> None:
    """Refuses to train alone, or unsharded, where several processes or shards were asked for; rank 0 does the talking."""
    asked = os.environ.get(ASKED)
    if asked is not None and int(asked) != world_size:
        raise UserError(
            f"{asked} processes were asked for and this one is one of {world_size}: fix distributed_type in the config."
        )
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and device.type == "cpu":
        raise UserError(
            "FSDP was asked for on CPU, where Accelerate trains unsharded and does not say so: leave it out."
        )
    if int(os.environ.get("RANK", "0")) > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (for the life of the process)
