"""Decontamination: training problems that are evaluation problems, word for word or nearly, found and dropped.

Four rules, the first that holds gives the reason:
  exact     the normalised texts are equal;
  opening   their first 60 normalised characters are (most of these are re-worded at the end, to ask for an integer);
  overlap   of the runs of 13 words in the shorter of the two, at least a share of 0.3 are in the other. Runs that more than
            ten training problems have are phrases ("where m and n are relatively prime positive integers") and count on
            neither side. An evaluation problem of 8 to 12 words must stand whole in the training problem; of fewer than 8,
            only an exact match counts;
  reworded  the golds are equal and, of the runs of 8 characters in the shorter of the two (its words, joined; 8 at least), a
            share of 0.85 or more are in the other: a word is added or another removed.
Shares, run lengths and phrase limit were set by reading the pairs they give on DAPO-Math-17k, those of reworded on MATH and
GSM8K too.
Normalised: case, LaTeX markup and spacing, punctuation and white space are gone, operators stay; but for exact, drawings
([asy]…[/asy]) are gone too.
"""

import contextlib
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from sage_rlvr.errors import UserError
from sage_rlvr.tasks.loading import load_task, offline
from sage_rlvr.tasks.registry import TASKS, Problem

REASONS = ("exact", "opening", "overlap", "reworded")
NGRAM, SHARE, OPENING = 13, 0.3, 60
CHARACTERS, REWORDED = 8, 0.85
SHORT = 8  # below this many words only an exact match counts
PHRASE = 10  # a run that more training problems than this have is a phrase

_log = logging.getLogger(__name__)
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_MARKUP = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|text(?:bf|it|rm)?|math(?:rm|bf|it|cal|bb|sf)|operatorname"
    r"|overline|quad|qquad|hspace|vspace)(?![a-zA-Z])|\\[,;:!\s]|</?[a-z]+>"
)
_SPELLINGS = ((re.compile(r"\\[dt]frac"), r"\\frac"), (re.compile(r"\\(?:not\s*=|ne(?![a-zA-Z]))"), r"\\neq"))
_TOKEN = re.compile(r"[^\W_]+|[-+*/=<>^]")
_WORD = re.compile(r"[^\W_]+")


def normalise(text: str, drawings: bool = True) -> str:
    """The tokens of a problem, in lower case, a space between each two."""
    if not drawings:
        text = _DRAWING.sub(" ", text)
    text = _MARKUP.sub(" ", text)
    for pattern, plain in _SPELLINGS:
        text = pattern.sub(plain, text)
    return " ".join(_TOKEN.findall(text.casefold()))


@dataclass(frozen=True)
class Pair:
    """A training problem and the evaluation problem it repeats."""

    train: Problem
    evaluation: Problem
    against: str  # the evaluation task's name
    reason: str  # one of REASONS
    share: float  # of runs, for overlap and reworded; 1.0 else


@dataclass
class Report:
    """What was kept, and every pair that had a training problem dropped."""

    kept: list[Problem]
    pairs: list[Pair]
    against: dict[str, int]  # evaluation task → problems compared with
    missing: dict[str, str] = field(default_factory=dict)  # evaluation task → why it could not be compared with

    @property
    def dropped(self) -> list[Problem]:
        return list({pair.train.id: pair.train for pair in self.pairs}.values())

    def count(self, against: str, reason: str) -> tuple[int, int]:
        """(training problems dropped, evaluation problems they repeat) for one task and reason."""
        here = [p for p in self.pairs if p.against == against and p.reason == reason]
        return len({p.train.id for p in here}), len({p.evaluation.id for p in here})

    def summary(self) -> str:
        """How many were dropped and why, a line per task; "5 (4)" is 5 training problems that repeat 4 of the task's."""
        total = len(self.kept) + len(self.dropped)
        lines = [
            f"decontamination: dropped {len(self.dropped):,} of {total:,} training problems, kept {len(self.kept):,}"
        ]
        for task, size in self.against.items():
            counts = {reason: self.count(task, reason) for reason in REASONS}
            listed = [f"{reason} {rows} ({hit})" for reason, (rows, hit) in counts.items() if rows]
            lines.append(f"  {task} ({size:,} problems): {', '.join(listed) or 'none'}")
        return "\n".join(lines + [f"  {task}: not compared, {why}" for task, why in self.missing.items()])

    def line(self) -> str:
        """The same in one line."""
        line = "decontamination: no benchmark is on this machine"
        if self.against:
            total = len(self.kept) + len(self.dropped)
            line = f"decontamination: left out {len(self.dropped):,} of {total:,} problems, repeats of {', '.join(self.against)}"
        if self.missing:
            line += f"; not compared with {', '.join(self.missing)} (--decontaminate true fetches them)"
        return line

    def listing(self) -> str:
        """The pairs themselves, two lines each under a head, for a person to judge."""
        out = []
        verbs = dict(zip(REASONS, ("is", "begins like", "overlaps with", "rewords")))
        for p in sorted(self.pairs, key=lambda p: (REASONS.index(p.reason), p.against, p.evaluation.id)):
            score = f" {p.share:.2f}" if p.reason in ("overlap", "reworded") else ""
            out.append(f"{p.reason}{score}: {p.train.id} {verbs[p.reason]} {p.evaluation.id} ({p.against})")
            out.append(f"  train: {' '.join(p.train.question.split())[:160]}")
            out.append(f"  eval : {' '.join(p.evaluation.question.split())[:160]}")
        return "\n".join(out)


