"""A user's own data as a task: ``--dataset FILE|FOLDER|HUB_ID``, its columns by name, every row checked before a run.

With a reward of the user's, rows go to TRL as they are. Without one, the answer column is the gold and Math-Verify judges it.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.extensions import load_function
from sage_rlvr.names import closest
from sage_rlvr.tasks.loading import Row, gold_text, no_waiting, numbered_rows, reason
from sage_rlvr.tasks.registry import COLUMNS, PROMPT, TASKS, Problem, Source, Task
from sage_rlvr.tasks.rewards import check_signature, code_digest
from sage_rlvr.tasks.scorers import Extract, reads_unmarked
from sage_rlvr.verify import extract_answer

PROMPTS, ANSWERS = ("prompt", "question", "problem"), ("answer", "solution")
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet", ".parquet.gz")


@dataclass(frozen=True)
class OwnData:
    """What a user named: its rows, and where each one is (``data.jsonl:17``)."""

    name: str  # of the task: the file's name, or the Hub id
    rows: list[Row]
    places: list[str]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def digest(self) -> str:
        """Of the rows, in order: the same for a file that was moved, another for one that was changed."""
        text = json.dumps(self.rows, sort_keys=True, default=str, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


_OWN: dict[str, OwnData] = {}  # task → the data it was made of


# ---- the flags of train and eval ---------------------------------------------------------------------------------

FLAGS = ("dataset_config", "prompt_column", "answer_column", "holdout")  # which say something of --dataset alone


def check_flags(given: Any, task: str, what: str, flags: Sequence[str] = FLAGS) -> None:
    """Flags that contradict each other, and the defaults that hang on them. ``what``: "to train on"."""
    if isinstance(given.reward, str):  # from YAML
        given.reward = [given.reward]
    if given.dataset and task:
        raise UserError(f"--task {task} and --dataset {given.dataset} both say what {what}: keep one of them.")
    lonely = next((name for name in flags if getattr(given, name) and not given.dataset), None)
    if lonely:
        raise UserError(f"--{lonely} says something of --dataset, and there is none: add --dataset, or leave it out.")
    if not given.prompt_format:
        given.prompt_format = "paper" if not given.dataset else "as_is" if given.reward else "boxed"


def prepare(given: Any, task: str, split: str = "train") -> str:
    """Reads the user's data and code and says what is wrong with it before a model is loaded; answers the task's name. ``split``:
    of a Hub dataset or folder, unless one was named."""
    if given.dataset:
        data = read_data(given.dataset, given.dataset_config, given.split, split)
        task = own_task(data, not given.reward, given.prompt_column, given.answer_column, given.holdout).name
    extract_of(given)
    check_rewards(given, task)
    return task


def check_rewards(given: Any, task: str) -> None:
    columns = {"answer", "task", "problem"} | set(_OWN[task].columns if task in _OWN else ())
    for name in given.reward or []:
        check_signature(load_function(name, "--reward"), name, columns, task)


def extract_of(given: Any) -> Extract:
    """``--extract`` as its name or function."""
    if given.extract and ":" in given.extract:
        return load_function(given.extract, "--extract")
    if given.extract:
        reads_unmarked(given.extract)
    return given.extract


def digests(given: Any, task: str) -> dict[str, Any]:
    """What the user's data and code are, for a run that goes on with them."""
    out: dict[str, Any] = {}
    if task in _OWN:
        out["dataset_digest"] = _OWN[task].digest()
    if given.reward:
        out["reward_digest"] = {name: code_digest(load_function(name, "--reward")) for name in given.reward}
    return out


# ---- reading -----------------------------------------------------------------------------------------------------


