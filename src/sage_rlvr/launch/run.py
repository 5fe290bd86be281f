"""``sage-rlvr train``: a recipe and flags in TRL's way, SFT where the recipe asks for it, then RL; run again, it goes on."""

import argparse
import json
import re
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from accelerate.utils import patch_environment
from datasets import Dataset
from transformers.hf_argparser import HfArg
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from trl import ModelConfig, TrlParser, get_quantization_config

from sage_rlvr import values
from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.launch import adapters, data, multi_process, sft
from sage_rlvr.launch.random_reward import check_chance
from sage_rlvr.launch.recipes import load_recipe
from sage_rlvr.models import check_vocabulary, is_adapter, load_model, load_tokenizer, write_whole
from sage_rlvr.names import OLD, closest, field_flags, near
from sage_rlvr.provenance import made_with
from sage_rlvr.runs import interrupt, writer
from sage_rlvr.runs.checkpoint import set_aside
from sage_rlvr.tasks import chat_template, get_format, own, rows
from sage_rlvr.tasks.prompts import continued
from sage_rlvr.train.callbacks import HeldOutPassAtK
from sage_rlvr.train.config import SAGEConfig
from sage_rlvr.train.trainer import SAGETrainer

RECORD = "run.json"
# of a model, or of a run that is not from here
OTHERS = ("checkpoint-*", "config.json", "adapter_config.json", sft.RECORD)
UNNAMED = "runs/~unnamed~"  # until task, model and seed are known
# Settings that change neither data nor weights: a run may go on with others
FREE = re.compile(
    r"output_dir|logging_|log_|disable_tqdm|report_to|run_name|project$|trackio|save_|push_|hub_|resume|dataloader_num|"
    r"dataloader_pin|dataloader_pers|dataloader_pre|local_rank|vllm_(gpu|kv|server|group|tensor|enable|max_model)|held_out|data_dir|"
    r"reward_timeout|eval_dataset|correct_at"
)


@dataclass
class RunArguments:
    """What a run needs beside SAGEConfig and TRL's ModelConfig."""

    # fmt: off
    dataset: str | None = HfArg(default=None, help="Your own data: a .jsonl, .json, .csv or .parquet file, a folder, "
        "or a Hub id.")
    reward: list[str] | None = HfArg(default=None, help="Your own rewards, file.py:function or module:function, as TRL "
        "calls them (docs/your_data.md).")
    task: str = HfArg(default="", help="Or problems that ship: 'sage-rlvr tasks' lists them. Default: dapo-math-17k.")
    prompt_column: str | None = HfArg(default=None, help="Column of the prompts in --dataset. Default: prompt, "
        "question or problem.")
    answer_column: str | None = HfArg(default=None, help="Column of the right answers in --dataset. Default: answer or "
        "solution.")
    dataset_config: str | None = HfArg(default=None, help="Config of a Hub dataset, such as main.")
    split: str | None = HfArg(default=None, help="Split of a Hub dataset or folder. Default: train.")
    extract: str | None = HfArg(default=None, help="How an answer is found in a completion: marked (<SOLUTION> or "
        "\\boxed), any (also the last number), or file.py:function. Default: as the prompt format does.")
    holdout: int | None = HfArg(default=None, help="So many rows of --dataset are not trained on, and their pass@k is "
        "measured while training. The same rows for every seed; 'sage-rlvr eval --dataset … --holdout' samples them.")
    eval_dataset: str | None = HfArg(default=None, help="Or your own held-out data, as --dataset; the first "
        "held_out_rows of them are measured.")
    correct_at: float = HfArg(default=1.0, help="With --reward: a held-out completion is right where its weighted "
        "reward is at least this.")
    rows: int | None = HfArg(default=None, help="Only so many rows, the first, of --task or --dataset.")
    within_reach: str | None = HfArg(default=None, help="Folder of an evaluation of the start model on the task: of "
        "the rows, only problems it solves sometimes.")
    prompt_format: str = HfArg(default="", help="Prompt format: paper, boxed, plain, symbols, as_is, or a registered "
        "name. Default: paper; with --dataset boxed; with --dataset and --reward as_is.")
    data_dir: str | None = HfArg(default=None, help="Folder of local task files, in the Hub's schema.")
    decontaminate: bool | None = HfArg(default=None, help="Drop problems that repeat an evaluation problem; true "
        "fetches the benchmarks. Default: for mathematics that ships, against the benchmarks on this machine.")
    random_reward: float | None = HfArg(default=None, help="A control: training is paid 1 with this chance, else 0, "
        "whatever was answered. The true verdict is logged as sage/true_reward; held-out curves and evaluations do not "
        "change.")
    sft: str | None = HfArg(default=None, help="Recipe of the SFT stage before RL, made in sft/ beside output_dir once "
        "for all runs; none: RL only.")
    held_out: list[str] | None = HfArg(default=None, help="Tasks whose pass@k is measured while training.")
    held_out_rows: int = HfArg(default=32, help="Problems of each held-out task.")
    held_out_every: int = HfArg(default=50, help="Steps between held-out measurements.")
    held_out_n: int = HfArg(default=8, help="Samples per held-out problem: pass@1 and pass@n are logged.")
    resume: bool = HfArg(default=True, help="Go on from the newest whole checkpoint in output_dir.")
    # fmt: on

    def __post_init__(self) -> None:
        values.check(self)
        data.check(self)
        if self.random_reward is not None:
            check_chance(self.random_reward)


