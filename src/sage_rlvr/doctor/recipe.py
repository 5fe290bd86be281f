"""Whether a given config can run here, each obstacle with its fix."""

from pathlib import Path
from typing import Any

from sage_rlvr.doctor.architectures import architecture
from sage_rlvr.doctor.machine import GB, Check, disk_checks
from sage_rlvr.doctor.plan import make_plan
from sage_rlvr.errors import UserError, short
from sage_rlvr.launch import run as training
from sage_rlvr.launch import sft
from sage_rlvr.launch.recipes import load_recipe
from sage_rlvr.models import base_of, is_adapter, load_tokenizer
from sage_rlvr.models.fingerprints import folder_of
from sage_rlvr.models.gguf import is_gguf
from sage_rlvr.models.loading import check_folder, check_shapes, hub_in_reach, resolved
from sage_rlvr.tasks.loading import local_files
from sage_rlvr.tasks.registry import get_task
from sage_rlvr.tasks.trivial import warning


def config_checks(config: str) -> list[Check]:
    """The settings as the trainer itself judges them first; what follows needs them."""
    load_recipe(config)  # no such recipe: wrong use
    argv = ["--config", config]
    try:
        run, args, model_args = training.parse(argv)
    except (ValueError, ImportError) as e:
        return [_refused("settings", e)]
    checks = [
        Check("settings", True, f"{config} can be built"),
        _asked("libraries", lambda: _installed(args)),
        _accelerator(args),
        _asked("model", lambda: model_check(model_args.model_name_or_path, args.trust_remote_code)),
        _asked(f"data of {run.task}", lambda: data_check(run.task, run.data_dir)),
    ]
    if pays := warning(run.task):
        fix = "watch the completions: sage-rlvr tasks show names the policy."
        checks.append(Check("trivial answers", None, pays, fix))
    if run.sft:
        checks += _sft_checks(run, args, model_args)
    checks.append(_asked("output_dir", lambda: _unclaimed(run, args, model_args)))
    return [*checks, *_plan_checks(argv)]


def _refused(name: str, e: Exception) -> Check:
    """The library's or our own sentence: what is wrong stands before the colon, how to fix it after."""
    what = " ".join(str(e).split())
    found, colon, fix = what.partition(": ")
    return Check(name, False, found, fix) if colon else Check(name, False, what, "change the setting it names.")


def _asked(name: str, look: Any) -> Check:
    try:
        found = look()
    except (ValueError, OSError) as e:
        return _refused(name, e)
    return found if isinstance(found, Check) else Check(name, True, str(found))


def _installed(args: Any) -> str:
    training.check_installed(args)
    return "those that the config uses are there"


def _accelerator(args: Any) -> Check:
    import torch

    optim = str(getattr(args.optim, "value", args.optim))
    if torch.cuda.is_available() and not args.use_cpu:
        return Check("accelerator", True, torch.cuda.get_device_name())
    if args.use_vllm and args.vllm_mode == "colocate":
        return Check("accelerator", False, "use_vllm without a GPU", "set --use_vllm false, or run it on a GPU.")
    if "8bit" in optim:
        return Check("accelerator", False, f"optim={optim} without a GPU", "set --optim adamw_torch.")
    if args.bf16 or args.fp16:
        kind = "bf16" if args.bf16 else "fp16"
        return Check("accelerator", True, f"none: {kind} on a CPU is slow", f"set --{kind} false.")
    return Check("accelerator", True, "none: the run will use the CPU")


# ---- model and data ------------------------------------------------------------------------------------------------


def model_check(name: str | None, trusted: bool = False) -> str | Check:
    if not name:
        raise UserError("the config names no model: set model to a Hub id, a folder or a .gguf file.")
    source = resolved(name)
    if is_gguf(source):
        return f"{Path(source).name}, to be dequantised once"
    if is_adapter(source):
        return adapter_fits(source, trusted)
    if Path(source).is_dir():
        check_folder(Path(source), trusted)
        load_tokenizer(source, trust_remote_code=trusted)
        return f"folder {name}"
    if folder_of(source) is not None:
        return f"{source}, in the Hub's cache"
    return _from_hub("model", source, "give --model the folder of a copy")


def adapter_fits(adapter: str, trusted: bool = False) -> str:
    """Each LoRA pair against the layer it is for, on a base without storage."""
    import torch
    from transformers import AutoModelForCausalLM

    base = base_of(adapter)
    if not any(Path(adapter).glob("adapter_model.*")):
        raise UserError(f"{adapter} has no adapter_model.safetensors: its save was interrupted, so make it again.")
    if Path(base).is_dir():
        check_folder(Path(base), trusted)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(architecture(base, trusted), trust_remote_code=trusted)
    check_shapes(model, base, Path(adapter))
    return f"adapter of {base}"


def data_check(task: str, data_dir: str | None) -> str | Check:
    parts = [get_task(name) for name in get_task(task).parts or (task,)]
    if all(part.generate for part in parts):
        return "generated"
    files = [local_files(part, data_dir) for part in parts]
    if all(files):
        return ", ".join(path.name for found in files for path in found.values())
    missing = next(part for part, found in zip(parts, files) if not found)
    stem = next((s.files[0] for split in missing.splits.values() for s in split if s.files), missing.name)
    return _from_hub(f"data of {task}", missing.hub, f"put {stem}.jsonl into data_dir", data=True)


def _from_hub(name: str, source: str, fix: str, data: bool = False) -> Check:
    if hub_in_reach(3.0):
        return Check(name, True, f"{source}, to be fetched from the Hub")
    if data:  # datasets keeps its own cache, whose layout is its own affair
        found = f"{source} is not in a data folder and the Hub is out of reach; perhaps cached"
        return Check(name, None, found, f"{fix}.")
    return Check(name, False, f"{source} is not here and the Hub is out of reach", f"go online, or {fix}.")


def _sft_checks(run: Any, args: Any, model_args: Any) -> list[Check]:
    def build() -> str:
        folder = str(Path(args.output_dir).parent / "sft")
        stage, _ = sft.from_recipe(load_recipe(run.sft), folder, model_args.model_name_or_path, use_cpu=args.use_cpu)
        return f"{stage.task}, kept as {stage.result} in {folder}"

    task = str(load_recipe(run.sft).get("task", sft.SFTRun.task))
    return [_asked("SFT stage", build), _asked(f"data of {task}", lambda: data_check(task, run.data_dir))]


def _unclaimed(run: Any, args: Any, model_args: Any) -> str:
    done = training.read_record(Path(args.output_dir), training.settings_of(run, args, model_args))
    return f"{args.output_dir}, {'finished already' if done else 'free or of this run'}"


# ---- by plan -------------------------------------------------------------------------------------------------------


def _plan_checks(argv: list[str]) -> list[Check]:
    try:
        plan = make_plan(argv)
    except (ValueError, RuntimeError) as e:
        return [Check("memory", None, f"no plan could be made ({short(e)})")]
    found = f"about {plan.memory.peak / GB:.1f} GB of {plan.device.free / GB:.1f} GB free on {plan.device.name}"
    enough = [flags for flags, peak in plan.fixes if peak <= plan.device.free]
    flags = (enough or [flags for flags, _ in plan.fixes] or ["a smaller model"])[0]
    fix = "" if plan.fits else f"try {flags}; 'sage-rlvr plan' shows what costs what."
    needed = sum(p.bytes for p in plan.disk if p.name != "model from the Hub")
    return [Check("memory", plan.fits, found, fix), disk_checks(plan.demand.args.output_dir, needed)[0]]
