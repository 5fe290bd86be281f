"""Scorers: from completions and golds to verdicts, 1.0 or 0.0, None where the gold cannot be judged.

A scorer is made by name for a task; a new kind of task adds one with ``register_scorer("name")(function)``, the function
taking an extracted answer and a gold. What is extracted is the last <SOLUTION>…</SOLUTION>, then the last \\boxed{…}.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from sage_rlvr.errors import UserError
from sage_rlvr.names import near
from sage_rlvr.tasks import expressions, gym, knights
from sage_rlvr.tasks.loading import some
from sage_rlvr.tasks.prompts import get_format
from sage_rlvr.tasks.registry import Problem, get_task
from sage_rlvr.verify import Verdict, Verifier, extract_answer, verifiable_reward
from sage_rlvr.verify.reward import completion_text as completion_text
from sage_rlvr.verify.reward import judged_texts, questions_of

_log = logging.getLogger(__name__)
Judge = Callable[[str, str], float | None]  # (extracted answer, gold) → verdict
EXTRACTS = {"marked": False, "any": True}  # how an answer is found, by name: whether one without a mark counts
Extract = str | Callable[[str], str | None] | None
MAX_CHARACTERS = 1_000_000  # a longer completion is not looked at, as in the Verifier
MAX_ANSWER_CHARACTERS = 20_000
THE_GOLD = "the gold"  # the key of every right answer where all right answers are one
T = TypeVar("T")


class JudgeScorer:
    """Applies a judge to each extracted answer, in this process; an answer over the limits is none.

    ``own``: the judge is a user's, and what it raises is the user's to see. One of ours that raises scores 0.0, is counted in
    ``errors`` and logged once: no completion ends a run.
    """

    def __init__(self, judge: Judge, fallback: bool, name: str, own: bool):
        self.rule, self.fallback, self.name, self.own = judge, fallback, name, own
        self.errors = 0  # completions

    def score(
        self, completions: Sequence[str], answers: Sequence[str], questions: Sequence[str] | None = None
    ) -> list[float | None]:
        return [verdict.score for verdict in self.judge(completions, answers, questions)]

    def judge(
        self, completions: Sequence[str], answers: Sequence[str], questions: Sequence[str] | None = None
    ) -> list[Verdict]:
        """Like ``score``, with the answer and the reason. ``questions`` are for mathematics: these golds hold all there is to
        know."""
        if len(completions) != len(answers):
            raise UserError(
                f"score: {len(completions)} completions but {len(answers)} answers; give one answer per completion."
            )
        pairs = list(zip(completions, answers))
        # many samples are the same
        found = {pair: self._verdict(*pair, times) for pair, times in Counter(pairs).items()}
        return [found[pair] for pair in pairs]

    def _verdict(self, completion: str, gold: str, times: int) -> Verdict:
        answer = final_answer(completion, self.fallback, self.name == "knights-knaves")
        read = answer if answer and len(answer) <= MAX_ANSWER_CHARACTERS else ""
        # also without an answer: only the judge knows whether the gold is sound
        if self.own:
            score = self.rule(read, gold)
        else:
            score = _safely(f"scorer {self.name}", lambda: self.rule(read, gold), _FAILED)
        if score is _FAILED:
            self.errors, score = self.errors + times, 0.0
        wrong = "no answer" if answer is None else "wrong"
        reason = "unverifiable gold" if score is None else "right" if score == 1 else wrong
        return Verdict(score, answer, reason)

    def close(self) -> None:
        pass

    def __enter__(self) -> "JudgeScorer":
        return self

    def __exit__(self, *error: object) -> None:
        pass


Scorer = JudgeScorer | Verifier  # close it, or use it in a ``with``: a Verifier owns worker processes
_FAILED: Any = object()  # the verdict of a judge of ours that raised
_logged: set[tuple[str, str]] = set()  # what raised what


def _safely(what: str, read: Callable[[], T], otherwise: Any) -> T | Any:
    """``read()``, or ``otherwise`` where our own code fails on a model's text: the one place where that is caught."""
    try:
        return read()
    except Exception as error:
        key = (what, type(error).__name__)
        if key not in _logged:
            _logged.add(key)
            said = "%s raised %s (%s): the completion counts as an error, 0, and the run goes on. Please report it."
            _log.warning(said, *key, error, exc_info=error)
        return otherwise


