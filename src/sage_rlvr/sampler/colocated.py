"""vLLM's engine inside training, as TRL starts it: its port, its memory, and what it hands on of each token."""

import os
import socket
from collections import defaultdict
from functools import partial
from typing import Any

from trl.generation import vllm_generation

from sage_rlvr.models.vllm_logprobs import SCHEDULER, arrived, miscounted


def own_port(args: Any) -> None:
    """A colocated engine listens on a port even when it is alone. TRL uses 29500 where that is free, and several runs that start
    together on one machine would all see it free; here the system gives each its own."""
    if args.use_vllm and args.vllm_mode == "colocate" and args.world_size == 1 and "MASTER_PORT" not in os.environ:
        with socket.socket() as s:
            s.bind(("localhost", 0))
            os.environ["MASTER_PORT"] = str(s.getsockname()[1])


def engine_for(args: Any) -> Any:
    """vLLM's LLM as TRL calls it, with our scheduler, and a KV cache of the size that was asked for; None without vLLM, of which
    TRL speaks itself."""
    if (engine := getattr(vllm_generation, "LLM", None)) is None:
        return None
    more: dict[str, Any] = {"scheduler_cls": SCHEDULER}
    if args.vllm_kv_cache_gib is not None:
        more["kv_cache_memory_bytes"] = int(args.vllm_kv_cache_gib * 2**30)
    return partial(engine, **more)


class BriefEngine:
    """An engine whose tokens' log-probs are put together here, once per completion: vLLM's own way, per token and request, takes
    longer than a small model's step."""

    def __init__(self, llm: Any):
        import vllm

        self.vllm, self.logprobs = vllm, defaultdict[str, list[float]](list)  # by the request's name
        core = llm.llm_engine.engine_core
        self.take, core.get_output = core.get_output, self.receive
        self.generate, llm.generate = llm.generate, self.complete

    def receive(self) -> Any:
        step = self.take()
        for name, logprob in arrived(step):
            self.logprobs[name].append(logprob)
        return step

    def complete(self, *args: Any, **kwargs: Any) -> list[Any]:
        """What ``LLM.generate`` answers."""
        self.logprobs.clear()
        done = self.generate(*args, **kwargs)
        for request in done:
            for output in request.outputs:
                if output.logprobs == []:  # None: not asked for. Filled: more than the drawn tokens' were
                    name = request.request_id if len(request.outputs) == 1 else f"{output.index}_{request.request_id}"
                    output.logprobs = self._as_vllm(output.token_ids, self.logprobs[name])
        return done

    def _as_vllm(self, ids: list[int], logprobs: list[float]) -> list[dict[int, Any]]:
        if len(logprobs) < len(ids):  # more: drawn ahead, after a stop string
            raise miscounted(self.vllm.__version__, len(logprobs), len(ids), "set use_vllm=false")
        Logprob = self.vllm.logprobs.Logprob
        return [{i: Logprob(x, rank=1)} for i, x in zip(ids, logprobs)]
