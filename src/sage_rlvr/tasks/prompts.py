"""Prompt formats: what the model is told, where its own words begin, and where they stop.

Training and evaluation build prompts here and nowhere else, so that they are the same (METHOD section 9). A format's prefix
is put behind the chat template's generation prompt (``chat_template``), because TRL always asks for one.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.names import near
from sage_rlvr.tasks.endless import why_endless
from sage_rlvr.tasks.registry import COLUMNS, PROMPT, Problem


@dataclass(frozen=True)
class PromptFormat:
    """One way to ask. ``user`` may name {question} and any field of a problem's meta (lists are joined by spaces)."""

    name: str
    system: str | None = None
    user: str = "{question}"
    prefix: str = ""  # the assistant's turn begins with it; generation goes on from there
    stop: tuple[str, ...] = ()  # generation ends with one of these, which belongs to the completion
    fallback: bool = False  # an answer outside <SOLUTION> and \boxed counts too
    demonstration: str = "{working}\n{answer}"  # what an SFT completion looks like, prefix included

    def told(self) -> dict[str, Any]:
        """What decides a sample; its name and what SFT shows do not."""
        return {name: value for name, value in asdict(self).items() if name not in ("name", "demonstration")}


FORMATS: dict[str, PromptFormat] = {}


def register_format(fmt: PromptFormat) -> PromptFormat:
    """Makes a format known by name to recipes and the command line."""
    if fmt.name in FORMATS:
        raise UserError(f"a prompt format named {fmt.name!r} is registered already; choose another name.")
    FORMATS[fmt.name] = fmt
    return fmt


def get_format(name: str | PromptFormat) -> PromptFormat:
    if isinstance(name, PromptFormat):
        return name
    if name not in FORMATS:
        raise UserError(f"there is no prompt format {name!r}: {near(name, FORMATS)}.")
    return FORMATS[name]


PAPER = register_format(
    PromptFormat(
        name="paper",
        system=(
            "You are given a problem. Think about the problem and provide your working out. Place it between "
            "<start_working_out> and <end_working_out>. Then, provide your solution between <SOLUTION> and </SOLUTION>."
        ),
        prefix="<start_working_out>",
        stop=("</SOLUTION>",),
        demonstration="<start_working_out>{working}<end_working_out><SOLUTION>{answer}</SOLUTION>",
    )
)
register_format(
    PromptFormat(
        name="boxed",
        system="Please reason step by step, and put your final answer within \\boxed{}.",
        demonstration="{working}\n\n\\boxed{{{answer}}}",
    )
)
register_format(PromptFormat(name="plain", fallback=True))
# a user's own prompts as TRL takes them: text is continued, messages go through the chat template
AS_IS = register_format(PromptFormat(name="as_is", fallback=True))
# countdown for a model of characters
register_format(PromptFormat(name="symbols", user="{numbers}={target}:", fallback=True))

# A base model has no template: system prompt and answers end with EOS, the question stands by itself.
_BASE_LAYOUT = (
    "{% for message in messages %}"
    "{{ message['content'] }}"
    "{% if message['role'] in ('system', 'assistant') %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)


def _opening(fmt: PromptFormat) -> str:
    return "{% if add_generation_prompt %}{{ " + repr(fmt.prefix) + " }}{% endif %}" if fmt.prefix else ""


PAPER_CHAT_TEMPLATE = _BASE_LAYOUT + _opening(PAPER)


def chat_template(tokenizer: Any, fmt: str | PromptFormat = "paper") -> str:
    """The tokenizer's own template, or the paper's for a base model without one, and the format's prefix behind it.

    Set it once, ``tokenizer.chat_template = chat_template(tokenizer, "paper")``, and TRL, vLLM and transformers all begin
    where the format says. Calling it again changes nothing. A template that cannot take the format's turns is refused here,
    before anybody renders with it.
    """
    fmt = get_format(fmt)
    template = _template(tokenizer, fmt)
    _apply(tokenizer, template, _messages(fmt, "1 + 1 = ?"), fmt)
    return template


def _template(tokenizer: Any, fmt: PromptFormat) -> str:
    template = getattr(tokenizer, "chat_template", None)
    if not template:  # what it renders is tokenised with nothing added: a BOS that plain text gets has to be in it
        template = ("{{ bos_token }}" if _own_bos(tokenizer) else "") + _BASE_LAYOUT
    if isinstance(template, dict):  # several named templates
        template = template.get("default") or next(iter(template.values()))
    for known in FORMATS.values():
        template = template.removesuffix(_opening(known))
    return template + _opening(fmt)


_ENDS: set[str] = set()  # templates that came to their end once


def _apply(tokenizer: Any, template: str, messages: list[dict[str, str]], fmt: PromptFormat) -> str:
    def text(turns: list[dict[str, str]]) -> str:
        return tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False, add_generation_prompt=True)

    fix = "fix the chat template in the model's folder (chat_template.jinja or tokenizer_config.json)"
    why = None if template in _ENDS else why_endless(lambda: text(messages))
    if why is None:
        _ENDS.add(template)
        try:
            return text(messages)
        except Exception as e:  # a template is a program of the model's: it may raise anything
            why = " ".join(str(e).split()).split(". ")[0].rstrip(".") or type(e).__name__
        with contextlib.suppress(Exception):
            text(messages[-1:])
            fix = "use --prompt_format plain, which has no system turn"
    whose = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
    raise UserError(f"the chat template of {whose} cannot render prompt format {fmt.name!r} ({why}): {fix}.")


