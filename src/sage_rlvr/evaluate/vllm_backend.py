"""Sampling with vLLM's offline engine: a seeded request a sample, as many in flight as the engine can use and no more.

vLLM (0.25 on GPUs, its CPU build 0.29 in the tests) is imported when an engine starts. One engine is driven from here. Several,
on several GPUs or sharing one: a process each, which draw requests from one queue, so that none waits for another.
"""

import multiprocessing as mp
import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from sage_rlvr.errors import Failed, UserError
from sage_rlvr.evaluate.sampling import Generation, Request, Sampling
from sage_rlvr.models.vllm_logprobs import arrived, miscounted, name_of

IN_FLIGHT = 2  # requests an engine holds, of those it can run at once: it never starves, and leaves the others theirs
HANDED = 256  # generations given back at a time
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # max_lora_rank that vLLM has kernels for
ENDS = {"stop": "stop", "length": "length"}  # finish_reason → ours
SCHEDULER = "sage_rlvr.evaluate.vllm_scheduler.EvaluationScheduler"
CACHE = "kv_cache_memory_bytes"  # of vllm.LLM: the KV cache's size, in place of what is free
# Steps of as many tokens are replayed as CUDA graphs. vLLM's own sizes end at 512 and its batches do not: on a large GPU it runs
# 1,024 sequences, and launches each of their kernels by hand. Fewer sizes, so that all are captured in less time.
GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, *range(192, 1025, 64), 1152, 1280, 1536, 2048)


@dataclass(frozen=True)
class EngineSettings:
    """What an engine process needs, picklable."""

    model: str
    how: Sampling
    eos: tuple[int, ...]
    context: int  # longest prompt + max_tokens
    adapter: str | None = None
    adapter_rank: int = 0
    dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    trust_remote_code: bool = False
    more: tuple[tuple[str, Any], ...] = ()  # further arguments of vllm.LLM


