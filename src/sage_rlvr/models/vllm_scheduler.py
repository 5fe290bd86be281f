"""A scheduler of vLLM's engine: a step's log-probs travel as one string of bytes, not as arrays per request.

Who samples wants the drawn token's log-prob. vLLM's own way (0.25) is three arrays for every token of every request, and an
object made of them: a large part of what a step of a small model costs. An engine is given this class by the name
``vllm_logprobs.SCHEDULER``; ``vllm_logprobs.arrived`` is the other end. Requests for more log-probs are served as ever.
"""

from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from sage_rlvr.models.vllm_logprobs import LOGPROBS


class BriefScheduler(AsyncScheduler):
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        drawn = model_runner_output.logprobs
        if drawn is None or drawn.logprobs.shape[1] > 1:  # the first column is the drawn token's
            return super().update_from_output(scheduler_output, model_runner_output)
        model_runner_output.logprobs = None
        sent = super().update_from_output(scheduler_output, model_runner_output)
        row = model_runner_output.req_id_to_index
        for client in sent.values():
            if client.outputs:
                steps = drawn.logprobs[[row[output.request_id] for output in client.outputs], 0]
                # of an output's fields the one that carries a dict; the first speaks for all
                client.outputs[0].kv_transfer_params = {LOGPROBS: steps.astype(np.float32).tobytes()}
        return sent
