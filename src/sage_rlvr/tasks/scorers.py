"""Scorers: from completions and golds to verdicts, 1.0 or 0.0, None where the gold cannot be judged.

A scorer is made by name for a task; a new kind of task adds one with ``register_scorer("name")(function)``, the function
taking an extracted answer and a gold. What is extracted is the last <SOLUTION>…</SOLUTION>, then the last \\boxed{…}.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar

from sage_rlvr.errors import UserError
from sage_rlvr.tasks import expressions, gym, knights
from sage_rlvr.tasks.prompts import get_format
from sage_rlvr.tasks.registry import Problem, get_task, near

_log = logging.getLogger(__name__)
Judge = Callable[[str, str], float | None]  # (extracted answer, gold) → verdict
EXTRACTS = {"marked": False, "any": True}  # how an answer is found, by name: whether one without a mark counts
Extract = str | Callable[[str], str | None] | None
MAX_CHARACTERS = 1_000_000  # a longer completion is not looked at, as in the Verifier
MAX_ANSWER_CHARACTERS = 20_000
T = TypeVar("T")


class Scorer(Protocol):
    """What make_scorer gives. Close it, or use it in a ``with``: the math scorer owns worker processes."""

    def score(
        self, completions: Sequence[str], answers: Sequence[str], questions: Sequence[str] | None = None
    ) -> list[float | None]: ...
    def close(self) -> None: ...
    def __enter__(self) -> "Scorer": ...
    def __exit__(self, *error: object) -> None: ...


class JudgeScorer:
    """Applies a judge to each extracted answer, in this process; an answer over the limits is none.

    ``own``: the judge is a user's, and what it raises is the user's to see. One of ours that raises scores 0.0, is counted in
    ``errors`` and said once: no completion ends a run.
    """

    def __init__(self, judge: Judge, fallback: bool = False, name: str = "", own: bool = False):
        self.judge, self.fallback, self.own = judge, fallback, own
        self.name = name or judge.__name__
        self.block = judge is judge_knights  # who is what may take several lines
        self.errors = 0  # completions

    def score(
        self, completions: Sequence[str], answers: Sequence[str], questions: Sequence[str] | None = None
    ) -> list[float | None]:
        """``questions`` are for mathematics: these golds hold all there is to know."""
        if len(completions) != len(answers):
            raise UserError(
                f"score: {len(completions)} completions but {len(answers)} answers; give one answer per completion."
            )
        pairs = list(zip(completions, answers))
        verdicts = {pair: self._one(*pair) for pair in dict.fromkeys(pairs)}  # many samples say the same
        self.errors += sum(verdicts[pair] is _FAILED for pair in pairs)
        return [0.0 if verdicts[pair] is _FAILED else verdicts[pair] for pair in pairs]  # type: ignore[misc]

    def _one(self, completion: str, gold: str) -> "float | _Failed | None":
        answer = final_answer(completion, self.fallback, self.block) or ""
        answer = answer if len(answer) <= MAX_ANSWER_CHARACTERS else ""
        # also without an answer: only the judge knows whether the gold is sound
        if self.own:
            return self.judge(answer, gold)
        return _safely(f"scorer {self.name}", lambda: self.judge(answer, gold), _FAILED)

    def close(self) -> None:
        pass

    def __enter__(self) -> "JudgeScorer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Failed:
    """The verdict of a judge of ours that raised."""


_FAILED = _Failed()
_said: set[tuple[str, str]] = set()  # what raised what has been said


def _safely(what: str, read: Callable[[], T], otherwise: Any) -> T | Any:
    """``read()``, or ``otherwise`` where our own code fails on a model's text: the one place where that is caught."""
    try:
        return read()
    except Exception as error:
        key = (what, type(error).__name__)
        if key not in _said:
            _said.add(key)
            _log.warning(
                "%s raised %s (%s): the completion counts as an error, 0, and the run goes on. Please report it.",
                what,
                type(error).__name__,
                error,
                exc_info=error,
            )
        return otherwise


def final_answer(completion: str, fallback: bool = False, block: bool = False) -> str | None:
    """The tagged or boxed answer; with ``fallback``, else the last line (or block of lines) that says anything."""
    if len(completion) > MAX_CHARACTERS:
        return None
    return _safely("final_answer", lambda: _final_answer(completion, fallback, block), None)


def _final_answer(completion: str, fallback: bool, block: bool) -> str | None:
    from sage_rlvr.verify import extract_answer

    found = extract_answer(completion)
    if found is None and fallback:
        parts = re.split(r"\n\s*\n" if block else r"\n", completion.strip())
        return parts[-1] or None
    return found


# ---- judges ------------------------------------------------------------------------------------------------------

_NO_GOLD = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # what reading one raises


def judge_knights(answer: str, gold: str) -> float | None:
    """The whole assignment, or nothing."""
    right = _knights_gold(gold)
    return float(knights.read_assignment(answer, list(right)) == right) if right else None


