"""The registry: what a task is, which ones there are, and how to add one.

register_task(Task(
    name="mine", description="my own problems", kind="train", scorer="math", licence="MIT",
    question="problem", answer="answer", splits={"train": (Source("me/mine", files=("mine",)),)},
))
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.names import near
from sage_rlvr.verify import extract_answer

KINDS = ("train", "eval", "sft", "generated")
COLUMNS, PROMPT = "_columns", "_prompt"  # in the meta of a user's own problem: the row as it is, and its prompt


@dataclass(frozen=True)
class Problem:
    """One problem as everything downstream sees it."""

    id: str
    task: str
    question: str
    answer: str  # the gold; JSON text where it has structure (knights-knaves, countdown, gym:NAME)
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """Where rows lie: a dataset on the Hub, and the names its file may have in a data folder."""

    hub: str
    split: str = "train"  # the Hub's own name for it, which need not be ours
    configs: tuple[str | None, ...] = (None,)  # read one after the other
    files: tuple[str, ...] = ()  # stems; .jsonl, .jsonl.gz, .parquet and .parquet.gz are looked for
    count: int | None = None  # problems to expect, after the filter


@dataclass(frozen=True)
class Task:
    """A named set of problems. ``splits`` maps our split names to sources; the first is the default one."""

    name: str
    description: str
    kind: str  # one of KINDS
    scorer: str  # a name in scorers.SCORERS
    licence: str  # of the data
    question: str = ""  # field names in a row
    answer: str = ""
    splits: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    keep: Callable[[dict[str, Any]], bool] | None = None  # the filter
    # (the answer field, the row) → gold; None: not verifiable
    gold: Callable[[Any, dict[str, Any]], str | None] | None = None
    needs: tuple[str, ...] = ()  # further fields that a row must have
    meta: tuple[str, ...] = ()  # fields carried along where a row has them
    parts: tuple[str, ...] = ()  # a union of other tasks
    generate: Callable[[int, int, str], list[Problem]] | None = None  # (n, seed, split) → problems
    size: int = 1000  # of a generated task, where no limit is asked for

    @property
    def hub(self) -> str:
        """The Hub id, or where the problems come from instead."""
        if self.parts:
            return " + ".join(self.parts)
        if not self.splits or self.generate:
            return "generated"
        return next(iter(self.splits.values()))[0].hub

    @property
    def default_split(self) -> str:
        return next(iter(self.splits), "test")

    def count(self, split: str | None = None) -> int | None:
        """How many problems the split should have, where that is known."""
        if self.parts:
            counts = [get_task(part).count() for part in self.parts]
        else:
            counts = [source.count for source in self.splits.get(split or self.default_split, ())]
        return sum(c for c in counts if c) if counts and all(counts) else None


TASKS: dict[str, Task] = {}
MAKERS: dict[str, Callable[[str], Task]] = {}  # how a name begins → what makes its task on the spot (gym:NAME)


def register_task(task: Task) -> Task:
    """Makes a task known by name to load_task, the recipes and the command line."""
    if task.name in TASKS:
        raise UserError(f"a task named {task.name!r} is registered already; choose another name.")
    if task.kind not in KINDS:
        raise UserError(f"task {task.name!r}: kind={task.kind!r} is not one of {', '.join(KINDS)}.")
    if not (task.splits or task.parts):
        raise UserError(f"task {task.name!r} has no problems: give it splits, or parts (the names of other tasks).")
    if not (task.parts or task.generate or (task.question and task.answer)):
        raise UserError(f"task {task.name!r} needs the names of its question and answer fields.")
    TASKS[task.name] = task
    return task


def get_task(name: str) -> Task:
    """The task of that name; gym:NAME is made on the spot."""
    if name in TASKS:
        return TASKS[name]
    for begin, make in MAKERS.items():
        if name.startswith(begin):
            return make(name)
    raise UserError(f"there is no task {name!r}: {near(name, [*TASKS, *(begin + 'NAME' for begin in MAKERS)])}.")


# ---- golds and filters: (the answer field, the row) → gold, None where it is not verifiable; row → is it in ----------


def _whole(value: Any, row: dict[str, Any]) -> str | None:
    """Contest answers are whole numbers, stored as 27.0 or 033."""
    text = str(value).strip()
    return str(int(float(text))) if re.fullmatch(r"-?\d{1,15}(\.0+)?", text) else text


def _after_hashes(value: Any, row: dict[str, Any]) -> str | None:
    """GSM8K: what stands behind ####, thousands' commas removed."""
    _, hashes, tail = str(value).rpartition("####")
    return tail.strip().replace(",", "") if hashes else None


def _answer_or_boxed(value: Any, row: dict[str, Any]) -> str | None:
    """MATH on the Hub has worked solutions only; the gold is their last box."""
    return str(row["answer"]) if row.get("answer") else extract_answer(str(value))


def _roles(value: Any, row: dict[str, Any]) -> str | None:
    """Knights and knaves: {"names": [...], "solution": [true, ...]} as JSON, one truth value for each different name."""
    names = row.get("names")
    if not isinstance(names, list) or not isinstance(value, list) or not all(isinstance(x, bool) for x in value):
        return None
    fits = len(names) == len(value) == len(set(names)) > 0
    return json.dumps({"names": names, "solution": value}, ensure_ascii=False) if fits else None


