"""``Verifier``: completions and golds in, verdicts out, in order, whatever the completions hold."""

import importlib.util
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.verify.extract import extract_answer
from sage_rlvr.verify.judge import compare_integers
from sage_rlvr.verify.pool import DIED, GOLD_DIED, GOLD_TIMEOUT, TIMEOUT, Job, Pool
from sage_rlvr.verify.question import read_for, repeats
from sage_rlvr.verify.template import NO_GOLD, RAISED, RIGHT, WRONG

MATH = "sage_rlvr.verify.judge:MathJudge"
Questions = Sequence[str | None] | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One completion judged. ``answer`` is what was extracted, None where nothing was or it was too long.

    ``score`` and ``reason``: 1.0 "right"; 0.0 "wrong", "repeats the question", "no answer", "too long", "timeout", "worker died",
    "judge raised"; None "empty gold", "gold too long", "unverifiable gold", "gold timeout", "gold killed the worker".
    """

    score: float | None
    answer: str | None
    reason: str


_OUTCOMES: dict[bytes, tuple[float | None, str]] = {
    RIGHT: (1.0, "right"),
    WRONG: (0.0, "wrong"),
    TIMEOUT: (0.0, "timeout"),
    DIED: (0.0, "worker died"),
    RAISED: (0.0, "judge raised"),
    NO_GOLD: (None, "unverifiable gold"),
    GOLD_TIMEOUT: (None, "gold timeout"),
    GOLD_DIED: (None, "gold killed the worker"),
}
_LASTING = {RIGHT, WRONG, NO_GOLD}  # the same next time; a timeout or a death might have been the machine's fault


class Verifier:
    r"""A pool of killable worker processes around Math-Verify.

    The answer is what ``extract_answer`` finds in the completion. Gold and answer are both read by Math-Verify as
    ``\boxed{…}`` (``judge.py`` says exactly how) and compared gold first. A gold that cannot be read scores None,
    never 0. A pair is judged once a call, and remembered across calls. An answer that hangs, or kills its worker,
    scores 0.0 and costs a fork (milliseconds), never the batch.

    Nothing starts before the first answer has to be judged. Usable from many threads at once (from asyncio by
    ``asyncio.to_thread``), from daemonic processes, after a fork (the child gets a pool of its own) and pickled (the settings
    travel, the processes do not). The processes end with ``close()``, when the verifier is collected, at exit, and when
    this process is killed; a verifier that was closed starts again when it is next used.

    workers: processes; default one per CPU this process may use, 16 at most.
    timeout_s: wall-clock seconds an answer may take, and a gold may take to be parsed; then SIGKILL.
    memory_mb: address space a worker may take, itself included (about 70 MB).
    max_chars: a longer completion is not looked at. max_answer_chars: nor is a longer answer or gold.
    fallback: also take "the answer is …" or the last number for an answer (see ``extract_answer``).
    judge_path: "module:Class", or "module:Class:argument" for Class(argument), with ``parse_gold(gold)`` (None: unverifiable) and
    ``is_right(parsed, answer)``; made once, in the process that workers are forked from. For answers that are not mathematics.
    cache_size: how many judged pairs to remember.
    untrusted: the judge may take an answer for code: each gold gets a fresh worker with its doors closed (``sandbox.py``).
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout_s: float = 5.0,
        memory_mb: int = 1024,
        max_chars: int = 1_000_000,
        max_answer_chars: int = 2_000,
        fallback: bool = False,
        judge_path: str = MATH,
        cache_size: int = 10_000,
        untrusted: bool = False,
    ) -> None:
        if workers is None:
            workers = min(16, len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)
        _check(workers, timeout_s, memory_mb, judge_path)
        self._pool: Pool | None = None
        self._closer: Finalize | None = None
        self._lock = threading.RLock()
        self._cache: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self.workers, self.timeout_s, self.memory_mb = workers, timeout_s, memory_mb
        self.max_chars, self.max_answer_chars, self.fallback = max_chars, max_answer_chars, fallback
        self.judge_path, self.cache_size, self.untrusted = judge_path, cache_size, untrusted
        _ALIVE.add(self)

    def score(
        self, completions: Sequence[str], answers: Sequence[Any], questions: Questions = None
    ) -> list[float | None]:
        """1.0, 0.0, or None where the gold cannot be verified; in order.

        ``questions``, where known: an answer that only repeats its question scores 0.0 unless the gold does the same, and a
        percent sign is read as the question asks for it.
        """
        return [verdict.score for verdict in self.judge(completions, answers, questions)]

    def judge(self, completions: Sequence[str], answers: Sequence[Any], questions: Questions = None) -> list[Verdict]:
        """Like ``score``, with the extracted answer and the reason."""
        if isinstance(completions, str) or isinstance(answers, str) or len(completions) != len(answers):
            raise UserError(
                f"Verifier: {len(completions)} completions and {len(answers)} answers; give two lists, one gold per completion."
            )
        if questions is not None and len(questions) != len(completions):
            raise UserError(
                f"Verifier: {len(completions)} completions and {len(questions)} questions; give one per completion."
            )
        asked = questions if questions is not None and self.judge_path == MATH else [None] * len(completions)
        items = [self._read(*item) for item in zip(completions, answers, asked)]
        outcomes = self._outcomes([item.pair for item in items if isinstance(item, _Item)])
        return [item if isinstance(item, Verdict) else item.verdict(outcomes[item.pair]) for item in items]

    def _outcomes(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
        """(gold, answer) → outcome, from the memory or the workers."""
        known, jobs = dict[tuple[str, str], bytes](), list[Job]()
        with self._lock:
            for pair in dict.fromkeys(pairs):
                if pair in self._cache:
                    self._cache.move_to_end(pair)
                    known[pair] = self._cache[pair]
                else:
                    jobs.append(Job(*pair))
            if jobs:
                self._running_pool().submit(jobs)
        try:
            outcomes = {(job.gold, job.answer): job.future.result() for job in jobs}
        finally:  # Ctrl-C: what no worker has begun is not begun any more
            for job in jobs:
                job.future.cancel()
        with self._lock:
            self._cache.update((pair, outcome) for pair, outcome in outcomes.items() if outcome in _LASTING)
            while len(self._cache) > self.cache_size:
                self._cache.popitem(last=False)
        return known | outcomes

    def _read(self, completion: str, gold: Any, question: str | None) -> "Verdict | _Item":
        """What is to be judged, or the verdict where there is none. The gold comes first: without one, nothing is wrong."""
        gold = "" if gold is None else str(gold).strip()
        if not gold:
            return Verdict(None, None, "empty gold")
        if len(gold) > self.max_answer_chars:
            return Verdict(None, None, "gold too long")
        if len(completion) > self.max_chars:
            return Verdict(0.0, None, "too long")
        answer = extract_answer(completion, self.fallback)
        if answer is None:
            return Verdict(0.0, None, "no answer")
        if len(answer) > self.max_answer_chars:
            return Verdict(0.0, None, "too long")
        answer = answer.encode("utf-8", "replace").decode()  # no lone surrogates: a verdict can be stored
        equal = compare_integers(gold, answer) if self.judge_path == MATH else None
        if equal is not None:
            return Verdict(float(equal), answer, "right" if equal else "wrong")
        return _Item((gold, read_for(question, gold, answer) if question else answer), answer, question)

    def _running_pool(self) -> Pool:
        if self._pool is None:
            if not hasattr(os, "fork"):
                raise UserError("Verifier: this system cannot fork processes; run it on Linux, macOS or in WSL.")
            self._pool = Pool(self.workers, self.timeout_s, self.judge_path, self.memory_mb, self.untrusted)
            # Runs once: when we are collected, at exit, at the end of a multiprocessing child, or in close().
            self._closer = Finalize(self, self._pool.close, exitpriority=100)
        return self._pool

    def close(self) -> None:
        with self._lock:
            closer, self._pool, self._closer = self._closer, None, None
        if closer is not None:
            closer()

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        limits = (self.workers, self.timeout_s, self.memory_mb, self.max_chars, self.max_answer_chars)
        return Verifier, (*limits, self.fallback, self.judge_path, self.cache_size, self.untrusted)

    def _forget(self) -> None:
        """In a forked child: the pool belongs to the parent, and a lock may have been held by a thread that is not here."""
        if self._pool is not None:
            self._pool.forget()
        if self._closer is not None:
            self._closer.cancel()
        self._pool, self._closer, self._lock = None, None, threading.RLock()


@dataclass(frozen=True, slots=True)
class _Item:
    """A completion that has to be judged."""

    pair: tuple[str, str]  # what the judge sees: the gold, the answer as its question lets it be read
    answer: str
    question: str | None

    def verdict(self, outcome: bytes) -> Verdict:
        score, reason = _OUTCOMES[outcome]
        if score == 1 and self.question and repeats(self.question, self.pair[0], self.answer):
            score, reason = 0.0, "repeats the question"
        return Verdict(score, self.answer, reason)


def _check(workers: int, timeout_s: float, memory_mb: int, judge_path: str) -> None:
    if workers < 1:
        raise UserError(f"Verifier: workers={workers} must be at least 1.")
    if not timeout_s > 0:
        raise UserError(f"Verifier: timeout_s={timeout_s} must be above 0.")
    if memory_mb < 256:
        raise UserError(f"Verifier: memory_mb={memory_mb} leaves a worker no room; give it 256 or more.")
    module, colon, name = judge_path.partition(":")
    if not (module and colon and name):
        raise UserError(f"Verifier: judge_path={judge_path!r} must be 'package.module:Class'.")
    if judge_path == MATH and importlib.util.find_spec("math_verify") is None:
        raise UserError("Verifier: Math-Verify is not installed; pip install 'math-verify>=0.9,<0.10'.")


_ALIVE: "weakref.WeakSet[Verifier]" = weakref.WeakSet()


def _after_fork() -> None:
    for verifier in list(_ALIVE):
        verifier._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
