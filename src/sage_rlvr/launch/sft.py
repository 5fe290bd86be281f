"""The SFT stage: a base model learns the prompt format before RL, and RL starts from what this stage returns.

The reference of the RL stage is the model *after* SFT, whichever way the adapter is kept. Merged: the folder is an ordinary
model. As an adapter: load it with ``load_model(folder, trainable_adapter=True)`` and give the PeftModel to the trainer with no
peft_config; TRL then freezes a copy of it as "ref".

    run_sft(SFTRun(model="Qwen/Qwen2.5-Math-7B"), SFTConfig(output_dir="runs/sft"))     # → runs/sft/merged
"""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from transformers.utils import is_torch_bf16_gpu_available
from trl import ModelConfig, SFTConfig, SFTTrainer

from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.launch.adapters import lora
from sage_rlvr.models import check_vocabulary, is_adapter, load_model, load_tokenizer, merge_adapter, write_whole
from sage_rlvr.models.folders import put_in_place
from sage_rlvr.names import FIELDS
from sage_rlvr.runs import interrupt, writer
from sage_rlvr.runs.checkpoint import WholeCheckpoints, load_state, save_state, take_last_complete
from sage_rlvr.tasks import chat_template, decontaminate, evaluation_problems, load_task, sft_rows

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA = ("use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")  # as TRL's ModelConfig calls them
RECORD = "sft.json"  # the stage's settings and, once it is finished, where its weights lie
# SFTConfig fields that change neither data nor weights: a stage may go on, or be reused, with others
_FREE = re.compile(
    r"output_dir|log|disable_tqdm|report_to|run_name|project$|trackio|eval|.*_eval|prediction_loss|include_|save_|enable_jit|"
    r"push_|hub_|metric_for|greater_is|ignore_data|restore_|dataloader_(?!drop)|ddp_|debug|skip_memory|do_|resume_|local_rank|"
    r"accelerator|parallelism|fsdp|deepspeed|use_cpu|torch_|tf32|gradient_checkpointing|activation_offloading|use_cache|"
    r"dataset_num_proc|trust_remote_code"
)
_log = logging.getLogger(__name__)


@dataclass
class SFTRun:
    """What the SFT stage needs beyond TRL's SFTConfig; names shared with TRL's ModelConfig mean the same."""

    model: str | None = None  # the base: a Hub id, a folder or a .gguf file; None: the run's own
    task: str = "openmathreasoning-mini"  # with worked solutions
    rows: int | None = None  # only the task's first
    prompt_format: str = "paper"
    data_dir: str | None = None  # of local task files
    decontaminate: bool = True  # drop problems that repeat an evaluation problem
    max_prompt_share: float = 0.5  # rows whose prompt takes more than this share of max_length are left out
    keep: Literal["merged", "adapter"] = (
        "merged"  # what RL starts from: merged weights, or base + adapter, trained further
    )
    use_peft: bool = True  # LoRA; False trains every weight
    lora_r: int = 8
    lora_alpha: int = 16
    lora_dropout: float = 0.0
    lora_target_modules: list[str] = field(default_factory=lambda: list(PROJECTIONS))
    dtype: str = "float32"  # the model is loaded and merged in it; auto: as stored
    attn_implementation: str | None = None

    def __post_init__(self) -> None:
        if self.keep not in ("merged", "adapter"):
            raise UserError(f"keep={self.keep!r} is unknown; choose merged or adapter.")
        if not 0 < self.max_prompt_share <= 1:
            raise UserError(f"max_prompt_share={self.max_prompt_share} is a share of max_length; set it in (0, 1].")

    @property
    def result(self) -> str:
        """The name of the folder, inside output_dir, that RL starts from."""
        return self.keep if self.use_peft else "model"


def from_recipe(
    recipe: dict[str, Any], output_dir: str | Path, model: str | None = None, **more: Any
) -> tuple[SFTRun, SFTConfig]:
    """A recipe's settings as the two arguments of run_sft; ``model`` is used if the recipe names none, ``more`` wins."""
    settings = {("model" if name == FIELDS["model"] else name): value for name, value in {**recipe, **more}.items()}
    mine = {f.name for f in fields(SFTRun)}
    theirs = {f.name for f in fields(SFTConfig)}
    unknown = sorted(set(settings) - mine - theirs)
    if unknown:
        raise UserError(f"the SFT recipe has {unknown[0]!r}, which is a field of neither SFTRun nor TRL's SFTConfig.")
    run = SFTRun(**{"model": model, **{k: v for k, v in settings.items() if k in mine}})
    config = {"output_dir": str(output_dir), **{k: v for k, v in settings.items() if k in theirs}}
    if not config.get("fp16") and not is_torch_bf16_gpu_available():
        config.setdefault("bf16", False)  # TRL would say True and then refuse to start
    return run, SFTConfig(**config)


