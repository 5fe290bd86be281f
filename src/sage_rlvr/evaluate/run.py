"""``sage-rlvr eval``: what the store does not have is sampled, judged while sampling goes on, and stored.

Memory does not grow with n: requests are made one at a time, at most QUEUE batches wait to be judged, and the store writes
them out. Killed at any moment, the same command goes on; on CPU in float32 it ends with the very same samples.
"""

import json
import logging
import math
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate import backends
from sage_rlvr.evaluate.arguments import EvalArguments
from sage_rlvr.evaluate.progress import ProgressLine
from sage_rlvr.evaluate.sampling import Ask, Generation, Have, Request, Sampling, missing
from sage_rlvr.files import read_json
from sage_rlvr.models import write_whole
from sage_rlvr.provenance import made_with
from sage_rlvr.stats.counts import MOST
from sage_rlvr.store.samples import Sample, SampleStore
from sage_rlvr.tasks import (
    Problem,
    PromptFormat,
    chat_template,
    distinct_solution,
    get_format,
    keep_verifiable,
    load_task,
    make_scorer,
    own,
    render,
    rows,
)
from sage_rlvr.tasks.loading import some
from sage_rlvr.tasks.rewards import OwnReward, RewardFailed, failures
from sage_rlvr.tasks.scorers import final_answer, reader, reads_unmarked
from sage_rlvr.verify import Verdict, Verifier, judged_text

QUEUE = 4  # batches of generations that may wait to be judged
STILL_S = 120.0  # a batch judged for longer is named: a scorer that stands still looks like an engine that is silent
# verdicts on a gold that may be the machine's fault
UNSURE = ("timeout", "gold timeout", "worker died", "gold killed the worker")
ENGINE = (
    "batch_size", "dtype", "gpu_memory_utilization", "trust_remote_code", "kv_cache_gib", "engines_per_gpu",
)  # fmt: skip
AGAIN = "remove it and run this again, it is written anew"
_log = logging.getLogger(__name__)


# ---- the whole verb ----------------------------------------------------------------------------------------------


def evaluate(args: EvalArguments, console: Console | None = None, engines: backends.Engines | None = None) -> Path:
    """Samples and judges what is missing from ``args.out``; answers that folder. ``engines``: the caller's, who closes them,
    so that several adapters are sampled by one."""
    kind, fmt = backends.choose(args.backend), get_format(args.prompt_format)
    digests = _own(args)
    how = Sampling(args.temperature, args.top_p, args.min_p, args.top_k, args.max_tokens, fmt.stop)
    base, adapter = backends.sources(args.model, args.adapter)
    with ExitStack() as stack:
        judges = Judges(args, fmt, stack)
        kept = {name: _kept(name, args, judges) for name in args.tasks}
        tokenizer = backends.tokenizer_of(base, adapter, args.trust_remote_code)
        tokenizer.chat_template = chat_template(tokenizer, fmt)
        asks = [ask for problems, _ in kept.values() for ask in _asks(problems, fmt, tokenizer)]
        if not asks:
            raise UserError(f"no problem of {', '.join(args.tasks)} has a gold that can be verified: check --data_dir.")
        longest = backends.check_context(base, asks, how.max_tokens)
        total = len(asks) * len(args.seeds) * args.n
        if total > MOST:
            raise UserError(
                f"n={args.n:,} is {total:,} samples ({len(asks):,} problems × {len(args.seeds)} seeds), more than can be counted "
                f"({MOST:,}): give a smaller --n, --seeds or --limit."
            )
        settings = args.settings(kind, base, adapter) | backends.fingerprints(base, adapter, tokenizer, fmt) | digests
        (console or Console()).print(args.said(len(asks)), highlight=False)
        store = stack.enter_context(SampleStore(args.out, settings, shard_seconds=args.save_every_s))
        _write_problems(Path(args.out, "problems.json"), {name: problems for name, (problems, _) in kept.items()})
        write_whole(Path(args.out, "made.json"), json.dumps(made_with()) + "\n")
        for name, (problems, dropped) in kept.items():
            store.ask(name, [p.id for p in problems], args.n, args.seeds, dropped)
        have, present = _present(store, asks, args)
        if present == total:
            (console or Console()).print(f"{args.out} is complete: {total:,} samples are there.", highlight=False)
            return Path(args.out)
        engine = {name: getattr(args, name) for name in ENGINE}
        if engines is None:
            engines = stack.enter_context(closing(backends.Engines()))
        backend = backends.make_backend(kind, base, adapter, tokenizer, how, longest, **engine, latest=engines.take())
        engines.latest = backend
        asked = {(p.task, p.id): p for problems, _ in kept.values() for p in problems}
        requests = missing(asks, args.seeds, args.n, have, backend.batch_size)
        with ProgressLine(total, present, console) as line, _ends_in_order():
            run = args.run or Path(args.out).resolve().name
            Scribe(store, judges, asked, run, args.model, line).write(backend.generate(requests))
    return Path(args.out)


