"""The verifier as a reward function for TRL."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from sage_rlvr.verify.extract import judged_text
from sage_rlvr.verify.verifier import Verifier


def verifiable_reward(
    completions: Sequence[Any],
    answer: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    truncated: Sequence[bool] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """1.0 for a right answer, 0.0 for any other, None (TRL: this reward does not apply) where the gold cannot be verified.

    ``completions`` are strings or conversations (the last assistant message counts); ``answer`` is the dataset's column of
    golds. ``prompts``, as TRL hands them, tell an answer from a repetition of the question. ``truncated``, from SAGETrainer, is
    True where the length limit ended a completion: then only an answer closed before it counts. One verifier serves the whole
    process, and starts when it is first needed. What was extracted and why it scored as it did go to TRL's completions table,
    and the shares that are about the verifier rather than the model to its metrics.
    """
    texts = judged_texts([completion_text(completion) for completion in completions], truncated)
    verdicts = _shared().judge(texts, answer, questions_of(prompts))
    if log_extra is not None:
        log_extra("extracted_answer", [verdict.answer or "" for verdict in verdicts])
        log_extra("verdict", [verdict.reason for verdict in verdicts])
    if log_metric is not None and verdicts:
        unverifiable = sum(verdict.score is None for verdict in verdicts)
        killed = sum(verdict.reason in ("timeout", "worker died", "judge raised") for verdict in verdicts)
        log_metric("verifier/unverifiable_gold", unverifiable / len(verdicts))
        log_metric("verifier/killed", killed / len(verdicts))
        log_metric("verifier/no_answer", sum(verdict.reason == "no answer" for verdict in verdicts) / len(verdicts))
    return [verdict.score for verdict in verdicts]


def judged_texts(texts: Sequence[str], truncated: Sequence[bool] | None) -> list[str]:
    return [judged_text(text, cut) for text, cut in zip(texts, truncated or [False] * len(texts), strict=True)]


def questions_of(prompts: Sequence[Any] | None) -> list[str] | None:
    """What each prompt asks: a string, or the user's last message."""
    return None if prompts is None else [completion_text(prompt, "user") for prompt in prompts]


def completion_text(completion: Any, role: str = "assistant") -> str:
    """The text of a completion (or prompt): a string, or the last message of that role; of a message in parts, its text parts."""
    if isinstance(completion, str):
        return completion
    messages = [completion] if isinstance(completion, dict) else completion
    contents = [message.get("content") or "" for message in messages if message.get("role", role) == role]
    content = contents[-1] if contents else ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if part.get("type") == "text")


@cache  # no lock that a fork could copy while it is held; of two made in a race, one is used once and collected
def _shared() -> Verifier:
    return Verifier()