def run_sft(
    run: SFTRun, config: SFTConfig, dataset: Iterable[dict[str, Any]] | None = None, go_on: str = "call run_sft again"
) -> Path:
    """Trains, and returns the folder that RL starts from (inside output_dir: merged, adapter or model).

    ``dataset``: prompt/completion rows, text or conversational, in place of the task's. Loss is on the completion alone.
    Called again after a kill it goes on from the last complete checkpoint; a finished stage is returned at once; other
    settings in the same folder are refused. ``go_on``: what a user who interrupts it is told to do.
    """
    if not run.model:
        raise UserError("the SFT stage has no model: set model to a Hub id, a folder or a .gguf file.")
    if is_adapter(run.model):
        raise UserError(f"SFT cannot start from the adapter {run.model}: merge it first (sage-rlvr merge).")
    if config.completion_only_loss is False:
        raise UserError("completion_only_loss=false: SFT here teaches completions alone; leave it out.")
    folder = Path(config.output_dir)
    rows = None if dataset is None else list(dataset)
    if not _finished(folder, run, _settings(run, config, rows)):  # first without the lock: it may not be writable
        with writer.only_writer(folder):
            _make(run, config, rows, go_on)
    return folder / run.result


def _make(run: SFTRun, config: SFTConfig, rows: list[dict[str, Any]] | None, go_on: str) -> None:
    """What is missing of the stage."""
    folder, everyone = Path(config.output_dir), config.distributed_state
    rows = _task_rows(run) if rows is None else rows
    settings = _settings(run, config, rows)
    if _finished(folder, run, settings):  # by the run that had the lock until now
        return
    everyone.wait_for_everyone()  # all have read the record before one writes it
    if config.process_index == 0:
        write_whole(folder / RECORD, json.dumps({"settings": settings}, indent=1) + "\n")
    result, trained = folder / run.result, folder / ("adapter" if run.use_peft else "model")
    if not trained.is_dir():
        _train(run, config, rows, trained, go_on)
    if config.process_index == 0:
        if result != trained and not result.is_dir():
            merge_adapter(trained, result, dtype=run.dtype, trust_remote_code=config.trust_remote_code)
        write_whole(folder / RECORD, json.dumps({"settings": settings, "result": run.result}, indent=1) + "\n")
    everyone.wait_for_everyone()


# ---- training ----------------------------------------------------------------------------------------------------


