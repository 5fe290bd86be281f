"""Several engines, a process each, on several GPUs or sharing one: the samples of one, a sentence when one dies, none that stays
behind."""

import multiprocessing as mp
import os
import queue
import signal
import threading
import time
from dataclasses import replace

import psutil
import pytest

from sage_rlvr.errors import Failed
from sage_rlvr.evaluate import vllm_backend
from sage_rlvr.evaluate.backends import make_backend
from sage_rlvr.evaluate.sampling import Sampling
from sage_rlvr.evaluate.vllm_backend import EngineSettings, VllmBackend
from sage_rlvr.models import load_tokenizer

from .small import requests, run

HOW = Sampling(temperature=1.0, min_p=0.0, max_tokens=12)


EAGER = (("enforce_eager", True),)


@pytest.fixture
def settings(base):
    more = (("kv_cache_memory_bytes", 2**27), *EAGER)
    return EngineSettings(model=base, how=HOW, eos=(1,), context=44, dtype="float32", more=more)


@pytest.fixture
def closed():
    """Backends put in here are closed, whatever happens."""
    backends = []
    yield backends
    for backend in backends:
        backend.close()


def test_two_engines_on_one_gpu_give_the_samples_of_one(settings, base, closed, monkeypatch):
    made = []
    monkeypatch.setattr(
        vllm_backend,
        "VllmBackend",
        lambda own, gpus: made.append(own) or VllmBackend(replace(own, more=own.more + EAGER), gpus),
    )
    memory = {"gpu_memory_utilization": 0.8, "kv_cache_gib": 0.125, "engines_per_gpu": 2}
    several = make_backend("vllm", base, None, load_tokenizer(base), HOW, 32, dtype="float32", **memory)
    closed.append(several)
    assert len(several.workers.processes) == 2
    assert made[0].gpu_memory_utilization == 0.4
    one = VllmBackend(settings, ["0"])
    monkeypatch.setattr(vllm_backend, "HANDED", 5)
    rows = requests(base, 40)
    got, wanted = run(several, rows), run(one, rows)
    assert set(got) == set(rows)
    assert {r: g.token_ids for r, g in got.items()} == {r: g.token_ids for r, g in wanted.items()}
    for row in rows:
        assert got[row].logprob == pytest.approx(wanted[row].logprob, abs=1e-3)
    (own,) = (child for child in mp.active_children() if child.name.startswith("EngineCore"))
    one.close()
    own.join(600)  # on a busy machine vLLM loses patience and kills it, without waiting for that
    assert not own.is_alive(), "at the end of this process it would be waited for, for ever"


def _engines(worker):
    """Its engine, once all of its processes bear vLLM's name."""
    found = worker.children(recursive=True)
    return found if {engine.name().split(":")[0] for engine in found} == {"VLLM"} else []


def test_an_engine_that_is_killed_is_named_and_none_stays_behind(settings, base, closed):
    several = VllmBackend(settings, ["0", "1"])
    closed.append(several)
    sampled = several.generate(iter(requests(base, 40_000)))
    next(sampled)
    workers = [psutil.Process(process.pid) for process in several.workers.processes]
    give_up = time.monotonic() + 1200  # the first sample may come while the other engine is still starting
    while not all(up := [_engines(worker) for worker in workers]) and time.monotonic() < give_up:
        time.sleep(0.1)
    engines = up[0] + up[1]
    assert all(up), "both have an engine, a process of vLLM's own"
    os.kill(workers[1].pid, signal.SIGKILL)
    with pytest.raises(Failed, match=r"vllm-gpu1 died with exit code -9; what was sampled before stays"):
        for _ in sampled:
            pass
    several.close()  # the other, in the middle of its work
    assert not psutil.wait_procs(engines, timeout=1200)[1], "their GPUs would stay taken"


@pytest.mark.parametrize("sized", [False, True])
def test_engines_that_share_a_gpu_start_in_turn_and_work_side_by_side(settings, monkeypatch, sized):
    """Each holds the GPU's turn while it starts, unless its cache's size is given, and not while it works."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # put back afterwards
    turn, box, seen = threading.Lock(), queue.Queue(), []

    class Watched:
        def __init__(self, settings):
            seen.append(turn.locked())

        def run(self, pull):
            seen.append(turn.locked())
            yield ["a sample"]

        def close(self):
            seen.append("closed")

    monkeypatch.setattr(vllm_backend, "Engine", Watched)
    assert "kv_cache_memory_bytes" in dict(settings.more)
    vllm_backend._work(settings if sized else replace(settings, more=EAGER), "0", turn, queue.Queue(), box)
    assert seen == [not sized, False, "closed"]
    assert [box.get_nowait() for _ in range(2)] == [("done", ["a sample"]), ("end", "0")]
    given = []
    monkeypatch.setattr(mp, "get_context", lambda kind: Recorded(given))
    vllm_backend.Workers(settings, ["0", "0", "1"])
    turns = [args[2] for args in given]
    assert turns[0] is turns[1] is not turns[2], "one turn a GPU"


class Recorded:
    """multiprocessing's context, whose processes are only written down."""

    def __init__(self, given):
        self.given = given

    Lock = staticmethod(threading.Lock)
    Queue = staticmethod(queue.Queue)

    def Process(self, target, args, name):
        self.given.append(args)
        return threading.Thread()
