"""Right answers that π_ref gave beforehand, from a folder of ``sage-rlvr eval``, for training to keep (DPH-RL, arXiv 2509.07430).

    sage-rlvr eval --model M --tasks gsm8k --split train --n 8 --seeds 1 --temperature 1 --min_p 0 --out runs/kept
    sage-rlvr train --model_name_or_path M --task gsm8k --temperature 1 --keep_from runs/kept

These are samples that were judged right and came to their end, of the training problems (those that ``within_reach`` leaves out
too: as published, what π_ref always solves is kept and not trained on); the first ``keep_per_problem`` of each, so that they are
π_ref's own draws. The folder must be of the model that training starts from, drawn as training draws, with the very tokens of
training's prompts: all of that is checked here. ``rehearsal`` trains on them.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from sage_rlvr.anchor import DIVERGENCES
from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json
from sage_rlvr.models.fingerprints import digest, of_files, of_weights
from sage_rlvr.runs import writer
from sage_rlvr.store import SampleStore
from sage_rlvr.tasks import Problem, chat_template, get_format, load_task, render

Key = tuple[str, str]  # task, problem
SAMPLING = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True)
class Answer:
    """Token ids of a prompt and of a right completion, its last token included."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


def check(args: Any) -> None:
    """What a config can know."""
    if args.keep_from is None:
        for f in type(args).__dataclass_fields__.values():
            if f.name.startswith("keep_") and getattr(args, f.name) != f.default:
                raise UserError(
                    f"{f.name} is set but keep_from is not: name the folder of an evaluation, or leave it out."
                )
        return
    if args.keep_divergence not in DIVERGENCES:
        raise UserError(f"keep_divergence={args.keep_divergence!r} is unknown; choose one of {', '.join(DIVERGENCES)}.")
    moved = [name for name in ("sync_ref_model", "anchor_reset") if getattr(args, name, None)]
    if moved and args.keep_divergence == "js":
        raise UserError(
            f"keep_divergence='js' with {moved[0]}: it compares with the model that gave the answers, and the reference moves "
            "away from it; take keep_divergence='forward', which needs no reference."
        )


# ---- reading -----------------------------------------------------------------------------------------------------------


def answers(trainer: Any, dataset: Any) -> list[Answer]:
    """What ``keep_from`` holds of ``dataset``'s problems, in one order everywhere."""
    args, folder = trainer.args, trainer.args.keep_from
    store = SampleStore(folder, readonly=True)
    _check_model(store.settings, trainer)
    _check_sampling(store.settings, args, folder)
    trained = _trained(dataset)
    right, sampled = _right(store, args)
    _refuse_held_out(store, sampled - trained.keys())
    both = sorted(sampled & trained.keys())
    if not both:
        tasks = ", ".join(sorted({task for task, _ in sampled})) or "no task"
        raise UserError(
            f"{folder} (samples of {tasks}) has none of the {len(trained):,} problems that are trained on: evaluate the start "
            "model on these (eval --split train), with a --limit that reaches them."
        )
    some = [key for key in both if right.get(key)]
    if not some:
        raise UserError(
            f"{folder} has no right answer to keep: of {len(both):,} problems that are trained on none has a sample that is "
            f"right, finished and within max_completion_length={args.max_completion_length}; draw more samples (--n), or "
            "leave keep_from out."
        )
    prompts = _prompts(store, trainer, {key: dataset[trained[key]] for key in some})
    all_of_them = [Answer(prompts[key], ids) for key in some for ids in right[key]]
    others = len(sampled) - len(both)
    untrained = f", {others:,} others in the folder are not trained on" if others else ""
    trainer.tell("kept answers", f"{len(all_of_them):,} right answers to {len(some):,} problems are kept, from {folder} "
                 f"({len(both) - len(some):,} of its problems have none{untrained}).")  # fmt: skip
    return writer.same_everywhere(all_of_them)  # a folder may grow while ranks read it


def _trained(dataset: Any) -> dict[Key, int]:
    """(task, problem) → row of the training set."""
    missing = [c for c in ("task", "problem") if c not in (getattr(dataset, "column_names", None) or ())]
    if missing:
        raise UserError(
            f"keep_from finds a problem's answers by the training set's columns task and problem, and it has no {missing[0]!r}: "
            "make its rows with sage_rlvr.tasks.rows."
        )
    return {key: i for i, key in enumerate(zip(dataset["task"], dataset["problem"]))}


def _right(store: SampleStore, args: Any) -> tuple[dict[Key, list[tuple[int, ...]]], set[Key]]:
    """(the first right and finished completions of each problem, every problem that was sampled)."""
    best: dict[Key, list[tuple[int, int, tuple[int, ...]]]] = defaultdict(list)  # (seed, index, ids), in that order
    sampled: set[Key] = set()
    for batch in store.scan(["task", "problem", "seed", "index", "verdict", "finish", "token_ids"]):
        keys = list(zip(batch["task"].to_pylist(), batch["problem"].to_pylist()))
        sampled.update(keys)
        judged = zip(batch["verdict"].to_pylist(), batch["finish"].to_pylist())
        for i in (i for i, (verdict, finish) in enumerate(judged) if verdict == 1 and finish == "stop"):
            ids = tuple(batch["token_ids"][i].as_py())
            if 0 < len(ids) <= args.max_completion_length:
                one = (batch["seed"][i].as_py(), batch["index"][i].as_py(), ids)
                best[keys[i]] = sorted([*best[keys[i]], one])[: args.keep_per_problem]
    return {key: [ids for *_, ids in first] for key, first in best.items()}, sampled