def read_data(
    source: str, config: str | None = None, split: str | None = None, default_split: str = "train"
) -> OwnData:
    """The rows of a local file or folder, or of a dataset on the Hub."""
    path = Path(source).expanduser()
    if path.is_file():
        for flag, value in (("dataset_config", config), ("split", split)):
            if value:
                raise UserError(f"--{flag} {value} is for a Hub id or a folder, and {source} is a file: leave it out.")
        if not path.name.endswith(SUFFIXES):
            raise UserError(f"--dataset {path}: cannot read this kind of file; use {', '.join(SUFFIXES)}.")
        numbered = numbered_rows(path)
        data = OwnData(path.name, [row for _, row in numbered], [f"{path.name}:{n}" for n, _ in numbered])
    elif path.is_dir() or _hub_id(source):
        name = path.name if path.is_dir() else source
        rows = _of_dataset(str(path) if path.is_dir() else source, path.is_dir(), config, split or default_split)
        data = OwnData(name, rows, [f"{name}:{i}" for i in range(1, len(rows) + 1)])
    else:
        here = sorted(p.name for p in (path.parent if path.parent.is_dir() else Path()).iterdir() if p.is_file())
        near = closest(path.name, here)
        raise UserError(f"--dataset {source}: there is no such file{f'; did you mean {near[0]}?' if near else '.'}")
    if not data.rows:
        raise UserError(f"--dataset {source} is empty: it needs one row per prompt.")
    return data


def _hub_id(source: str) -> bool:
    looks_like = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source)
    return bool(looks_like) and not source.endswith((*SUFFIXES, ".txt", ".tsv"))


def _of_dataset(source: str, folder: bool, config: str | None, split: str) -> list[Row]:
    """A folder as ``save_to_disk`` wrote it, data files in a folder, or a Hub id: what the datasets library reads."""
    import datasets

    try:
        if folder and any(Path(source, name).is_file() for name in ("dataset_dict.json", "state.json")):
            saved = datasets.load_from_disk(source)
            if isinstance(saved, dict) and split not in saved:
                raise UserError(f"--dataset {source} has no split {split!r}: add --split, one of {', '.join(saved)}.")
            return [dict(row) for row in (saved[split] if isinstance(saved, dict) else saved)]
        with nullcontext() if folder else no_waiting():
            return [dict(row) for row in datasets.load_dataset(source, config, split=split)]
    except UserError:
        raise
    except Exception as e:  # a damaged folder or the Hub (offline, gated, moved, no such split) may raise anything
        if listed := re.search(r"available configs: \[([^\]]+)\]", str(e)):
            raise UserError(f"--dataset {source} has several configs: add --dataset_config, one of {listed[1]}.") from e
        fix = f"put other files into it ({', '.join(SUFFIXES)})" if folder else "go online, or give a file"
        fix = "name another --split" if "split" in reason(e).lower() else fix
        raise UserError(f"--dataset {source} cannot be loaded ({reason(e)}): {fix}.") from e


# ---- rows into problems ------------------------------------------------------------------------------------------


def own_task(
    data: OwnData,
    judged: bool,
    prompt_column: str | None = None,
    answer_column: str | None = None,
    holdout: int | None = None,
) -> Task:
    """The data as a task of this process, by its name. ``judged``: the answer column is the gold; else rows stay as they are.
    ``holdout``: split "test" is so many rows, and "train" has none of their prompts; without it both are all rows."""
    prompt = _column(data, prompt_column, PROMPTS, "prompt_column")
    answer = _column(data, answer_column, ANSWERS, "answer_column", needed=judged)
    problems, skipped = [], []
    kinds: dict[type, str] = {}  # text or messages → the first place that has it
    for row, place in zip(data.rows, data.places):
        asked = row.get(prompt)
        blank = asked is None or (isinstance(asked, str) and not asked.strip())
        if not blank:
            question = _question(asked, prompt, place)
            kinds.setdefault(type(asked), place)
        gold = _gold(row.get(answer)) if judged else ""
        if blank or gold is None:
            skipped.append(place)
            continue
        # what a reward function is handed: the answer column under the name ``answer`` too
        columns = {**row, "answer": row[answer]} if answer in row else dict(row)
        problems.append(Problem(place, data.name, question, gold, {COLUMNS: columns, PROMPT: asked}))
    if len(kinds) > 1:
        raise UserError(
            f"{' and '.join(kinds.values())} have prompts of two kinds: write all as text, or all as messages."
        )
    needs = f"{prompt!r} and {answer!r}" if judged else repr(prompt)
    if not problems:
        raise UserError(f"{data.name} has no row that can be used: every row needs {needs}.")
    if skipped:
        print(f"{data.name}: {len(skipped):,} left out, as every row needs {needs}: {', '.join(skipped[:5])}")
    _one_type(data)
    splits = _held_out(data.name, problems, holdout) if holdout else {"train": problems, "test": problems}
    _OWN[data.name] = data
    TASKS[data.name] = task = Task(
        name=data.name,
        description="your own data",
        kind="train",
        scorer="math",
        licence="yours",
        question=prompt,
        answer=answer or "",
        splits={split: (Source(data.name, count=len(part)),) for split, part in splits.items()},
        generate=lambda n, seed, split: splits[split][:n],
        size=len(problems),
    )
    return task