@lru_cache(maxsize=1 << 13)
def _knights_gold(gold: str) -> dict[str, bool] | None:
    try:
        said = json.loads(gold)
        right = dict(zip(said["names"], map(bool, said["solution"]), strict=True))
    except _NO_GOLD:
        return None
    return right if all(isinstance(name, str) and name for name in right) else None


def judge_countdown(answer: str, gold: str) -> float | None:
    """Usual precedence and brackets; every number once; the value exactly the target."""
    given = _countdown_gold(gold)
    if given is None:
        return None
    tokens = expressions.tokens_of(answer, given[1])
    if not tokens or not expressions.uses_exactly(tokens, given[0]):
        return 0.0
    tree = expressions.parse(tokens)
    return float(tree is not None and tree.value == given[1])


def judge_countdown_ltr(answer: str, gold: str) -> float | None:
    """Left to right, + − × only, no brackets; every number once; the value exactly the target."""
    given = _countdown_gold(gold)
    if given is None:
        return None
    tokens = expressions.tokens_of(answer, given[1])
    if not tokens or not expressions.uses_exactly(tokens, given[0]):
        return 0.0
    return float(expressions.left_to_right(tokens) == given[1])


@lru_cache(maxsize=1 << 13)
def _countdown_gold(gold: str) -> tuple[tuple[int, ...], int] | None:
    try:
        said = json.loads(gold)
        return tuple(int(x) for x in said["numbers"]), int(said["target"])
    except _NO_GOLD:
        return None


SCORERS: dict[str, Judge | None] = {
    "math": None,  # None: judged in the Verifier's processes
    "knights-knaves": judge_knights,
    "countdown": judge_countdown,
    "countdown-ltr": judge_countdown_ltr,
    "gym": None,
}
BUILT_IN = frozenset(SCORERS)


def register_scorer(name: str) -> Callable[[Judge], Judge]:
    """Decorator: makes a judge known by name to tasks."""

    def register(judge: Judge) -> Judge:
        if name in SCORERS:
            raise UserError(f"a scorer named {name!r} is registered already; choose another name.")
        SCORERS[name] = judge
        return judge

    return register


def make_scorer(task_name: str, verifier: Any = None, fallback: bool = False) -> Scorer:
    """The scorer of a task. ``verifier`` lends a running Verifier to math tasks (and its own ``fallback`` then holds), and its
    limits to those of reasoning-gym."""
    name = get_task(task_name).scorer
    if name not in SCORERS:
        raise UserError(
            f"task {task_name!r} names the scorer {name!r}, which is not registered: {near(name, SCORERS)}."
        )
    judge = SCORERS[name]
    if judge is not None:
        return JudgeScorer(judge, fallback, name, own=name not in BUILT_IN)
    from sage_rlvr.verify import Verifier

    if name == "gym":
        limits = {} if verifier is None else {"workers": verifier.workers, "timeout_s": verifier.timeout_s}
        path = gym.judge_path(task_name)
        return Verifier(fallback=fallback, judge_path=path, max_answer_chars=10_000, untrusted=True, **limits)
    return verifier if verifier is not None else Verifier(fallback=fallback)


# ---- what uses them ----------------------------------------------------------------------------------------------


def distinct_solution(task_name: str, completion: str, fallback: bool = False) -> str | None:
    """A canonical form of a correct solution, so that different ones can be counted; None where a task defines none."""
    kind = get_task(task_name).scorer
    if kind not in _CANONICAL:
        return None
    answer = final_answer(completion, fallback) or ""
    return _safely("distinct_solution", lambda: _canonical(answer, kind), None)


_CANONICAL = ("countdown", "countdown-ltr")  # scorers with many right answers, whose normal form is known
_ONE_ANSWER = ("math", "knights-knaves")  # scorers for which all right answers are one
THE_GOLD = "the gold"


def _canonical(answer: str, kind: str) -> str | None:
    tokens = expressions.tokens_of(answer)
    if not tokens:
        return None
    if kind == "countdown-ltr":
        return "".join(tokens)
    tree = expressions.parse(tokens)
    return expressions.canonical(tree) if tree else None


def keep_verifiable(problems: Sequence[Problem], scorer: Scorer) -> tuple[list[Problem], list[str]]:
    """(problems whose gold can be judged, ids of the others). An unverifiable gold is skipped, never scored 0.

    Each gold is offered as the answer to itself; one that mathematics does not find equal to itself is no use either.
    """
    verdicts = scorer.score([f"<SOLUTION>{p.answer}</SOLUTION>" for p in problems], [p.answer for p in problems])
    sound = [v is not None and (v == 1 or get_task(p.task).scorer != "math") for p, v in zip(problems, verdicts)]
    bad = [p.id for p, fine in zip(problems, sound) if not fine]
    if bad:
        shown = ", ".join(bad[:5]) + (", …" if len(bad) > 5 else "")
        _log.warning("%s: skipped %d problems with no verifiable gold (%s).", problems[0].task, len(bad), shown)
    return [p for p, fine in zip(problems, sound) if fine], bad