def _own(args: EvalArguments) -> dict[str, Any]:
    """The user's data become a task of this process; answers what data and rewards are now, for the store."""
    task = own.prepare(args, ",".join(args.tasks), split="test")
    if args.dataset:
        args.tasks = [task]
    return own.digests(args, task)


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """SIGTERM as Ctrl-C: what was sampled is judged and written before the process ends, with SIGTERM's exit code."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's affair
        return

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # told twice: at once
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _kept(task: str, args: EvalArguments, judges: "Judges") -> tuple[list[Problem], list[str]]:
    """(problems with a verifiable gold, ids of the others); golds that ran out of time are named as such."""
    problems = load_task(task, args.data_dir, args.limit, split="test" if args.dataset else args.split)
    if args.dataset and args.reward:
        return problems, []  # there is no gold
    patient: Any = Patient(task, judges)
    kept, dropped = keep_verifiable(problems, patient)
    late = [p.id for p in problems if p.answer in patient.late and p.id in set(dropped)]
    if late:
        said = "%s: %d of them ran out of time, twice (%s): give --verifier_timeout_s more than %g and run it again."
        _log.warning(said, task, len(late), some(late), args.verifier_timeout_s)
    return kept, dropped


def _write_problems(path: Path, asked: dict[str, list[Problem]]) -> None:
    """What was asked, so that a reader of the samples sees it: task → id → question and gold. A later run adds its own; an
    id that stood for another problem is refused, for its samples would be of both."""
    known = _known_problems(path)
    for task, problems in asked.items():
        here = known.setdefault(task, {})
        for p in problems:
            now = {"question": p.question, "answer": p.answer}
            if here.setdefault(p.id, now) != now:
                raise UserError(
                    f"{path} has another question or answer for {p.id} of {task} than the task has now; give --out another "
                    "folder, or the old data."
                )
    write_whole(path, json.dumps(known, ensure_ascii=False) + "\n")


def _known_problems(path: Path) -> dict[str, dict[str, Any]]:
    try:
        known = read_json(path, AGAIN) if path.is_file() else {}
        return {task: dict(problems) for task, problems in known.items()}
    except UserError:
        raise
    except (ValueError, TypeError, AttributeError) as e:
        raise UserError(f"{path} cannot be read ({e}); {AGAIN}.") from e


def _present(store: SampleStore, asks: Sequence[Ask], args: EvalArguments) -> tuple[Have, int]:
    """(cell → indices the store has, how many of those asked for that is)."""
    keys = store.done()

    def have(cell: tuple[str, str, int]) -> set[int]:
        return keys.get(cell, set())

    cells = [(ask.task, ask.problem, seed) for ask in asks for seed in args.seeds]
    return have, sum(sum(i < args.n for i in have(cell)) for cell in cells)


def _asks(problems: Sequence[Problem], fmt: PromptFormat, tokenizer: Any) -> Iterator[Ask]:
    """Prompts as training has them: the chat template with the format's prefix behind it, tokenised with nothing added."""
    for p in problems:
        ids = tokenizer(render(p, fmt, tokenizer), add_special_tokens=False)["input_ids"]
        yield Ask(p.task, p.id, tuple(ids))


# ---- judging, beside generation ----------------------------------------------------------------------------------


