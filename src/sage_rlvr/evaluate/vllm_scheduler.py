"""The scheduler of the engines that evaluate: a request's log-prob so far goes out with each token, as one number.

We keep one sum a sample. vLLM's own way (0.25) is three arrays for every token of every request, packed, sent, unpacked, and
the token decoded once more for a text nobody reads: on small models that is a quarter of the token rate. vLLM imports this
module in the engine's process, by the name ``SCHEDULER``.
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from sage_rlvr.evaluate.vllm_backend import LOGPROB


class SummingScheduler(AsyncScheduler):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.sums: dict[str, float] = {}

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        drawn = model_runner_output.logprobs
        if drawn is None:
            return super().update_from_output(scheduler_output, model_runner_output)
        if drawn.cu_num_generated_tokens is not None:
            raise RuntimeError("speculative decoding draws several tokens a step: one sum a step does not cover it.")
        model_runner_output.logprobs = None
        steps, row = drawn.logprobs[:, 0].tolist(), model_runner_output.req_id_to_index
        sent = super().update_from_output(scheduler_output, model_runner_output)
        for client in sent.values():
            for output in client.outputs:
                if output.new_token_ids:
                    name = output.request_id
                    total = self.sums.pop(name, 0.0) + steps[row[name]]
                    output.kv_transfer_params = {LOGPROB: total}  # the one field of an output that carries a dict
                    if not output.finished:
                        self.sums[name] = total
        return sent

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Also where the front end found a stop string."""
        ended = super().finish_requests(*args, **kwargs)
        self.sums = {name: total for name, total in self.sums.items() if name in self.requests}
        return ended
