"""``sage-rlvr plan``: memory, time and disk of a run before it starts, and what to change where it does not fit."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sage_rlvr.doctor.demand import Demand, demand_of
from sage_rlvr.doctor.machine import hub_cache
from sage_rlvr.doctor.memory import Memory, Part, memory_of, optimizer_bytes, total
from sage_rlvr.doctor.pace import Device, named_gpu, seconds_of, this_machine
from sage_rlvr.errors import UserError
from sage_rlvr.launch.recipes import load_recipe
from sage_rlvr.launch.run import parse
from sage_rlvr.launch.sft import PROJECTIONS


@dataclass(frozen=True)
class Plan:
    demand: Demand
    device: Device
    memory: Memory
    seconds: dict[str, float]
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
        return self.demand.rollouts * self.demand.rollout_rows * self.demand.completion * self.demand.processes

    def as_dict(self) -> dict[str, Any]:
        d, parts = self.demand, lambda found: [asdict(p) for p in found]
        return {
            "model": d.model,
            "device": asdict(self.device),
            "peak_bytes": self.memory.peak,
            "peak_phase": self.memory.worst,
            "fits": self.fits,
            "phases": {name: parts(found) for name, found in self.memory.phases.items()},
            "seconds": self.seconds,
            "total_seconds": sum(self.seconds.values()),
            "tokens_generated": self.tokens,
            "steps": d.steps,
            "prompt_tokens": d.prompt,
            "disk": parts(self.disk),
            "disk_bytes": total(self.disk),
            "disk_free": self.disk_free,
            "fixes": [{"flags": flags, "peak_bytes": peak} for flags, peak in self.fixes],
            "notes": self.notes,
        }


def make_plan(
    argv: list[str], gpu: str | None = None, prompt_tokens: int | None = None, probe_seconds: float = 0.7
) -> Plan:
    """``argv`` is what train takes: --config RECIPE and overrides. ``gpu`` plans for that card in place of this machine."""
    if prompt_tokens is not None and prompt_tokens < 1:
        raise UserError(f"--prompt_tokens {prompt_tokens} counts the longest prompt's tokens: give 1 or more.")
    run, args, model_args, bf16 = _parsed(argv, gpu)
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "max_completion_length"):
        if getattr(args, name) < 1:
            raise UserError(f"{name}={getattr(args, name)} leaves nothing to plan: set it to 1 or more.")
    demand = demand_of(run, args, model_args, bf16, prompt_tokens)
    device = named_gpu(gpu) if gpu else this_machine(args.use_cpu, demand.autocast, probe_seconds)
    try:
        memory = memory_of(demand, device.kind == "cuda", device.memory)
    except UserError:
        raise
    except Exception as e:  # the model is run, a few layers of it, without memory: what fails there is its own code
        why = f"{type(e).__name__}: {' '.join(str(e).split())}"[:160]
        raise UserError(
            f"no plan can be made for {demand.model} ({why}): plan follows decoder-only models of transformers that cache what "
            "they generate, and LoRA on modules they have."
        ) from e
    disk, folder = disk_of(run, args, demand, memory), Path(args.output_dir).absolute()
    there = next(p for p in [folder, *folder.parents] if p.exists())
    fits = memory.peak <= device.free
    return Plan(
        demand,
        device,
        memory,
        seconds_of(demand, memory, device),
        disk,
        float(shutil.disk_usage(there).free),
        [] if fits else fixes_of(demand, device, memory.peak, lambda flags: _rollout([*argv, *flags], gpu)),
        _notes(run, demand, device, gpu),
    )


def _parsed(argv: list[str], gpu: str | None) -> tuple[Any, Any, Any, bool]:
    """The settings, and whether bf16 will be on where the run takes place: a GPU that is not here must not be asked."""
    if not gpu:
        run, args, model_args = parse(argv)
        return run, args, model_args, bool(args.bf16)
    named_gpu(gpu)
    run, args, model_args = parse([*argv, "--bf16", "false"])
    asked = _asked_bf16(argv)
    return run, args, model_args, not args.fp16 if asked is None else asked


def _rollout(argv: list[str], gpu: str | None) -> int | None:
    """Rows of a rollout on all devices; None where the settings are refused."""
    try:
        return _parsed(argv, gpu)[1].generation_batch_size
    except ValueError:  # no whole groups, or UserError
        return None


def _asked_bf16(argv: list[str]) -> bool | None:
    value: Any = load_recipe(argv[argv.index("--config") + 1]).get("bf16") if "--config" in argv else None
    argv = [part for word in argv for part in (word.split("=", 1) if word.startswith("--bf16=") else [word])]
    if "--bf16" in argv:
        value = argv[len(argv) - argv[::-1].index("--bf16")]  # the parser refuses it without one
    return None if value is None else str(value).lower() not in ("false", "0", "no")


# ---- disk ----------------------------------------------------------------------------------------------------------


def disk_of(run: Any, args: Any, demand: Demand, memory: Memory) -> list[Part]:
    weights = memory.weights
    one = weights.trainable + (0 if args.save_only_model else optimizer_bytes(demand, weights))
    saves = _saves(args, demand.steps)
    limit = args.save_total_limit
    kept = min(saves, limit + 1) if limit else saves  # one more while the newest is written
    parts = [
        Part("checkpoints", kept * one, f"{kept} of {one / 1e9:.2g} GB at {args.output_dir}"),
        Part("trained weights", weights.trainable, "the LoRA adapter" if demand.lora is not None else ""),
    ]
    if run.sft:
        size = demand.dtype.itemsize
        parts.append(Part("SFT stage", weights.count * size, "its merged weights; its checkpoints come on top"))
    if not Path(demand.model).exists() and not cached(demand.model):
        parts.append(Part("model from the Hub", weights.count * 2, f"{demand.model}, once, at {hub_cache()}"))
    return [p for p in parts if p.bytes]


def _saves(args: Any, steps: int) -> int:
    strategy = str(getattr(args.save_strategy, "value", args.save_strategy))
    if strategy == "no" or not steps:
        return 0
    every = args.save_steps if args.save_steps >= 1 else max(1, round(args.save_steps * steps))
    return max(1, -(-steps // int(every)))


def cached(name: str) -> bool:
    return (hub_cache() / f"models--{name.replace('/', '--')}" / "snapshots").is_dir()


# ---- where it does not fit -----------------------------------------------------------------------------------------


Rollout = Callable[[list[str]], int | None]  # flags → rows of a rollout with them


def fixes_of(demand: Demand, device: Device, peak: float, rollout: Rollout) -> list[tuple[str, float]]:
    """Each change by itself, those that help most first; one that changes the experiment comes last."""
    cuda = device.kind == "cuda"
    helps = []
    for flags, changed in _changes(demand, cuda, rollout):
        with contextlib.suppress(ValueError):  # LoRA on modules that the model does not have
            new = memory_of(changed, cuda, device.memory).peak
            helps += [(flags, new)] if new < 0.98 * peak else []
    return sorted(helps, key=lambda fix: ("max_tokens" in fix[0], fix[1]))


def _changes(demand: Demand, cuda: bool, rollout: Rollout) -> list[tuple[str, Demand]]:
    from peft import LoraConfig

    found: list[tuple[str, Demand]] = []
    if demand.micro_batch > 1 and (demand.by_tokens or demand.micro_batch % 2 == 0):
        half, twice = demand.micro_batch // 2, demand.accumulation * 2
        flags = f"--per_device_train_batch_size {half} --gradient_accumulation_steps {twice}"
        ways = [flags, f"{flags} --steps_per_generation {demand.rollout_rows // half}"]  # the second where that is set
        if demand.by_tokens:
            ways = [f"--tokens_per_microbatch {half * demand.length}"]
        kept = [way for way in ways if rollout(way.split()) == rollout([])]
        found += [(way, replace(demand, micro_batch=half, accumulation=twice)) for way in kept[:1]]
    if not demand.checkpointing:
        found.append(("--gradient_checkpointing true", replace(demand, checkpointing=True)))
    if demand.lora is None:
        lora = LoraConfig(r=8, target_modules=list(PROJECTIONS), task_type="CAUSAL_LM")
        flags = f"--use_peft true --lora_r 8 --lora_dropout 0 --lora_target_modules {' '.join(PROJECTIONS)}"
        found.append((flags, replace(demand, lora=lora)))
    elif demand.dtype == torch.float32 and demand.quantised is None:
        found.append(("--dtype bfloat16", replace(demand, dtype=torch.bfloat16)))
    if cuda and "8bit" not in demand.optim:
        found.append(("--optim adamw_8bit", replace(demand, optim="adamw_8bit")))
    if cuda and not (demand.vllm or demand.vllm_server):  # its cache lives within its share
        found.append(("--use_vllm true --vllm_mode colocate", replace(demand, vllm=0.3)))
    if cuda and demand.vllm and not demand.vllm_sleeps:
        found.append(("--vllm_enable_sleep_mode true", replace(demand, vllm_sleeps=True)))
    found.append((f"--max_tokens {demand.completion // 2}", replace(demand, completion=demand.completion // 2)))
    return found


def _notes(run: Any, demand: Demand, device: Device, gpu: str | None) -> list[str]:
    notes = ["time is rough, and an upper bound: every completion is counted as long as max_tokens allows."]
    if not demand.prompt_known:
        notes.append(f"prompts are counted as {demand.prompt} tokens: set --prompt_tokens if yours differ.")
    if device.kind == "cpu" and not gpu:
        notes.append("planned for this machine's CPU: --gpu rtx4090 plans for a card (plan --help lists them).")
    if run.sft:
        notes.append("the SFT stage before RL is counted in disk alone.")
    if demand.vllm_server:
        notes.append("the vLLM server's own GPU is not counted.")
    if demand.quantised is not None:
        notes.append("quantised weights are counted at their packed size, roughly.")
    if {"linear_attention", "hybrid"} & set(getattr(demand.config.get_text_config(), "layer_types", None) or ()):
        notes.append(
            "linear-attention and Mamba layers are counted without kernels of their own, which take less memory."
        )
    if demand.processes > 1:
        notes.append("per process; sharding by FSDP or DeepSpeed is not modelled, so it is an upper bound there.")
    return notes
