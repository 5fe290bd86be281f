"""The registry: what a task is, which ones there are, and how to add one.

register_task(Task(
    name="mine", description="my own problems", kind="train", scorer="math", licence="MIT",
    question="problem", answer="answer", splits={"train": (Source("me/mine", files=("mine",)),)},
))
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.names import near

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


# ---- golds and filters -------------------------------------------------------------------------------------------


def _whole(value: Any, row: dict[str, Any]) -> str | None:
    """Contest answers are whole numbers, stored as 27.0 or 033."""
    text = str(value).strip()
    return str(int(float(text))) if re.fullmatch(r"-?\d{1,15}(\.0+)?", text) else text


def _after_hashes(value: Any, row: dict[str, Any]) -> str | None:
    """GSM8K: what stands behind ####, thousands' commas removed."""
    _, found, tail = str(value).rpartition("####")
    return tail.strip().replace(",", "") if found else None


def _answer_or_boxed(value: Any, row: dict[str, Any]) -> str | None:
    """MATH on the Hub has worked solutions only; the gold is their last box."""
    from sage_rlvr.verify import extract_answer

    return str(row["answer"]) if row.get("answer") else extract_answer(str(value))


def _roles(value: Any, row: dict[str, Any]) -> str | None:
    names, solution = row.get("names"), value
    whole = (
        isinstance(names, list) and isinstance(solution, list) and len(names) == len(solution) == len(set(names)) > 0
    )
    if not whole or not all(isinstance(x, bool) for x in solution):
        return None
    return json.dumps({"names": names, "solution": solution}, ensure_ascii=False)


def _numeric(row: dict[str, Any]) -> bool:
    """What the authors' pandas.to_numeric keeps: a plain number."""
    return bool(re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", str(row.get("expected_answer", ""))))


def _hardest(row: dict[str, Any]) -> bool:
    return str(row.get("level", "")).removeprefix("Level ").strip() == "5"


# ---- the tasks ---------------------------------------------------------------------------------------------------
# Licences are a pointer, not advice: look at the Hub card before you redistribute. "origin" is what the data was made from.

_SUBJECTS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra")
_PEOPLE = range(3, 9)

_MATH500 = register_task(
    Task(
        name="math500",
        description="500 problems of MATH's test set, all levels",
        kind="eval",
        scorer="math",
        licence="MIT (origin: PRM800K)",
        question="problem",
        answer="answer",
        splits={"test": (Source("HuggingFaceH4/MATH-500", "test", files=("math500", "math_500"), count=500),)},
        meta=("level", "subject", "unique_id"),
    )
)
register_task(
    replace(
        _MATH500,
        name="math500-l5",
        description="the 134 of MATH-500 at level 5, which the paper reports",
        splits={"test": (replace(_MATH500.splits["test"][0], count=134),)},
        keep=_hardest,
        needs=("level",),
    )
)
_AIME24 = register_task(
    Task(
        name="aime24",
        description="AIME 2024, I and II",
        kind="eval",
        scorer="math",
        licence="not stated (contest: MAA)",
        question="problem",
        answer="answer",
        splits={"test": (Source("HuggingFaceH4/aime_2024", files=("aime24", "aime_2024"), count=30),)},
        gold=_whole,
    )
)
register_task(
    replace(
        _AIME24,
        name="aime25",
        description="AIME 2025, I and II",
        splits={"test": (Source("math-ai/aime25", "test", files=("aime25", "aime_2025"), count=30),)},
    )
)
register_task(
    Task(
        name="aime",
        description="AIME 2024 and 2025 together, as the paper reports them",
        kind="eval",
        scorer="math",
        licence=_AIME24.licence,
        parts=("aime24", "aime25"),
    )
)
register_task(
    Task(
        name="amc23",
        description="AMC 12 of 2023, answers made whole numbers",
        kind="eval",
        scorer="math",
        licence="not stated (contest: MAA)",
        question="question",
        answer="answer",
        splits={"test": (Source("zwhe99/amc23", "test", files=("amc23",), count=40),)},
        gold=_whole,
    )
)
register_task(
    Task(
        name="minerva",
        description="undergraduate science with worked numbers and formulas",
        kind="eval",
        scorer="math",
        licence="not stated (origin: Minerva, MIT OpenCourseWare)",
        question="question",
        answer="answer",
        splits={
            "test": (
                Source("math-ai/minervamath", "test", files=("minerva", "minervamath", "minerva_sample"), count=272),
            )
        },
    )
)
register_task(
    Task(
        name="knights-knaves",
        description="who tells the truth among 3 to 8 people; judged on the whole assignment",
        kind="eval",
        scorer="knights-knaves",
        licence="CC-BY-NC-SA-4.0",
        question="quiz",
        answer="solution",
        splits={
            split: tuple(
                Source("K-and-K/knights-and-knaves", f"{n}ppl", (split,), (f"kk_{n}ppl_{split}",), count)
                for n in _PEOPLE
            )
            for split, count in (("test", 100), ("train", 1000))
        },
        gold=_roles,
        needs=("names",),
        meta=("names", "statements"),
    )
)
register_task(
    Task(
        name="gsm8k",
        description="grade-school word problems; split test for evaluation",
        kind="train",
        scorer="math",
        licence="MIT",
        question="question",
        answer="answer",
        splits={
            "train": (Source("openai/gsm8k", "train", ("main",), ("gsm8k_train",), 7473),),
            "test": (Source("openai/gsm8k", "test", ("main",), ("gsm8k_test",), 1319),),
        },
        gold=_after_hashes,
    )
)
register_task(
    Task(
        name="math",
        description="MATH's training set",
        kind="train",
        scorer="math",
        licence="MIT",
        question="problem",
        answer="solution",
        splits={
            "train": (Source("EleutherAI/hendrycks_math", "train", (*_SUBJECTS, "precalculus"), ("math_train",), 7500),)
        },
        gold=_answer_or_boxed,
        meta=("level", "type"),
    )
)
register_task(
    Task(
        name="dapo-math-17k",
        description="the paper's RL problems, English, whole-number answers (it takes the first 2,000)",
        kind="train",
        scorer="math",
        licence="Apache-2.0 (origin: DAPO)",
        question="prompt",
        answer="solution",
        splits={
            "train": (Source("open-r1/DAPO-Math-17k-Processed", "train", ("en",), ("dapo_math_17k_en",), 14116),),
        },
    )
)
register_task(
    Task(
        name="openmathreasoning-mini",
        description="the paper's SFT demonstrations, numeric answers only",
        kind="sft",
        scorer="math",
        licence="CC-BY-4.0 (origin: OpenMathReasoning)",
        question="problem",
        answer="expected_answer",
        splits={"train": (Source("unsloth/OpenMathReasoning-mini", "cot", files=("openmathreasoning_mini_cot",)),)},
        keep=_numeric,
        needs=("generated_solution",),
        meta=("generated_solution",),
    )
)