def _numeric(row: dict[str, Any]) -> bool:
    """What the authors' pandas.to_numeric keeps: a plain number."""
    return bool(re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", str(row.get("expected_answer", ""))))


def _hardest(row: dict[str, Any]) -> bool:
    return str(row.get("level", "")).removeprefix("Level ").strip() == "5"


# ---- the tasks ---------------------------------------------------------------------------------------------------
# Licences are a pointer, not advice: look at the Hub card before you redistribute. "origin" is what the data was made from.

_SUBJECTS = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra", "precalculus",
)  # fmt: skip


def _add(
    name: str, kind: str, description: str, licence: str, fields: str, sources: Iterable[Source], **more: Any
) -> Task:
    """A registered task. ``fields``: of question and answer, "problem answer"; ``sources``: the default split, "test" of an
    evaluation task and "train" of any other. Without a ``scorer`` Math-Verify judges it."""
    splits = {"test" if kind == "eval" else "train": tuple(sources), **more.pop("splits", {})}
    (question, answer), scorer = fields.split(), more.pop("scorer", "math")
    return register_task(Task(name, description, kind, scorer, licence, question, answer, splits, **more))


def _people(split: str, count: int) -> tuple[Source, ...]:
    """A set of so many problems for each number of people."""
    hub = "K-and-K/knights-and-knaves"
    return tuple(Source(hub, f"{n}ppl", (split,), (f"kk_{n}ppl_{split}",), count) for n in range(3, 9))


_MATH500 = Source("HuggingFaceH4/MATH-500", "test", files=("math500", "math_500"), count=500)
_add("math500", "eval", "500 problems of MATH's test set, all levels", "MIT (origin: PRM800K)", "problem answer",
     [_MATH500], meta=("level", "subject", "unique_id"))  # fmt: skip
_add("math500-l5", "eval", "the 134 of MATH-500 at level 5, which the paper reports", "MIT (origin: PRM800K)", "problem answer",
     [replace(_MATH500, count=134)], meta=("level", "subject", "unique_id"), keep=_hardest, needs=("level",))  # fmt: skip
_CONTEST = "not stated (contest: MAA)"
_add("aime24", "eval", "AIME 2024, I and II", _CONTEST, "problem answer",
     [Source("HuggingFaceH4/aime_2024", files=("aime24", "aime_2024"), count=30)], gold=_whole)  # fmt: skip
_add("aime25", "eval", "AIME 2025, I and II", _CONTEST, "problem answer",
     [Source("math-ai/aime25", "test", files=("aime25", "aime_2025"), count=30)], gold=_whole)  # fmt: skip
register_task(Task("aime", "AIME 2024 and 2025 together, as the paper reports them", "eval", "math", _CONTEST,
                   parts=("aime24", "aime25")))  # fmt: skip
_add("amc23", "eval", "AMC 12 of 2023, answers made whole numbers", _CONTEST, "question answer",
     [Source("zwhe99/amc23", "test", files=("amc23",), count=40)], gold=_whole)  # fmt: skip
_add("minerva", "eval", "undergraduate science with worked numbers and formulas",
     "not stated (origin: Minerva, MIT OpenCourseWare)", "question answer",
     [Source("math-ai/minervamath", "test", files=("minerva", "minervamath", "minerva_sample"), count=272)])  # fmt: skip
_add("knights-knaves", "eval", "who tells the truth among 3 to 8 people; judged on the whole assignment", "CC-BY-NC-SA-4.0",
     "quiz solution", _people("test", 100), splits={"train": _people("train", 1000)}, scorer="knights-knaves",
     gold=_roles, needs=("names",), meta=("names", "statements"))  # fmt: skip
_add("gsm8k", "train", "grade-school word problems; split test for evaluation", "MIT", "question answer",
     [Source("openai/gsm8k", "train", ("main",), ("gsm8k_train",), 7473)], gold=_after_hashes,
     splits={"test": (Source("openai/gsm8k", "test", ("main",), ("gsm8k_test",), 1319),)})  # fmt: skip
_add("math", "train", "MATH's training set", "MIT", "problem solution",
     [Source("EleutherAI/hendrycks_math", "train", _SUBJECTS, ("math_train",), 7500)],
     gold=_answer_or_boxed, meta=("level", "type"))  # fmt: skip
_add("dapo-math-17k", "train", "the paper's RL problems, English, whole-number answers (it takes the first 2,000)",
     "Apache-2.0 (origin: DAPO)", "prompt solution",
     [Source("open-r1/DAPO-Math-17k-Processed", "train", ("en",), ("dapo_math_17k_en",), 14116)])  # fmt: skip
_add("openmathreasoning-mini", "sft", "the paper's SFT demonstrations, numeric answers only",
     "CC-BY-4.0 (origin: OpenMathReasoning)", "problem expected_answer",
     [Source("unsloth/OpenMathReasoning-mini", "cot", files=("openmathreasoning_mini_cot",))],
     keep=_numeric, needs=("generated_solution",), meta=("generated_solution",))  # fmt: skip
