"""verl's reward function for our tasks, ``reward.custom_reward_function.path``: what the trainer on TRL would pay, completion by
completion. verl runs it in processes of its own."""

import json
from functools import cache
from typing import Any

from sage_rlvr import extensions
from sage_rlvr.tasks.scorers import TaskReward, task_reward

ANSWER = "pred"  # +sage.answer: which solution a completion gives


@cache
def _reward(task: str, prompt_format: str) -> TaskReward:
    extensions.load()
    return task_reward(task, prompt_format)


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], **_: Any
) -> dict[str, Any]:
    """1 or 0. A verdict that could not be had (a gold that ran out of time) is 0: verl has no completion without a reward."""
    reward, row = _reward(data_source, extra_info["prompt_format"]), json.loads(extra_info["row"])
    columns = {name: [value] for name, value in row.items() if name not in ("prompt", "answer")}
    score = reward([solution_str], [ground_truth], prompts=[row["prompt"]], **columns)[0]
    return {"score": score or 0.0, ANSWER: reward.key(solution_str) or ""}
