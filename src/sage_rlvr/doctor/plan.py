"""``sage-rlvr plan``: memory and disk of a run before it starts, and what to change where it does not fit."""

import argparse
import contextlib
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sage_rlvr.doctor.cards import find_card
from sage_rlvr.doctor.demand import Demand
from sage_rlvr.doctor.machine import existing, hub_cache, memory
from sage_rlvr.doctor.memory import Memory, Part, memory_of, optimizer_bytes, total
from sage_rlvr.errors import UserError, short
from sage_rlvr.launch.recipes import load_recipe
from sage_rlvr.launch.run import parse, take_config
from sage_rlvr.launch.sft import PROJECTIONS
from sage_rlvr.models.fingerprints import folder_of

HALVED = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")


@dataclass(frozen=True)
class Device:
    """Where a run is planned for."""

    name: str
    kind: str  # "cuda" or "cpu"
    memory: float  # bytes, all
    free: float  # bytes, for this run


@dataclass(frozen=True)
class Plan:
    demand: Demand
    device: Device
    memory: Memory
    disk: list[Part]
    disk_free: float
    fixes: list[tuple[str, float]]  # flags → the peak with them; only where the run does not fit
    notes: list[str]

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.device.free

    @property
    def tokens(self) -> int:
        """Generated in all, at most."""
        return self.demand.rollouts * self.demand.rollout_rows * self.demand.completion * self.demand.args.world_size

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.demand.model,
            "device": asdict(self.device),
            "peak_bytes": self.memory.peak,
            "peak_phase": self.memory.worst,
            "fits": self.fits,
            "phases": {name: [asdict(p) for p in parts] for name, parts in self.memory.phases.items()},
            "tokens_generated": self.tokens,
            "steps": self.demand.steps,
            "prompt_tokens": self.demand.prompt,
            "disk": [asdict(p) for p in self.disk],
            "disk_bytes": total(self.disk),
            "disk_free": self.disk_free,
            "fixes": [{"flags": flags, "peak_bytes": peak} for flags, peak in self.fixes],
            "notes": self.notes,
        }


def make_plan(argv: list[str], gpu: str | None = None, prompt_tokens: int | None = None) -> Plan:
    """``argv`` is what train takes: --config RECIPE and overrides. ``gpu`` plans for that card in place of this machine."""
    if prompt_tokens is not None and prompt_tokens < 1:
        raise UserError(f"--prompt_tokens {prompt_tokens} counts the longest prompt's tokens: give 1 or more.")
    demand = Demand(*_parsed(argv, gpu), prompt_tokens)
    device = device_of(gpu, demand.args.use_cpu)
    try:
        needs = memory_of(demand, device.kind == "cuda", device.memory)
    except UserError:
        raise
    except Exception as e:  # the model is run, a few layers of it, without memory: what fails there is its own code
        raise UserError(
            f"no plan can be made for {demand.model} ({type(e).__name__}: {short(e)}): plan follows decoder-only models of "
            "transformers that cache what they generate, and LoRA on modules they have."
        ) from e
    fixes = [] if needs.peak <= device.free else fixes_of(argv, gpu, demand, device, needs.peak)
    free = float(shutil.disk_usage(existing(Path(demand.args.output_dir))).free)
    return Plan(demand, device, needs, disk_of(demand, needs), free, fixes, _notes(demand, device))


def device_of(gpu: str | None, use_cpu: bool) -> Device:
    """The named card; else this machine's GPU where it has one; else its CPU."""
    if gpu:
        card = find_card(gpu)
        return Device(card.title, "cuda", card.memory, card.memory)
    if torch.cuda.is_available() and not use_cpu:
        free, everything = torch.cuda.mem_get_info()
        return Device(torch.cuda.get_device_name(), "cuda", everything, free)
    return Device("this machine's CPU", "cpu", *memory())


def _parsed(argv: list[str], gpu: str | None) -> tuple[Any, Any, Any]:
    """The settings, bf16 as it will be where the run takes place: a GPU that is not here must not be asked."""
    if not gpu:
        return parse(argv)
    find_card(gpu)
    run, args, model_args = parse([*argv, "--bf16", "false"])
    asked = _asked_bf16(argv)
    args.bf16 = not args.fp16 if asked is None else str(asked).lower() not in ("false", "0", "no")
    return run, args, model_args


