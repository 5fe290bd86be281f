"""Floor 2. Problems, prompts, scorers, decontamination: what is asked, how, and what counts as right."""

from sage_rlvr.tasks.countdown import demonstrations, generate_countdown, generate_ltr, solutions
from sage_rlvr.tasks.decontaminate import decontaminate, evaluation_problems
from sage_rlvr.tasks.loading import load_task, read_task
from sage_rlvr.tasks.prompts import (
    FORMATS,
    PAPER_CHAT_TEMPLATE,
    PromptFormat,
    chat_template,
    get_format,
    register_format,
    render,
    rows,
    sft_rows,
    to_messages,
)
from sage_rlvr.tasks.registry import TASKS, Problem, Source, Task, get_task, register_task
from sage_rlvr.tasks.scorers import distinct_solution, keep_verifiable, make_scorer, register_scorer, task_reward

__all__ = [
    "FORMATS", "PAPER_CHAT_TEMPLATE", "TASKS", "Problem", "PromptFormat", "Source", "Task", "chat_template",
    "decontaminate", "demonstrations", "distinct_solution", "evaluation_problems", "generate_countdown", "generate_ltr",
    "get_format", "get_task", "keep_verifiable", "load_task", "make_scorer", "read_task", "register_format",
    "register_scorer", "register_task", "render", "rows", "sft_rows", "solutions", "task_reward", "to_messages",
]  # fmt: skip
