"""The scheduler of the engines that evaluate: a step's log-probs travel as one string of bytes, not as arrays a request.

We keep one sum a sample. vLLM's own way (0.25) is three arrays for every token of every request, packed, sent, unpacked, and
the token decoded once more for a text nobody reads: a quarter of the token rate of a small model. vLLM imports this module in
the engine's process, by the name ``SCHEDULER``; ``Engine.receive`` is the other end. And that process ends with the one that
started it: vLLM's own outlives an evaluation that was killed, and keeps its GPU.
"""

from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from sage_rlvr.evaluate.vllm_backend import LOGPROBS, end_with_parent


class BriefScheduler(AsyncScheduler):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        end_with_parent()

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        drawn, model_runner_output.logprobs = model_runner_output.logprobs, None
        sent = super().update_from_output(scheduler_output, model_runner_output)
        if drawn is None:
            return sent
        row = model_runner_output.req_id_to_index
        for client in sent.values():
            if client.outputs:
                steps = drawn.logprobs[[row[output.request_id] for output in client.outputs], 0]
                # of an output's fields the one that carries a dict; the first speaks for all
                client.outputs[0].kv_transfer_params = {LOGPROBS: steps.astype(np.float32).tobytes()}
        return sent