def evaluation_problems(
    data_dir: str | Path | None = None, names: Collection[str] | None = None, fetch: bool = True
) -> tuple[dict[str, list[Problem]], dict[str, str]]:
    """({task: problems} for every evaluation task that can be loaded, {task: why not} for the others). ``names``: of these only;
    without ``fetch`` only what is in the data folder or in the Hub's cache on this machine.

    Unions and subsets are left out, being covered by the whole; test splits of training tasks are in. Generated tasks keep
    training and test apart by construction.
    """
    loaded, missing = {}, {}
    for task in list(TASKS.values()):
        covered = task.parts or (task.keep and task.kind == "eval")
        if task.generate or covered or "test" not in task.splits or (names is not None and task.name not in names):
            continue
        try:
            with contextlib.nullcontext() if fetch else offline():
                loaded[task.name] = load_task(task.name, data_dir, split="test")
        except UserError as e:
            missing[task.name] = str(e)
            if fetch:
                _log.warning("decontamination cannot compare with %s: %s", task.name, e)
    return loaded, missing


def decontaminate(
    train: Sequence[Problem], against: Mapping[str, Sequence[Problem]], missing: Mapping[str, str] | None = None
) -> Report:
    """Drops what repeats an evaluation problem."""
    targets = [(name, p) for name, problems in against.items() for p in problems]
    ours, theirs = [_Text(p) for p in train], [_Text(p) for _, p in targets]
    matches: _Matches = {}
    for rule in (
        _equal("exact", [t.whole for t in ours], [t.whole for t in theirs]),
        _equal("opening", [t.opening for t in ours], [t.opening for t in theirs]),
        _overlaps(ours, theirs),
        _reworded(ours, theirs),
    ):
        matches = rule | matches  # the first rule that holds gives the reason
    pairs = [Pair(train[i], targets[j][1], targets[j][0], *how) for (i, j), how in sorted(matches.items())]
    bad = {i for i, _ in matches}
    clean = [p for i, p in enumerate(train) if i not in bad]
    return Report(clean, pairs, {name: len(problems) for name, problems in against.items()}, dict(missing or {}))


_Matches = dict[tuple[int, int], tuple[str, float]]  # (train, target) → reason, share
_Run = tuple[str, ...]


class _Text:
    """A problem as the rules compare it."""

    def __init__(self, p: Problem):
        self.whole, self.plain = normalise(p.question), normalise(p.question, drawings=False)
        self.words, self.gold = _WORD.findall(self.plain), normalise(p.answer)
        # shorter texts have none: they would match whatever begins as they do
        self.opening = self.plain[:OPENING] if len(self.plain) >= OPENING else ""

    def runs(self) -> set[tuple[str, ...]]:
        return {tuple(self.words[at : at + NGRAM]) for at in range(len(self.words) - NGRAM + 1)}

    def character_runs(self) -> set[tuple[str, str]]:
        """Each with the gold, so that only problems of one gold share any."""
        text = "".join(self.words) if len(self.words) >= SHORT else ""
        return {(self.gold, text[at : at + CHARACTERS]) for at in range(len(text) - CHARACTERS + 1)}


def _equal(reason: str, ours: Sequence[str], theirs: Sequence[str]) -> _Matches:
    places = defaultdict(list)
    for j, text in enumerate(theirs):
        places[text].append(j)
    return {(i, j): (reason, 1.0) for i, text in enumerate(ours) if text for j in places.get(text, ())}


def _overlaps(ours: Sequence[_Text], theirs: Sequence[_Text]) -> _Matches:
    """One pass over the training set against an index of the targets' runs of words."""
    target_runs = [text.runs() for text in theirs]
    known = set().union(*target_runs)
    shorts = defaultdict(list)  # first SHORT words → targets of SHORT..NGRAM−1 words
    for j, text in enumerate(theirs):
        if SHORT <= len(text.words) < NGRAM:
            shorts[tuple(text.words[:SHORT])].append(j)
    out: _Matches = {}
    our_runs = []  # those that a target has, and how many there are in all
    for i, text in enumerate(ours):
        words, runs = text.words, text.runs()
        our_runs.append((runs & known, len(runs)))
        for at in range(len(words) - SHORT + 1 if shorts else 0):
            for j in shorts.get(tuple(words[at : at + SHORT]), ()):
                if words[at : at + len(theirs[j].words)] == theirs[j].words:
                    out[i, j] = ("overlap", 1.0)
    phrases = {run for run, rows in Counter(run for runs, _ in our_runs for run in runs).items() if rows > PHRASE}
    telling = ((runs - phrases, size - len(runs & phrases)) for runs, size in our_runs)
    shares = _shares(telling, [runs - phrases for runs in target_runs])
    return out | {pair: ("overlap", share) for pair, share in shares if share >= SHARE}


def _reworded(ours: Sequence[_Text], theirs: Sequence[_Text]) -> _Matches:
    """By runs of characters, where the gold is one of the targets'."""
    golds = {text.gold for text in theirs}
    runs = (text.character_runs() if text.gold in golds else set() for text in ours)
    shares = _shares(((x, len(x)) for x in runs), [text.character_runs() for text in theirs])
    return {pair: ("reworded", share) for pair, share in shares if share >= REWORDED}


def _shares(
    ours: Iterable[tuple[Set[_Run], int]], theirs: Sequence[Set[_Run]]
) -> Iterator[tuple[tuple[int, int], float]]:
    """((train, target), share of the runs in the shorter of the two that are in the other) of all that have one in common.
    ``ours``: runs, and how many there are with those that no target has."""
    having = defaultdict(list)  # run → targets
    for j, runs in enumerate(theirs):
        for run in runs:
            having[run].append(j)
    for i, (runs, size) in enumerate(ours):
        for j, count in Counter(j for run in runs for j in having.get(run, ())).items():
            yield (i, j), count / max(1, min(size, len(theirs[j])))