def _refuse_held_out(store: SampleStore, strangers: set[Key]) -> None:
    split = store.settings.get("split", "test")
    if strangers and split != "train":
        task, problem = min(strangers)
        raise UserError(
            f"{store.folder} holds held-out problems ({len(strangers):,} of split {split!r} that are not in the training set, "
            f"such as {problem} of {task}): a run must not learn the answers to what it is tested on; evaluate with --split "
            "train into another folder."
        )


# ---- whether the folder is of this run's start ---------------------------------------------------------------------------


def _check_model(settings: Mapping[str, Any], trainer: Any) -> None:
    folder, model = trainer.args.keep_from, trainer.accelerator.unwrap_model(trainer.model)
    name, theirs, adapter = model.config._name_or_path, str(settings.get("model")), settings.get("adapter")
    if bool(adapter) != starts_from_adapter(model):
        there, here = (
            (f"with the adapter {adapter}", "without one") if adapter else ("without an adapter", "from an adapter")
        )
        raise UserError(
            f"{folder} holds samples of {theirs} {there} and training starts {here}: evaluate the model that training starts "
            "from into another folder."
        )
    stored, start = settings.get("model_weights"), of_weights(name) if name else None
    same = stored == start if stored and start else str(name) == theirs
    if not same and not theirs.endswith(".gguf"):  # trained from a folder that is made of the file
        raise UserError(
            f"{folder} holds samples of {theirs} and training starts from {name or 'another model'}, whose weights are others: "
            "what is kept must be the start model's own answers, so evaluate that one into another folder."
        )
    inputs, files = settings.get("inputs", {}), of_files(name, None, name) if name and not adapter else {}
    for part in ("tokenizer", "config.json"):
        if part in inputs and part in files and inputs[part] != files[part]:
            raise UserError(f"{folder} was drawn with another {part} than {name} has now: evaluate again.")
    if adapter or theirs.endswith(".gguf"):
        trainer.tell("start", f"{folder} says that training starts from {adapter or theirs}; this cannot be checked.")


def starts_from_adapter(model: Any) -> bool:
    """A LoRA adapter that changes something before the first step; a fresh one's B is 0."""
    return any("lora_B.default" in name and bool(p.any()) for name, p in model.named_parameters())


def _check_sampling(settings: Mapping[str, Any], args: Any, folder: str) -> None:
    """As training draws: a sharper π_ref is another one, and its answers would be learnt as the whole of it."""
    theirs = {name: max(settings.get(name) or 0, 0) for name in SAMPLING}
    ours = {name: max(getattr(args, name) or 0, 0) for name in SAMPLING}
    differ = [name for name in SAMPLING if theirs[name] != ours[name]]
    if differ:
        was = ", ".join(f"{name}={theirs[name]}" for name in differ)
        now = " ".join(f"--{name} {ours[name]}" for name in differ)
        raise UserError(
            f"{folder} was drawn with {was}, other than training draws: evaluate with {now} into another folder."
        )


def _prompts(store: SampleStore, trainer: Any, rows: dict[Key, dict[str, Any]]) -> dict[Key, tuple[int, ...]]:
    """Token ids of training's prompts, which must be those that evaluation gave the model."""
    folder, settings, tokenizer = store.folder, store.settings, trainer._tokenizer
    fmt = get_format(settings.get("prompt_format", "paper"))
    now = {"chat template": digest(chat_template(tokenizer, fmt)), "prompt format": digest(fmt.told())}
    for part, value in now.items():
        if settings.get("inputs", {}).get(part, value) != value:
            raise UserError(f"{folder} was drawn with another {part} than this run has: evaluate again.")
    mine = dict(zip(rows, map(tuple, trainer._tokenize_prompts([row["prompt"] for row in rows.values()])[0])))
    asked = _problems(store, fmt.user, list(rows))
    for key, ids in mine.items():
        there = tokenizer(render(asked[key], fmt, tokenizer), add_special_tokens=False)["input_ids"]
        if ids != tuple(there):
            raise UserError(
                f"{folder} was drawn with prompt format {fmt.name!r}, and the prompt of {key[1]} is another one in training: "
                "evaluate with the --prompt_format of training, on the same data, into another folder."
            )
        if rows[key].get("answer", asked[key].answer) != asked[key].answer:
            raise UserError(
                f"{folder} judged {key[1]} by another answer than training has: evaluate again, on the same data."
            )
    return mine


def _problems(store: SampleStore, user: str, keys: list[Key]) -> dict[Key, Problem]:
    """As evaluation asked them. What a format names beside the question is not in the folder: then the task is loaded."""
    path = Path(store.folder, "problems.json")
    try:
        known = read_json(path, "evaluate again")
        problems = {(t, p): Problem(p, t, known[t][p]["question"], known[t][p]["answer"]) for t, p in keys}
    except FileNotFoundError as e:
        raise UserError(f"{path} is not there, so what was asked is not known: evaluate again.") from e
    except (KeyError, TypeError) as e:
        raise UserError(f"{path} lacks a problem that was sampled ({e}): evaluate again.") from e
    if {name for _, name, *_ in Formatter().parse(user) if name} <= {"question"}:
        return problems
    for task in sorted({task for task, _ in keys}):
        asked = store.problems.get(task)
        size = len(asked.problems) + len(asked.unverifiable) if asked else None
        loaded = {p.id: p for p in load_task(task, limit=size, split=store.settings.get("split", "test"))}
        for t, p in keys:
            if t == task and p in loaded and loaded[p].question == problems[t, p].question:
                problems[t, p] = loaded[p]
    return problems
