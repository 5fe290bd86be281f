"""The scheduler of the engines that evaluate. vLLM imports it in the engine's process, which ends with the one that started it:
vLLM's own outlives an evaluation that was killed, and keeps its GPU."""

from typing import Any

from sage_rlvr.evaluate.vllm_backend import end_with_parent
from sage_rlvr.models.vllm_scheduler import BriefScheduler


class EvaluationScheduler(BriefScheduler):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        end_with_parent()