# ---- parsing -------------------------------------------------------------------------------------------------------


class _Parser(TrlParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(values.sentence(message))


def make_parser() -> TrlParser:
    return _Parser((RunArguments, SAGEConfig, ModelConfig), prog="sage-rlvr train", allow_abbrev=False)


def take_config(argv: list[str]) -> tuple[list[str], str | None]:
    """The command without ``--config``, and the recipe that it names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="?", const="")
    given, rest = parser.parse_known_args(argv)
    if given.config == "":
        raise UserError(
            "--config names no recipe: write --config recipes/branch.yaml ('sage-rlvr recipes' lists them)."
        )
    return rest, given.config


def parse(argv: list[str], read: bool = True) -> tuple[RunArguments, SAGEConfig, ModelConfig]:
    """``--config RECIPE`` gives defaults, flags override them; an unknown name on either side is refused. ``read``: the user's
    own data and rewards are read and checked too."""
    argv, name = take_config(field_flags(argv))
    settings = load_recipe(name) if name else {}
    flags = {word.partition("=")[0] for word in argv}
    if "--dataset" in flags:
        settings.pop("task", None)  # the flag says what to train on, whatever the recipe says
    if "--task" in flags:
        for key in ("dataset", *data.DATA_FLAGS):
            settings.pop(key, None)
    recipe = dict(settings)
    settings.setdefault("output_dir", UNNAMED)
    parser = make_parser()
    values.refuse_gone(settings, f"recipe {name}: ")
    unknown = parser.set_defaults_with_config(**settings)
    if unknown:
        raise UserError(f"recipe {name}: {_unknown(unknown[0].removeprefix('--'))}")
    try:
        *parsed, strangers = parser.parse_args_into_dataclasses(args=argv, return_remaining_strings=True)
    except UserError:
        raise
    except (ValueError, ImportError) as e:  # what TRL and transformers refuse is a value that somebody wrote
        raise UserError(" ".join(str(e).split())) from e
    if strangers:
        flag, _, value = strangers[0].removeprefix("--").partition("=")
        values.refuse_gone({flag: value or next(iter(strangers[1:]), 1.0)})
        raise UserError(_unknown(flag))
    run, args, model_args = parsed
    values.check(model_args)
    if read:
        data.prepare(run)
    for f in fields(args):
        if isinstance(value := getattr(args, f.name), str) and value.startswith(UNNAMED):
            setattr(args, f.name, value.replace(UNNAMED, default_folder(name, recipe, run, args, model_args)))
    return run, args, model_args


def default_folder(
    name: str | None, recipe: dict[str, Any], run: RunArguments, args: SAGEConfig, model_args: ModelConfig
) -> str:
    """runs/branch for a recipe as it is, runs/branch-countdown-s0 with another task and seed; without a recipe, by guide, task
    and model. Runs that differ in anything else need an output_dir of their own: they are refused in this one."""
    words = [Path(name).stem if name else {"none": "grpo"}.get(args.guide, args.guide.rpartition(":")[2])]
    own = {"task": (run.task, data.DEFAULT), "model_name_or_path": (model_args.model_name_or_path, None)}
    for setting, (value, default) in own.items():
        if value and (not name or value != recipe.get(setting, default)):
            words.append(Path(value).name.partition(".json")[0])
    if args.seed != recipe.get("seed", SAGEConfig.seed):
        words.append(f"s{args.seed}")
    return "runs/" + re.sub(r"[^\w.+-]+", "-", "-".join(words))


def _unknown(name: str) -> str:
    known = [OLD.get(f.name, f.name) for cls in (RunArguments, SAGEConfig, ModelConfig) for f in fields(cls)]
    close = closest(name, [*known, "config"])
    return f"there is no setting {name!r}" + (f"; did you mean {' or '.join(close)}?" if close else ": see --help_all.")


# ---- running -------------------------------------------------------------------------------------------------------


def train(argv: list[str], go_on: str | None = None) -> Path:
    """The whole run; answers the folder of the trained weights. ``go_on``: what a user who interrupts it is told to do (their
    own command again)."""
    go_on = go_on or interrupt.go_on("train", argv)
    argv, config, processes = multi_process.take_flags(argv)
    if config is not None:
        with patch_environment(**{interrupt.GO_ON: go_on}):
            raise SystemExit(multi_process.launch(["train", *argv], config, processes))
    run, args, model_args = parse(argv)
    multi_process.check_joined(args.world_size, args.device)
    check_installed(args, model_args)
    start = _sft_stage(run, args, model_args, go_on) or model_args.model_name_or_path
    if not start:
        raise UserError("no model to train: give --model a Hub id, a folder or a .gguf file.")
    if args.max_steps == 0:
        print(f"max_steps=0: RL takes no step, the model is {start}")
        return Path(start)
    folder = Path(args.output_dir)
    settings = settings_of(run, args, model_args)
    if not _finished(folder, run, settings):  # first without the lock: it may be a folder that cannot be written
        with writer.only_writer(folder):
            if not _finished(folder, run, settings):  # by the run that had the lock until now
                _train(run, args, model_args, str(start), settings, go_on)
                return folder
    print(
        f"{folder} is finished; its weights are there (another --out starts a new run, --no_resume starts this one again)"
    )
    return folder


def _finished(folder: Path, run: RunArguments, settings: dict[str, Any]) -> bool:
    return read_record(folder, settings) and run.resume


def _train(
    run: RunArguments, args: SAGEConfig, model_args: ModelConfig, start: str, settings: dict[str, Any], go_on: str
) -> None:
    folder = Path(args.output_dir)
    trainer = build(run, args, model_args, start)
    trainer.go_on, trainer.data_name = go_on, run.task
    record = {"settings": settings, **made_with()}
    if args.process_index == 0:
        if not run.resume:
            set_aside(folder)
        write_whole(folder / RECORD, json.dumps({**record, "finished": False}, indent=1) + "\n")
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=bool(run.resume) or None)
    trainer.save_model(args.output_dir)
    if args.process_index == 0:
        write_whole(folder / RECORD, json.dumps({**record, "finished": True}, indent=1) + "\n")
    if args.push_to_hub:
        trainer.push_to_hub(dataset_name=run.task)


def build(run: RunArguments, args: SAGEConfig, model_args: ModelConfig, start: str) -> SAGETrainer:
    """The trainer of a run, with data, prompts, reward and held-out measurement as the arguments say."""
    trusted = args.trust_remote_code
    reward, candidates = data.rewards(run, args), data.candidates(run)
    trained = data.problems(run, candidates)
    tokenizer, fmt = load_tokenizer(start, trust_remote_code=trusted), get_format(run.prompt_format)
    text = continued(trained[0], fmt) is not None
    if run.dataset and args.process_index == 0:
        print(data.data_line(run, len(trained), text, bool(tokenizer.chat_template)))
    held_out = list(data.held_out(run, args, trained))
    if not all(continued(p, fmt) is not None for asked in (trained, *(held for _, held, _ in held_out)) for p in asked):
        tokenizer.chat_template = chat_template(tokenizer, fmt)
    tokenizer.padding_side = "left"
    if args.stop_strings is None:
        args.stop_strings = list(fmt.stop)
    adapter = is_adapter(start)
    model = load_model(
        start,
        dtype=model_args.dtype,
        trust_remote_code=trusted,
        attn_implementation=model_args.attn_implementation,
        trainable_adapter=adapter,
        **({"quantization_config": q} if (q := get_quantization_config(model_args)) is not None else {}),
    )
    check_vocabulary(model, tokenizer)
    trainer = SAGETrainer(
        model,
        reward,
        args,
        train_dataset=Dataset.from_list(rows(trained, run.prompt_format)),
        keep_dataset=Dataset.from_list(rows(candidates, run.prompt_format)) if args.keep_from else None,
        processing_class=tokenizer,
        peft_config=None if adapter else adapters.lora(model, model_args),  # an adapter from SFT is trained further
    )
    trainer.card_more = data.card(run, len(trained))
    for name, held, judge in held_out:
        asked = rows(held, run.prompt_format)
        trainer.add_callback(HeldOutPassAtK(trainer, asked, judge, run.held_out_every, run.held_out_n, label=name))
    return trainer


def _sft_stage(run: RunArguments, args: SAGEConfig, model_args: ModelConfig, go_on: str) -> Path | None:
    if not run.sft:
        return None
    folder = Path(args.output_dir).parent / "sft"
    recipe = load_recipe(run.sft)
    more: dict[str, Any] = {"report_to": args.report_to, "disable_tqdm": args.disable_tqdm, "use_cpu": args.use_cpu}
    if "8bit" in str(recipe.get("optim")) and find_spec("bitsandbytes") is None:
        more["optim"] = args.optim  # checked above: the run has been told to do without
    if run.data_dir:
        more["data_dir"] = run.data_dir
    if run.decontaminate is False:
        more["decontaminate"] = False
    stage, config = sft.from_recipe(recipe, folder, model_args.model_name_or_path, **more)
    return sft.run_sft(stage, config, go_on=go_on)


def check_installed(args: SAGEConfig, model_args: ModelConfig | None = None) -> None:
    optim = str(getattr(args.optim, "value", args.optim))
    if "8bit" in optim and find_spec("bitsandbytes") is None:
        raise UserError(f"optim={optim} needs bitsandbytes: pip install 'sage-rlvr[gpu]', or set --optim adamw_torch.")
    for tracker in args.report_to or []:
        if tracker not in INTEGRATION_TO_CALLBACK:
            raise UserError(f"report_to={tracker!r} is unknown: {near(tracker, sorted(INTEGRATION_TO_CALLBACK))}.")
    if model_args and (model_args.load_in_4bit or model_args.load_in_8bit) and find_spec("bitsandbytes") is None:
        raise UserError(
            "load_in_4bit and load_in_8bit need bitsandbytes: pip install 'sage-rlvr[gpu]', or leave them out."
        )
    if args.eval_strategy != "no":
        raise UserError(
            f"eval_strategy={args.eval_strategy.value} is TRL's own evaluation, which train does not use: for held-out pass@k "
            "write --holdout 100, --eval_dataset FILE or --held_out TASK."
        )
    if args.use_vllm and find_spec("vllm") is None:
        raise UserError("use_vllm needs vLLM: pip install 'sage-rlvr[vllm]', or set --use_vllm false.")


# ---- the record: what the folder was made with -------------------------------------------------------------------


def settings_of(run: RunArguments, args: SAGEConfig, model_args: ModelConfig, engine: str = "trl") -> dict[str, Any]:
    everything = asdict(run) | args.to_dict() | asdict(model_args) | own.digests(run, run.task) | {"engine": engine}
    if run.decontaminate is None:
        everything["decontaminate"] = not run.dataset  # as runs were recorded before it had a third value
    return json.loads(json.dumps({k: v for k, v in sorted(everything.items()) if not FREE.match(k)}, default=str))


def read_record(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the run in this folder is finished; other settings than its own are refused with the field that differs."""
    path = folder / RECORD
    if not path.is_file():
        others = [p.name for kind in OTHERS for p in sorted(folder.glob(kind))]
        if others:
            raise UserError(f"{folder} holds something else ({others[0]}, and no {RECORD}): use another output_dir.")
        return False
    record = read_json(path, settings=dict, finished=bool)
    made = record["settings"]
    same_rows = made.get("dataset_digest", "") == settings.get("dataset_digest")
    for name in sorted(made.keys() & settings.keys()):
        if made[name] != settings[name] and not (same_rows and name in ("dataset", "task")):
            if data.changed(folder, name, made[name], settings[name]):
                continue
            raise UserError(
                f"{folder} was made with {name}={made[name]!r} and this run has {settings[name]!r}: "
                f"use another --out, or set {name} back."
            )
    return record["finished"]