class TaskReward:
    """What task_reward gives: callable as TRL calls a reward function, picklable, the scorer started at the first call."""

    def __init__(self, task_name: str, format: str = "paper", verifier: Any = None, extract: Extract = None):
        self.task_name, self.fallback, self.verifier = task_name, get_format(format).fallback, verifier
        if isinstance(extract, str):
            self.fallback = reads_unmarked(extract)
        self.own_extract = extract if callable(extract) else None
        self.__name__ = re.sub(r"\W", "_", f"{task_name}_reward")
        self.scorer: Scorer | None = None
        get_task(task_name)  # an unknown task is said now, not at the first step

    def __call__(self, completions: Sequence[Any], answer: Sequence[str], **columns: Any) -> list[float | None]:
        if self.own_extract is not None:
            answers = [self.extract(completion_text(c)) for c in completions]
            completions = ["" if a is None else f"<SOLUTION>{a}</SOLUTION>" for a in answers]
            columns.pop("truncated", None)  # the function has the whole text, cut or not
        if get_task(self.task_name).scorer == "math" and self.verifier is None and not self.fallback:
            from sage_rlvr.verify import verifiable_reward  # one verifier for the process, and its metrics

            return verifiable_reward(completions, answer, **columns)
        from sage_rlvr.verify.reward import judged_texts, questions_of

        if self.scorer is None:
            self.scorer = make_scorer(self.task_name, self.verifier, self.fallback)
        texts = judged_texts([completion_text(c) for c in completions], columns.get("truncated"))
        before = getattr(self.scorer, "errors", 0)
        verdicts = self.scorer.score(texts, list(answer), questions_of(columns.get("prompts")))
        if (log := columns.get("log_metric")) is not None and isinstance(self.scorer, JudgeScorer):
            log("errors", float(self.scorer.errors - before))
        return verdicts

    @property
    def built_in(self) -> bool:
        """Whether the scorer is one of ours: then what it raises is our fault, and not a user's to fix."""
        return get_task(self.task_name).scorer in BUILT_IN

    def extract(self, completion: str) -> str | None:
        """The answer a completion gives, as the scorer reads it: what a trainer counts when it counts distinct answers."""
        if self.own_extract is not None:
            return _own_answer(self.own_extract, completion)
        return final_answer(completion, self.fallback, get_task(self.task_name).scorer == "knights-knaves")

    def key(self, completion: str) -> str | None:
        """Which solution a right completion gives, however it is spelt: what ``coverage`` pays once. In mathematics and for
        knights and knaves every right answer is the gold; where a task has no normal form, it is the answer's text. None: not
        to be told, a solution of its own."""
        kind = get_task(self.task_name).scorer
        if kind in _ONE_ANSWER:
            return THE_GOLD
        if kind in _CANONICAL:
            return distinct_solution(self.task_name, completion, self.fallback)
        answer = self.extract(completion)
        return None if answer is None else " ".join(answer.split())


def task_reward(task_name: str, format: str = "paper", verifier: Any = None, extract: Extract = None) -> TaskReward:
    """A TRL reward function for a task: 1.0, 0.0 or None (TRL leaves None out). ``extract``: how an answer is found, "marked",
    "any" or a function of the completion's text; None: as the prompt format says."""
    return TaskReward(task_name, format, verifier, extract)


def reads_unmarked(extract: str) -> bool:
    if extract not in EXTRACTS:
        raise UserError(f"--extract {extract}: write {', '.join(EXTRACTS)}, or file.py:function.")
    return EXTRACTS[extract]


def reader(extract: Extract) -> Callable[[str], str | None]:
    """A completion's text → its answer, None where it has none."""
    from sage_rlvr.verify import extract_answer

    if callable(extract):
        return partial(_own_answer, extract)
    return partial(extract_answer, fallback=bool(extract and reads_unmarked(extract)))


def _own_answer(extract: Callable[[str], str | None], completion: str) -> str | None:
    found = extract(completion)
    if found is not None and not isinstance(found, str):
        name = getattr(extract, "__name__", "extract")
        raise UserError(f"--extract {name} returned {found!r}: return the answer as text, or None where there is none.")
    return found


def solution_key(reward: Any, completion: str) -> str | None:
    """A right completion's ``key`` as its reward function gives it; of one that gives none, the answer that can be read, as its
    ``extract`` does or ours."""
    from sage_rlvr.verify import extract_answer, verifiable_reward

    if reward is verifiable_reward:
        return THE_GOLD
    read: Callable[[str], str | None] = getattr(reward, "key", getattr(reward, "extract", extract_answer))
    return read(completion)


def completion_text(completion: Any) -> str:
    """A completion is a string, or a conversation whose last assistant turn counts."""
    if isinstance(completion, str):
        return completion
    turns = [m.get("content") or "" for m in completion if m.get("role", "assistant") == "assistant"]
    content = turns[-1] if turns else ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