class Judges:
    """One scorer a task; the math tasks share one verifier. With ``--reward`` the user's functions judge."""

    reward: OwnReward | None = None
    extract: Callable[[str], str | None] | None = None  # --extract, where it was said
    marks = False  # whether it is a function of the user's: what it finds is what is judged

    def __init__(self, args: EvalArguments, fmt: PromptFormat, stack: ExitStack):
        self.fmt, self.fallback = fmt, fmt.fallback
        if args.extract:
            given = own.extract_of(args)
            self.extract, self.marks, self.named = reader(given), callable(given), f"--extract {args.extract}"
            self.fallback = self.fallback if self.marks else reads_unmarked(args.extract)
        if args.reward:
            self.reward = OwnReward(args.reward, args.reward_weights, args.correct_at or 0.0)
        self.verifier = stack.enter_context(
            Verifier(workers=args.verifier_workers, timeout_s=args.verifier_timeout_s, fallback=self.fallback)
        )
        self.stack, self.scorers = stack, dict[str, Any]()

    def verdicts(self, task: str, batch: Sequence[Generation], problems: Sequence[Problem]) -> list[Verdict]:
        """Of one task's completions, each with its problem; raises RewardFailed where the user's code does."""
        if self.reward is not None:
            return self._rewarded(self.reward, batch, problems)
        if self.marks:
            found = [self._read(g.text) for g in batch]
            texts = ["" if answer is None else f"<SOLUTION>{answer}</SOLUTION>" for answer in found]
        else:
            texts = [judged_text(g.text, truncated=g.finish != "stop") for g in batch]
        return self.judge(task, texts, [p.answer for p in problems], [p.question for p in problems])

    def _rewarded(self, reward: OwnReward, batch: Sequence[Generation], problems: Sequence[Problem]) -> list[Verdict]:
        """The functions get what TRL would hand them: every column, and conversations where the prompts are."""
        asked = rows(problems, self.fmt)
        texts: list[Any] = [g.text for g in batch]
        if isinstance(asked[0]["prompt"], list):
            texts = [[{"role": "assistant", "content": text}] for text in texts]
        names = dict.fromkeys(k for row in asked for k in row if k not in ("prompt", "completion", "completion_ids"))
        columns: dict[str, Any] = {name: [row.get(name) for row in asked] for name in names}
        columns |= {"completion_ids": [g.token_ids for g in batch], "truncated": [g.finish != "stop" for g in batch]}
        totals = reward.totals(prompts=[row["prompt"] for row in asked], completions=texts, **columns)
        return [self._verdict(g.text, total, reward) for g, total in zip(batch, totals)]

    def _verdict(self, text: str, total: float | None, reward: OwnReward) -> Verdict:
        """What is right stays right where no answer can be read: the reward has seen the whole text."""
        answer = self._read(text)
        if total is None:
            return Verdict(None, answer, "no reward")
        right = reward.reached(total)
        return Verdict(float(right), "" if right and answer is None else answer, f"reward {total:g}")

    def _read(self, text: str) -> str | None:
        if self.extract is None:
            return final_answer(text, fallback=True)
        with failures(self.extract, self.named):
            return self.extract(text)

    def judge(
        self, task: str, texts: Sequence[str], golds: Sequence[str], questions: Sequence[str] | None = None
    ) -> list[Verdict]:
        if task not in self.scorers:
            self.scorers[task] = self.stack.enter_context(make_scorer(task, self.verifier, self.fallback))
        return self.scorers[task].judge(texts, golds, questions)


class Patient:
    """A scorer for golds: one that ran out of time, or whose worker died, is tried once more, when the machine may have
    time. ``late``: the golds that ran out of it twice."""

    def __init__(self, task: str, judges: Judges):
        self.task, self.judges, self.late = task, judges, set[str]()

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[float | None]:
        verdicts = self.judges.judge(self.task, completions, answers)
        again = [i for i, v in enumerate(verdicts) if v.reason in UNSURE]
        second = self.judges.judge(self.task, [completions[i] for i in again], [answers[i] for i in again])
        for i, verdict in zip(again, second):
            verdicts[i] = verdict
        self.late = {gold for gold, v in zip(answers, verdicts) if "timeout" in v.reason}
        return [v.score for v in verdicts]