def to_messages(problem: Problem, fmt: str | PromptFormat = "paper") -> list[dict[str, str]]:
    """The conversational prompt: system, where the format has one, and user. The prefix is the template's to add. A user's own
    conversation is left as it is, the format's system turn in front where it has none."""
    fmt, own = get_format(fmt), problem.meta.get(PROMPT)
    if isinstance(own, list):
        if fmt.user != "{question}":
            raise UserError(
                f"prompt format {fmt.name!r} words the question itself, and {problem.id} is a list of messages."
            )
        turns = [{"role": m["role"], "content": m["content"]} for m in own]
        return turns if turns[0]["role"] == "system" else [*_messages(fmt, "")[:-1], *turns]
    fields = {**problem.meta, **problem.meta.get(COLUMNS, {})}
    meta = {k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in fields.items()}
    try:
        user = fmt.user.format(**{**meta, "question": problem.question})
    except (KeyError, IndexError) as e:
        known = ", ".join(["question", *meta])
        raise UserError(
            f"prompt format {fmt.name!r} names {e}, which {problem.id} does not have (it has {known})."
        ) from e
    return _messages(fmt, user)


def continued(problem: Problem, fmt: PromptFormat) -> str | None:
    """A user's prompt that the model goes on from as it is, with no chat template; None: it is a conversation."""
    own = problem.meta.get(PROMPT)
    return own if fmt.name == AS_IS.name and isinstance(own, str) else None


def _messages(fmt: PromptFormat, user: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": fmt.system}] if fmt.system else []
    return [*system, {"role": "user", "content": user}]


def render(problem: Problem, fmt: str | PromptFormat = "paper", tokenizer: Any = None) -> str:
    """The text as the model will see it; without a tokenizer, its parts with empty lines between them."""
    fmt = get_format(fmt)
    if (text := continued(problem, fmt)) is not None:
        return _own_bos(tokenizer) + text
    messages = to_messages(problem, fmt)
    if tokenizer is None:
        return "\n\n".join([m["content"] for m in messages] + ([fmt.prefix] if fmt.prefix else []))
    return _apply(tokenizer, _template(tokenizer, fmt), messages, fmt)


def rows(
    problems: Sequence[Problem], fmt: str | PromptFormat = "paper", tokenizer: Any = None, conversational: bool = True
) -> list[dict[str, Any]]:
    """Rows for TRL: prompt, answer, task, problem; of a user's own data every column, and these where it has none of the name.

    Conversational prompts rely on ``chat_template`` having been set on the tokenizer; strings are rendered here, without the
    BOS that the tokenizer will put in front of them by itself.
    """
    own_bos, fmt, out = _own_bos(tokenizer), get_format(fmt), []
    for p in problems:
        prompt: Any = continued(p, fmt)
        if prompt is None:
            prompt = to_messages(p, fmt) if conversational else render(p, fmt, tokenizer).removeprefix(own_bos)
        own = p.meta.get(COLUMNS)
        gold = {"answer": p.answer} if own is None or p.answer else {}
        out.append({"task": p.task, "problem": p.id, **(own or {}), **gold, "prompt": prompt})
    return out


def _own_bos(tokenizer: Any) -> str:
    """The BOS that plain tokenisation adds, or ""."""
    bos = getattr(tokenizer, "bos_token", None)
    ids = tokenizer("a")["input_ids"] if bos else []
    return bos if bos and ids and ids[0] == tokenizer.bos_token_id else ""


def sft_rows(problems: Sequence[Problem], fmt: str | PromptFormat = "paper") -> list[dict[str, Any]]:
    """Prompt/completion rows for SFT, from problems that carry a worked solution."""
    fmt = get_format(fmt)
    out = []
    for p in problems:
        if "generated_solution" not in p.meta:
            raise UserError(
                f"{p.id} ({p.task}) has no worked solution to learn from: use an SFT task, openmathreasoning-mini."
            )
        working = p.meta["generated_solution"].replace("<think>", "").replace("</think>", "").strip()
        text = fmt.demonstration.format(working=working, answer=p.answer)
        out.append(
            {"prompt": to_messages(p, fmt), "completion": [{"role": "assistant", "content": text}], "problem": p.id}
        )
    return out