def final_answer(completion: str, fallback: bool = False, block: bool = False) -> str | None:
    """The tagged or boxed answer; with ``fallback``, else the last line (or block of lines) that says anything."""
    if len(completion) > MAX_CHARACTERS:
        return None
    return _safely("final_answer", lambda: _final_answer(completion, fallback, block), None)


def _final_answer(completion: str, fallback: bool, block: bool) -> str | None:
    answer = extract_answer(completion)
    if answer is None and fallback:
        return re.split(r"\n\s*\n" if block else r"\n", completion.strip())[-1] or None
    return answer


# ---- judges ------------------------------------------------------------------------------------------------------

_NO_GOLD = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # what reading one raises


def judge_knights(answer: str, gold: str) -> float | None:
    """The whole assignment, or nothing."""
    right = _knights_gold(gold)
    return float(knights.read_assignment(answer, list(right)) == right) if right else None


@lru_cache(maxsize=1 << 13)
def _knights_gold(gold: str) -> dict[str, bool] | None:
    try:
        entry = json.loads(gold)
        right = dict(zip(entry["names"], map(bool, entry["solution"]), strict=True))
    except _NO_GOLD:
        return None
    return right if all(isinstance(name, str) and name for name in right) else None


def judge_countdown(answer: str, gold: str, left_to_right: bool = False) -> float | None:
    """Every number once, and the value exactly the target: by the usual precedence and brackets, or left to right with + − × and
    no brackets."""
    given = _countdown_gold(gold)
    if given is None:
        return None
    numbers, target = given
    tokens = expressions.tokens_of(answer, target)
    if not tokens or not expressions.uses_exactly(tokens, numbers):
        return 0.0
    if left_to_right:
        return float(expressions.left_to_right(tokens) == target)
    tree = expressions.parse(tokens)
    return float(tree is not None and tree.value == target)


@lru_cache(maxsize=1 << 13)
def _countdown_gold(gold: str) -> tuple[tuple[int, ...], int] | None:
    try:
        entry = json.loads(gold)
        return tuple(int(x) for x in entry["numbers"]), int(entry["target"])
    except _NO_GOLD:
        return None