class Scribe:
    """Takes generations as they come and judges and stores them in a thread, so that sampling need not wait."""

    def __init__(
        self, store: SampleStore, judges: Judges, asked: dict[tuple[str, str], Problem], run: str, model: str, line: Any
    ):
        self.store, self.judges, self.asked, self.run, self.model, self.line = store, judges, asked, run, model, line
        self.waiting: queue.Queue[list[Generation] | None] = queue.Queue(maxsize=QUEUE)
        self.failure: BaseException | None = None
        self.judging: tuple[float, str, list[str]] | None = None  # since when, which task, which problems
        self.named: tuple[float, str, list[str]] | None = None  # the last of these that took long
        self.peak = 0  # most batches that were ever waiting or being judged

    def write(self, batches: Iterator[list[Generation]]) -> None:
        thread = threading.Thread(target=self._work, name="judge", daemon=True)
        thread.start()
        try:
            for batch in batches:
                self._put(batch)
                if self.failure:
                    break
        finally:  # also where sampling failed: what it gave before is judged and kept
            self._put(None)
            while thread.is_alive():
                thread.join(0.5)
                self._notice()
        if self.failure:
            raise self.failure

    def _put(self, batch: list[Generation] | None) -> None:
        while self.failure is None:  # else nobody is taking any more
            try:
                self.waiting.put(batch, timeout=0.5)
            except queue.Full:
                self._notice()
                continue
            self.peak = max(self.peak, self.waiting.unfinished_tasks)
            return

    def _notice(self) -> None:
        now = self.judging
        if now and now is not self.named and time.monotonic() - now[0] >= STILL_S:
            self.named, (_, task, problems) = now, now
            self.line.say(
                f"{task}: one batch has been judged for {STILL_S:g} s ({some(problems)}), and its scorer may hang: Ctrl-C twice "
                "ends this, and what was stored stays."
            )

    def _work(self) -> None:
        try:
            while True:
                try:
                    batch = self.waiting.get(timeout=0.5)
                except queue.Empty:  # a batch may take longer than what is stored should wait
                    self.store.flush_late()
                    continue
                if batch is None:
                    return
                self._store([g for g in batch if g.request.wanted])
                self.waiting.task_done()
        except BaseException as e:
            self.failure = e

    def _store(self, batch: list[Generation]) -> None:
        broken = next((g.request for g in batch if g.logprob is not None and math.isnan(g.logprob)), None)
        if broken:
            raise UserError(
                f"{self.model} gives tokens of {broken.task}/{broken.problem} log-probs that are not numbers, so its weights or "
                f"its engine are broken: check the weights and begin again in another --out, for samples drawn just before may "
                f"be nonsense too (docs/reference/faq.md)."
            )
        for task in dict.fromkeys(g.request.task for g in batch):
            part = [g for g in batch if g.request.task == task]
            problems = [self.asked[task, g.request.problem] for g in part]
            self.judging = time.monotonic(), task, list(dict.fromkeys(g.request.problem for g in part))
            try:
                verdicts = self.judges.verdicts(task, part, problems)
            except RewardFailed as e:
                judged = self.store.waiting or self.store.shards()
                then = "give another --out, this one has samples judged before" if judged else "run this again"
                raise UserError(f"{e.why}. Fix it and {then}.") from e
            self.judging = None
            self.store.append([self._sample(g, v) for g, v in zip(part, verdicts)])
            right = sum(v.score == 1 for v in verdicts)
            self.line.advance(len(part), sum(len(g.token_ids) for g in part), right)

    def _sample(self, g: Generation, v: Verdict) -> Sample:
        r: Request = g.request
        reason = "truncated" if g.finish == "length" and v.reason == "no answer" else v.reason
        solution = distinct_solution(r.task, g.text, self.judges.fallback) if v.score == 1 else None
        return Sample(
            run=self.run, model=self.model, task=r.task, problem=r.problem, seed=r.seed, index=r.index, completion=g.text,
            tokens=len(g.token_ids), finish=g.finish, answer=v.answer, verdict=v.score, reason=reason,
            token_ids=g.token_ids, logprob=g.logprob, solution=solution,
        )  # fmt: skip