def _asked_bf16(argv: list[str]) -> Any:
    """By the flag, else by the recipe."""
    argv, recipe = take_config(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--bf16", nargs="?", const=True, default=load_recipe(recipe).get("bf16") if recipe else None)
    return parser.parse_known_args(argv)[0].bf16


# ---- disk ----------------------------------------------------------------------------------------------------------


def disk_of(demand: Demand, needs: Memory) -> list[Part]:
    weights, args = needs.weights, demand.args
    one = weights.trainable + (0 if args.save_only_model else optimizer_bytes(demand, weights))
    saves = _saves(args, demand.steps)
    limit = args.save_total_limit
    left = min(saves, limit + 1) if limit else saves  # one more while the newest is written
    parts = [
        Part("checkpoints", left * one, f"{left} of {one / 1e9:.2g} GB at {args.output_dir}"),
        Part("trained weights", weights.trainable, "the LoRA adapter" if demand.lora is not None else ""),
    ]
    if demand.run.sft:
        size = demand.dtype.itemsize
        parts.append(Part("SFT stage", weights.count * size, "its merged weights; its checkpoints come on top"))
    if not Path(demand.model).exists() and folder_of(demand.model) is None:
        parts.append(Part("model from the Hub", weights.count * 2, f"{demand.model}, once, at {hub_cache()}"))
    return [p for p in parts if p.bytes]


def _saves(args: Any, steps: int) -> int:
    strategy = str(getattr(args.save_strategy, "value", args.save_strategy))
    if strategy == "no" or not steps:
        return 0
    every = args.save_steps if args.save_steps >= 1 else max(1, round(args.save_steps * steps))
    return max(1, -(-steps // int(every)))


# ---- where it does not fit -----------------------------------------------------------------------------------------


def fixes_of(argv: list[str], gpu: str | None, demand: Demand, device: Device, peak: float) -> list[tuple[str, float]]:
    """Each change by itself, planned as its flags are parsed, those that help most first; one that changes the experiment
    comes last. Refused flags, and those that change how many rows a rollout has, are left out."""
    helps = []
    for ways in _changes(demand, device.kind == "cuda"):
        for flags in ways:
            with contextlib.suppress(ValueError):  # also: LoRA on modules that the model does not have
                changed = Demand(*_parsed([*argv, *flags.split()], gpu), demand.prompt)
                if changed.rollout_rows == demand.rollout_rows:
                    helps.append((flags, memory_of(changed, device.kind == "cuda", device.memory).peak))
                    break
    return sorted((fix for fix in helps if fix[1] < 0.98 * peak), key=lambda fix: ("max_tokens" in fix[0], fix[1]))


def _changes(demand: Demand, cuda: bool) -> list[list[str]]:
    """Flags, each with a second way to say it where the first may be refused."""
    changes = []
    if demand.args.tokens_per_microbatch is not None and demand.micro_batch > 1:
        changes.append([f"--tokens_per_microbatch {demand.micro_batch // 2 * demand.length}"])
    elif demand.micro_batch % 2 == 0:
        half = demand.micro_batch // 2
        values = (half, demand.accumulation * 2, demand.rollout_rows // half)
        flags = [f"--{name} {value}" for name, value in zip(HALVED, values)]
        changes.append([" ".join(flags[:2]), " ".join(flags)])  # the second where steps_per_generation is set
    if not demand.args.gradient_checkpointing:
        changes.append(["--gradient_checkpointing true"])
    if demand.lora is None:
        modules = " ".join(PROJECTIONS)
        changes.append([f"--use_peft true --lora_r 8 --lora_dropout 0 --lora_target_modules {modules}"])
    elif demand.dtype == torch.float32 and demand.quantised is None:
        changes.append(["--dtype bfloat16"])
    if cuda and "8bit" not in demand.optim:
        changes.append(["--optim adamw_8bit"])
    if cuda and not (demand.vllm or demand.vllm_server):  # its cache lives within its share
        changes.append(["--use_vllm true --vllm_mode colocate"])
    if cuda and demand.vllm and not demand.args.vllm_enable_sleep_mode:
        changes.append(["--vllm_enable_sleep_mode true"])
    return [*changes, [f"--max_tokens {demand.completion // 2}"]]


def _notes(demand: Demand, device: Device) -> list[str]:
    on_cpu, shards = device.kind == "cpu", demand.args.world_size
    layers = set(getattr(demand.config.get_text_config(), "layer_types", None) or ())
    linear = layers & {"linear_attention", "hybrid"}
    notes = {
        f"prompts are counted as {demand.prompt} tokens: set --prompt_tokens if yours differ.": not demand.prompt_known,
        "planned for this machine's CPU: --gpu rtx4090 plans for a card (plan --help lists them).": on_cpu,
        "the SFT stage before RL is counted in disk alone.": demand.run.sft,
        "the vLLM server's own GPU is not counted.": demand.vllm_server,
        "quantised weights are counted at their packed size, roughly.": demand.quantised is not None,
        "linear-attention and Mamba layers are counted without kernels of their own, which take less memory.": linear,
        "per process; sharding by FSDP or DeepSpeed is not modelled, so it is an upper bound there.": shards > 1,
    }
    return [note for note, holds in notes.items() if holds]