class Engine:
    """One vllm.LLM, fed and emptied step by step."""

    def __init__(self, settings: EngineSettings):
        import vllm

        self.settings, self.vllm = settings, vllm
        try:
            self.llm = vllm.LLM(**self._engine_arguments())
        except (ValueError, RuntimeError, OSError) as e:
            reason = " ".join(str(e).split())[:300].rstrip(". ")
            raise UserError(
                f"vLLM could not start {settings.model} ({reason}): its log above says more; lower "
                f"--gpu_memory_utilization if the GPU is shared, or use --backend transformers."
            ) from e
        self.adapters = count(1)
        self.lora: Any = None
        if settings.adapter:
            self.wear(settings.adapter)
        self.room = IN_FLIGHT * self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
        self.peak = 0  # most requests ever in flight
        self.numbers = count()  # names of requests, never used again: a stopped run's last tokens may still come
        self.flying: dict[str, Request] = {}
        self.sums: dict[str, tuple[float, int]] = {}  # log-prob so far of each that flies, and of how many tokens
        core = self.llm.llm_engine.engine_core
        self.take, core.get_output = core.get_output, self.receive

    def wear(self, adapter: str) -> None:
        """Requests from here on have this adapter. Its number and name are new, so that no prefix of another's is reused."""
        from vllm.lora.request import LoRARequest

        number = next(self.adapters)
        self.lora = LoRARequest(f"adapter-{number}", number, adapter)

    def _engine_arguments(self) -> dict[str, Any]:
        s = self.settings
        arguments: dict[str, Any] = {
            "model": s.model,
            "dtype": s.dtype,
            "max_model_len": s.context,
            "gpu_memory_utilization": s.gpu_memory_utilization,
            "trust_remote_code": s.trust_remote_code,
            "enable_prefix_caching": True,  # all samples of a problem share its prompt
            "generation_config": "vllm",  # not the model's own: its penalties and top_k are not ours
            # After temperature and truncation: Sampling says why. vLLM's other choice, raw_logprobs, is before both.
            "logprobs_mode": "processed_logprobs",
            "scheduler_cls": SCHEDULER,
            "async_scheduling": True,  # vLLM's own choice where it can be had, and what that scheduler is made for
            "compilation_config": {
                "cudagraph_capture_sizes": list(GRAPHS),
                "cudagraph_specialize_lora": False,  # with an adapter every request has it: no second set without
            },
            "seed": 0,
        }
        if s.adapter:
            rank = next((r for r in RANKS if r >= s.adapter_rank), None)
            if rank is None:
                raise UserError(
                    f"adapter {s.adapter} has rank {s.adapter_rank}, and vLLM serves up to {RANKS[-1]}: merge it first "
                    f"(sage-rlvr merge)."
                )
            arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
        return arguments | dict(s.more)

    def parameters(self, request: Request) -> Any:
        """One request's SamplingParams."""
        from vllm.sampling_params import RequestOutputKind

        how = self.settings.how
        return self.vllm.SamplingParams(
            n=1,
            temperature=how.temperature,
            top_p=how.top_p,
            top_k=how.top_k or -1,
            min_p=how.min_p,
            seed=request.key,
            max_tokens=how.max_tokens,
            stop=list(how.stop),
            include_stop_str_in_output=True,
            stop_token_ids=list(self.settings.eos),
            logprobs=0,  # the drawn token's alone
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def receive(self) -> Any:
        """A step's outputs, their log-probs added up, before vLLM looks at them."""
        step = self.take()
        for number, logprob in arrived(step):
            if number in self.flying:  # else drawn ahead, after its stop string
                total, tokens = self.sums[number]
                self.sums[number] = total + logprob, tokens + 1
        return step

    def run(self, pull: Callable[[bool], Request | None]) -> Iterator[list[Generation]]:
        """``pull(wait)`` gives the next request, None where there is none now, StopIteration where there will be none."""
        engine, more, flying = self.llm.llm_engine, True, self.flying
        done: list[Generation] = []
        try:
            while more or flying:
                while more and len(flying) < self.room:
                    try:
                        request = pull(not flying)
                    except StopIteration:
                        more = False
                        break
                    if request is None:
                        break
                    prompt = {"prompt_token_ids": list(request.prompt)}
                    number = str(next(self.numbers))
                    flying[number], self.sums[number] = request, (0.0, 0)
                    engine.add_request(number, prompt, self.parameters(request), lora_request=self.lora)
                self.peak = max(self.peak, len(flying))
                if flying:
                    finished = [output for output in engine.step() if output.finished]
                    done += [self._generation(o) for o in finished]
                if len(done) >= HANDED or (done and not flying):
                    yield done
                    done = []
            if done:
                yield done
        finally:
            if flying:  # the run stopped early: the engine is to be used again, or to end cleanly
                engine.abort_request(list(flying))
                flying.clear()
                self.sums.clear()

    def close(self) -> None:
        """vLLM's own process ends now. Left to this one's exit it may never: Python waits there for its children first."""
        core = self.llm.llm_engine.engine_core
        core.get_output = self.take  # no circle that keeps the engine alive
        core.shutdown()

    def _generation(self, ended: Any) -> Generation:
        number, output = name_of(ended.request_id), ended.outputs[0]
        request, (logprob, tokens) = self.flying.pop(number), self.sums.pop(number)
        if tokens != len(output.token_ids):  # they come by a way that is not vLLM's own (models/vllm_scheduler.py)
            raise miscounted(self.vllm.__version__, tokens, len(output.token_ids), "use --backend transformers")
        finish = ENDS.get(output.finish_reason)
        if finish is None:
            raise RuntimeError(
                f"vLLM ended {request.task}/{request.problem} with finish_reason={output.finish_reason!r}."
            )
        return Generation(request, list(output.token_ids), output.text, finish, logprob)


class VllmBackend:
    """An engine for each of ``gpus``, which may name one several times. A sample depends on its own seed; batches are the
    engine's affair."""

    batch_size: int | None = None

    def __init__(self, settings: EngineSettings, gpus: list[str]):
        self.settings, self.gpus = settings, gpus
        self.engine = Engine(settings) if len(gpus) == 1 else None
        self.workers = None if self.engine else Workers(settings, gpus)

    def takes(self, settings: EngineSettings, gpus: list[str]) -> bool:
        """Whether it can sample what another backend would be started for: a single engine, of which an adapter alone differs
        then wears that one."""
        known, asked = (replace(s, adapter=None) for s in (self.settings, settings))
        if self.engine is None or gpus != self.gpus or known != asked or not settings.adapter:
            return False
        self.engine.wear(settings.adapter)
        self.settings = settings
        return True

    def generate(self, requests: Iterator[Request]) -> Iterator[list[Generation]]:
        if self.engine:
            yield from self.engine.run(lambda wait: next(requests))
        elif self.workers:
            yield from self.workers.run(requests)

    def close(self) -> None:
        if self.workers:
            self.workers.close()
        if self.engine:
            self.engine.close()
            self.engine = None


# ---- one process an engine ---------------------------------------------------------------------------------------


class Workers:
    """Engine processes around two bounded queues."""

    def __init__(self, settings: EngineSettings, gpus: list[str]):
        context = mp.get_context("spawn")
        self.inbox: Any = context.Queue(maxsize=2 * len(gpus))  # lists of HANDED requests; None ends a worker
        self.outbox: Any = context.Queue(maxsize=4 * len(gpus))
        self.turns = {gpu: context.Lock() for gpu in gpus}  # held here: a semaphore goes with its last name
        self.processes = [
            context.Process(
                target=_work, args=(settings, gpu, self.turns[gpu], self.inbox, self.outbox), name=f"vllm-gpu{gpu}"
            )
            for gpu in gpus
        ]  # not daemons: an engine has child processes of its own
        for process in self.processes:
            process.start()

    def run(self, requests: Iterator[Request]) -> Iterator[list[Generation]]:
        self.stopping = threading.Event()
        feeder = threading.Thread(target=self._feed, args=(requests,), daemon=True)
        feeder.start()
        ended = 0
        try:
            while ended < len(self.processes):
                kind, content = self._next()
                if kind == "error":
                    raise content
                if kind == "end":
                    ended += 1
                else:
                    yield content
        finally:
            self.stopping.set()
            feeder.join(timeout=5)

    def _feed(self, requests: Iterator[Request]) -> None:
        chunks = iter(lambda: list(islice(requests, HANDED)), [])
        for item in chain(chunks, [None] * len(self.processes)):
            while not _offered(self.inbox, item):
                if self.stopping.is_set():
                    return

    def _next(self) -> tuple[str, Any]:
        while True:
            try:
                return self.outbox.get(timeout=1.0)
            except queue.Empty:
                for process in self.processes:
                    if process.exitcode not in (None, 0):
                        raise Failed(
                            f"{process.name} died with exit code {process.exitcode}; what was sampled before stays, run the "
                            f"same command again to go on."
                        ) from None

    def close(self) -> None:
        for process in self.processes:
            process.join(timeout=0.1)
            if process.is_alive():
                process.terminate()
        for process in self.processes:
            process.join(timeout=20)


def _offered(box: Any, item: Any) -> bool:
    try:
        box.put(item, timeout=0.5)
    except queue.Full:
        return False
    return True


def _work(settings: EngineSettings, gpu: str, turn: Any, inbox: Any, outbox: Any) -> None:
    """In the worker: requests in, generations out, until told to end or the parent is gone. Engines that share a GPU start in
    turn: vLLM takes what another allocates meanwhile for its own. With a cache of a given size it measures nothing, and they
    start side by side."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before CUDA is first used in this process
    end_with_parent()
    waiting: list[Request] = []

    def hand(*item: Any) -> None:
        outbox.put(item)

    def pull(wait: bool) -> Request | None:
        if not waiting:
            try:
                chunk = inbox.get(block=wait)
            except queue.Empty:
                return None
            if chunk is None:
                raise StopIteration
            waiting.extend(chunk)
        return waiting.pop(0)

    try:
        import vllm  # noqa: F401  # all at once, and before its turn: it takes as long as a small engine's start

        with nullcontext() if CACHE in dict(settings.more) else turn:
            engine = Engine(settings)
        with closing(engine):
            for generations in engine.run(pull):
                hand("done", generations)
        hand("end", gpu)
    except UserError as e:
        hand("error", e)
    except Exception as e:
        traceback.print_exc()
        hand("error", Failed(f"the engine on GPU {gpu} failed ({type(e).__name__}: {e})."))


def end_with_parent() -> None:
    """This process ends when the one that started it does, killed or not: nobody is left to take the samples."""

    def wait(parent: Any) -> None:
        parent.join()
        os._exit(1)

    if (parent := mp.parent_process()) is not None:  # None: the evaluation's own process, with the engine in it
        threading.Thread(target=wait, args=(parent,), daemon=True).start()


# ---- before anything starts --------------------------------------------------------------------------------------


def visible_gpus() -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES, without touching the GPUs from this process."""
    import torch

    count = torch.cuda.device_count()
    named = [g.strip() for g in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if g.strip()]
    return named[:count] if named else [str(i) for i in range(count)]


def check_files(model: str, adapter: str | None, trust_remote_code: bool) -> None:
    """A model folder without weights, and an adapter for another model, in our own words before vLLM's."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from sage_rlvr.models import loading

    if Path(model).is_dir():
        loading.check_folder(Path(model), trust_remote_code)
    if adapter and Path(adapter).is_dir() and Path(model).is_dir():
        config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            shape_only = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        loading.check_shapes(shape_only, model, Path(adapter))