def _held_out(name: str, problems: list[Problem], count: int) -> dict[str, list[Problem]]:
    """Which rows are held out is decided by a hash of the prompts: the same ones for every seed, model and verb. A row with the
    prompt of one of them is not trained on either."""
    prompts = {p.id: json.dumps(p.meta[PROMPT], sort_keys=True, ensure_ascii=False) for p in problems}
    order = sorted(problems, key=lambda p: hashlib.sha256(prompts[p.id].encode("utf-8", "surrogatepass")).digest())
    held = {p.id for p in order[:count]}
    same = {prompts[i] for i in held}
    train = [p for p in problems if prompts[p.id] not in same]
    if not train:
        raise UserError(
            f"--holdout {count} leaves no row of {name} to train on, it has {len(problems):,}: hold out fewer."
        )
    if again := len(problems) - len(train) - len(held):
        print(f"{name}: {again:,} rows are left out, they have the prompt of a held-out row")
    return {"train": train, "test": [p for p in problems if p.id in held]}


def _column(data: OwnData, named: str | None, usual: Sequence[str], flag: str, needed: bool = True) -> str:
    columns = data.columns
    column = named or next((name for name in usual if name in columns), None)
    if column in columns:
        return str(column)
    if not (named or needed):
        return ""
    near = closest(named or usual[0], columns)
    wanted = repr(named) if named else " or ".join(map(repr, usual))
    fix = f"write --{flag} {near[0]}" if near else f"name it with --{flag}"
    other = "" if flag == "prompt_column" else ", or judge with --reward file.py:function"
    raise UserError(f"{data.name} has no column {wanted}, it has {', '.join(columns)}: {fix}{other}.")


def _question(asked: Any, column: str, place: str) -> str:
    """The text that is asked: a string, or the user's last message."""
    if isinstance(asked, str):
        return asked
    if not (isinstance(asked, list) and asked and all(map(_is_message, asked))):
        raise UserError(
            f"{place}: {column!r} must be text, or a list of messages such as "
            '[{"role": "user", "content": "2+3?"}]; it is ' + f"{str(asked)[:60]!r}."
        )
    if asked[-1]["role"] != "user":
        raise UserError(
            f"{place}: the last message of {column!r} is of role {asked[-1]['role']!r}: end with the user's."
        )
    return asked[-1]["content"]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("role", "content"))


def _gold(value: Any) -> str | None:
    """The answer column's value as Math-Verify reads it; of a worked solution what stands behind #### or in its last box."""
    text = gold_text(value) or ""
    _, hashes, tail = text.rpartition("####")
    return gold_text(tail.strip().replace(",", "") if hashes else extract_answer(text) or text)


def _one_type(data: OwnData) -> None:
    """A dataset has one type per column; numbers may be whole or not."""
    first: dict[str, tuple[type, str]] = {}
    for row, place in zip(data.rows, data.places):
        for name, value in row.items():
            kind = float if type(value) is int else type(value)
            if value is None or first.setdefault(name, (kind, place))[0] is kind:
                continue
            was, where = first[name]
            raise UserError(
                f"{data.name}, column {name!r}: {where} holds {_KINDS.get(was, was.__name__)} and {place} "
                f"{_KINDS.get(kind, kind.__name__)}; write one type."
            )


_KINDS = {str: "text", float: "a number", bool: "true or false", list: "a list", dict: "an object"}