class StageTrainer(WholeCheckpoints, SFTTrainer):
    """TRL's, whose checkpoints say whether they are whole and hold what it forgets: tokens seen, and metrics not logged yet."""

    def save_beside(self, checkpoint: Path) -> None:
        metrics = {name: list(values) for name, values in self._metrics["train"].items()}
        state = {"tokens": self._total_train_tokens, "metrics": metrics}
        save_state(checkpoint, self.accelerator.process_index, state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            state = load_state(checkpoint, self.accelerator.process_index)
            self._total_train_tokens = state["tokens"]
            for name, values in state["metrics"].items():
                self._metrics["train"][name].extend(values)


def _train(run: SFTRun, config: SFTConfig, rows: list[dict[str, Any]], out: Path, go_on: str) -> None:
    assert run.model is not None  # see run_sft
    everyone, trusted, first = config.distributed_state, config.trust_remote_code, config.process_index == 0
    tokenizer = load_tokenizer(run.model, trust_remote_code=trusted)
    tokenizer.chat_template = chat_template(tokenizer, run.prompt_format)
    train_set = tokenised(rows, tokenizer, config.max_length, run.max_prompt_share)
    options = {"trust_remote_code": trusted, "attn_implementation": run.attn_implementation}
    model = load_model(run.model, dtype=run.dtype, **options)
    check_vocabulary(model, tokenizer)
    config.completion_only_loss = True  # rows are tokenised here, so TRL cannot see that they have a completion
    trainer = StageTrainer(
        model=model,
        args=config,
        train_dataset=train_set,
        processing_class=tokenizer,
        peft_config=lora(model, ModelConfig(**{name: getattr(run, name) for name in LORA})),
    )
    newest = take_last_complete(config.output_dir) if first else None
    with interrupt.saved_on_signal(trainer, go_on):
        trainer.train(resume_from_checkpoint=writer.same_everywhere(newest))
    partial = out.with_name(f".{out.name}.partial")
    if first:
        shutil.rmtree(partial, ignore_errors=True)
    everyone.wait_for_everyone()
    trainer.save_model(str(partial))  # weights and tokenizer; every process takes part where weights are sharded
    everyone.wait_for_everyone()
    if first:
        put_in_place(partial, out)
    everyone.wait_for_everyone()


# ---- data --------------------------------------------------------------------------------------------------------


def _task_rows(run: SFTRun) -> list[dict[str, Any]]:
    problems = load_task(run.task, run.data_dir, run.rows)
    if run.decontaminate:
        against, missing = evaluation_problems(run.data_dir, fetch=False)
        report = decontaminate(problems, against, missing=missing)
        if report.dropped:
            _log.warning("SFT: %d of %d problems repeat an evaluation problem and are left out", len(report.dropped),
                         len(problems))  # fmt: skip
        problems = report.kept
    return sft_rows(problems, run.prompt_format)


def tokenised(rows: Iterable[dict[str, Any]], tokenizer: Any, max_length: int | None, share: float) -> Dataset:
    """input_ids and completion_mask, for rows whose prompt takes no more than ``share`` of ``max_length``.

    Prompt and completion are tokenised apart, because that is where generation will begin: tokenised together, the end of
    the prompt (``out>``) and the first word may merge into tokens that a generating model never sees.
    """
    limit = None if max_length is None else int(share * max_length)
    examples, longer, cut = [], 0, 0
    for i, row in enumerate(rows):
        prompt, completion = _texts(row, i, tokenizer)
        prompt_ids = tokenizer(prompt, add_special_tokens=isinstance(row["prompt"], str))["input_ids"]
        if limit is not None and len(prompt_ids) > limit:
            longer += 1
            continue
        ids = tokenizer(completion, add_special_tokens=False)["input_ids"]
        cut += max_length is not None and len(prompt_ids) + len(ids) > max_length
        mask = [0] * len(prompt_ids) + [1] * len(ids)
        examples.append({"input_ids": prompt_ids + ids, "completion_mask": mask})
    if not examples:
        why = f"all {longer} prompts are longer than {limit} tokens" if longer else "there are no rows"
        raise UserError(
            f"SFT has nothing to learn from: {why}; raise max_length or max_prompt_share, or give other rows."
        )
    if longer:
        _log.warning("SFT: %d of %d rows left out, prompt over %d tokens", longer, longer + len(examples), limit)
    if cut:
        _log.warning(
            "SFT: %d of %d completions are cut at max_length=%d, and so never end", cut, len(examples), max_length
        )
    return Dataset.from_list(examples)


def _texts(row: dict[str, Any], i: int, tokenizer: Any) -> tuple[str, str]:
    """(prompt, completion) as text; the completion begins where the generation prompt ends and has its EOS."""
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        eos = tokenizer.eos_token or ""
        return prompt, completion if completion.endswith(eos) else completion + eos
    if not (isinstance(prompt, list) and isinstance(completion, list)):
        raise UserError(f"SFT row {i}: prompt and completion must both be text or both be lists of messages.")
    asked = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([*prompt, *completion], tokenize=False)
    if not whole.startswith(asked):
        raise UserError(
            f"SFT row {i}: its completion does not begin as the chat template begins an answer, with {asked[-24:]!r}: start "
            f"it with the prompt format's prefix, or choose another prompt_format."
        )
    return asked, whole[len(asked) :]


# ---- the record --------------------------------------------------------------------------------------------------


def _settings(run: SFTRun, config: SFTConfig, rows: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Everything that shapes the result, as JSON; ``dataset`` is a digest of the rows where they are at hand."""
    mine = {k: v for k, v in asdict(run).items() if k != "data_dir"}
    theirs = {f.name: getattr(config, f.name) for f in fields(config) if not _FREE.match(f.name)}
    theirs.pop("completion_only_loss", None)  # always on, see _train
    out = {k: v.value if isinstance(v, Enum) else v for k, v in {**theirs, **mine}.items()}
    if rows is not None:
        digest = hashlib.sha256()
        for row in rows:
            digest.update(json.dumps([row.get("prompt"), row.get("completion")]).encode())
        out["dataset"] = f"{len(rows)} rows, sha256 {digest.hexdigest()[:16]}"
    return json.loads(json.dumps(out, default=str))


def _finished(folder: Path, run: SFTRun, settings: dict[str, Any]) -> bool:
    """Refuses a folder of other settings. What only one side has, a newer library's say, is no change."""
    path = folder / RECORD
    if not path.is_file():
        if any(folder.glob("checkpoint-*")):
            raise UserError(
                f"{folder} holds checkpoints of another run (there is no {RECORD}): give SFT its own output_dir."
            )
        return False
    record = read_json(path, settings=dict)
    saved = record["settings"]
    for name in sorted(saved.keys() & settings.keys()):
        if saved[name] != settings[name]:
            raise UserError(
                f"{folder} was made with {name}={saved[name]!r} and this run has {settings[name]!r}: use another output_dir, "
                f"set {name} back, or remove the folder."
            )
    return record.get("result") == run.result and (folder / run.result).is_dir()