SCORERS: dict[str, Judge | None] = {
    "math": None,  # None: judged in the Verifier's processes
    "knights-knaves": judge_knights,
    "countdown": judge_countdown,
    "countdown-ltr": partial(judge_countdown, left_to_right=True),
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
    if name == "gym":
        limits = {} if verifier is None else {"workers": verifier.workers, "timeout_s": verifier.timeout_s}
        path = gym.judge_path(task_name)
        return Verifier(fallback=fallback, judge_path=path, max_answer_chars=10_000, untrusted=True, **limits)
    return verifier if verifier is not None else Verifier(fallback=fallback)


def keep_verifiable(problems: Sequence[Problem], scorer: Scorer) -> tuple[list[Problem], list[str]]:
    """(problems whose gold can be judged, ids of the others). An unverifiable gold is skipped, never scored 0.

    Each gold is offered as the answer to itself; one that mathematics does not find equal to itself is no use either.
    """
    verdicts = scorer.score([f"<SOLUTION>{p.answer}</SOLUTION>" for p in problems], [p.answer for p in problems])
    sound = [v is not None and (v == 1 or get_task(p.task).scorer != "math") for p, v in zip(problems, verdicts)]
    bad = [p.id for p, fine in zip(problems, sound) if not fine]
    if bad:
        _log.warning("%s: skipped %d problems with no verifiable gold (%s).", problems[0].task, len(bad), some(bad))
    return [p for p, fine in zip(problems, sound) if fine], bad


# ---- which solution it is ----------------------------------------------------------------------------------------


def distinct_solution(task_name: str, completion: str, fallback: bool = False) -> str | None:
    """A canonical form of a correct solution, so that different ones can be counted; None where a task defines none."""
    kind = get_task(task_name).scorer
    if kind not in ("countdown", "countdown-ltr"):
        return None
    answer = final_answer(completion, fallback) or ""
    return _safely("distinct_solution", lambda: _canonical(answer, kind), None)


def _canonical(answer: str, kind: str) -> str | None:
    tokens = expressions.tokens_of(answer)
    if not tokens:
        return None
    if kind == "countdown-ltr":
        return "".join(tokens)
    tree = expressions.parse(tokens)
    return expressions.canonical(tree) if tree else None


def solution_key(reward: Any, completion: str) -> str | None:
    """A right completion's ``key`` as its reward function gives it; of one that gives none, the answer that can be read, as its
    ``extract`` does or ours."""
    if reward is verifiable_reward:
        return THE_GOLD
    read: Callable[[str], str | None] = getattr(reward, "key", getattr(reward, "extract", extract_answer))
    return read(completion)


# ---- rewards -----------------------------------------------------------------------------------------------------


class TaskReward:
    """What task_reward gives: callable as TRL calls a reward function, picklable, the scorer started at the first call."""

    def __init__(self, task_name: str, format: str = "paper", verifier: Any = None, extract: Extract = None):
        self.kind = get_task(task_name).scorer  # an unknown task is refused now, not at the first step
        self.task_name, self.fallback, self.verifier = task_name, get_format(format).fallback, verifier
        if isinstance(extract, str):
            self.fallback = reads_unmarked(extract)
        self.own_extract = extract if callable(extract) else None
        self.__name__ = re.sub(r"\W", "_", f"{task_name}_reward")
        self.scorer: Scorer | None = None

    def __call__(self, completions: Sequence[Any], answer: Sequence[str], **columns: Any) -> list[float | None]:
        if self.own_extract is not None:
            answers = [self.extract(completion_text(c)) for c in completions]
            completions = ["" if a is None else f"<SOLUTION>{a}</SOLUTION>" for a in answers]
            columns.pop("truncated", None)  # the function has the whole text, cut or not
        if self.kind == "math" and self.verifier is None and not self.fallback:
            return verifiable_reward(completions, answer, **columns)  # one verifier for the process, and its metrics
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
        return self.kind in BUILT_IN

    def extract(self, completion: str) -> str | None:
        """The answer a completion gives, as the scorer reads it: what a trainer counts when it counts distinct answers."""
        if self.own_extract is not None:
            return _own_answer(self.own_extract, completion)
        return final_answer(completion, self.fallback, self.kind == "knights-knaves")

    def key(self, completion: str) -> str | None:
        """Which solution a right completion gives, however it is spelt: what ``coverage`` pays once. In mathematics and for
        knights and knaves every right answer is the gold; where a task has no normal form, it is the answer's text. None: not
        to be told, a solution of its own."""
        if self.kind in ("math", "knights-knaves"):
            return THE_GOLD
        if self.kind in ("countdown", "countdown-ltr"):
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
    if callable(extract):
        return partial(_own_answer, extract)
    return partial(extract_answer, fallback=bool(extract and reads_unmarked(extract)))


def _own_answer(extract: Callable[[str], str | None], completion: str) -> str | None:
    answer = extract(completion)
    if answer is not None and not isinstance(answer, str):
        name = getattr(extract, "__name__", "extract")
        raise UserError(
            f"--extract {name} returned {answer!r}: return the answer as text, or None where there is none."
        )
    return answer
