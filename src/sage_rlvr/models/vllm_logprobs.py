"""The other end of models/vllm_scheduler.py: a step's log-probs, which come as one string of bytes. Needs no vLLM."""

from typing import Any

import numpy as np

from sage_rlvr.errors import Failed

SCHEDULER = "sage_rlvr.models.vllm_scheduler.BriefScheduler"  # scheduler_cls of an engine
LOGPROBS = "log-probs"  # the name under which a step's come


def arrived(step: Any) -> list[tuple[str, float]]:
    """(name of the request, log-prob) for each token of a step's outputs."""
    said = step.outputs[0].kv_transfer_params if step.outputs else None
    if not said or LOGPROBS not in said:
        return []
    values = np.frombuffer(said[LOGPROBS], np.float32).tolist()
    return [(name_of(o.request_id), value) for o, value in zip(step.outputs, values) if o.new_token_ids]


def name_of(request_id: str) -> str:
    """vLLM adds a suffix of its own to a request's name."""
    return request_id.split("-")[0]


def miscounted(version: str, logprobs: int, tokens: int, way_out: str) -> Failed:
    return Failed(
        f"vLLM {version} gave {logprobs} log-probs for {tokens} tokens; the tested versions (0.25, 0.29) give one per token. "
        f"Install one of those, or {way_out}."
    )
